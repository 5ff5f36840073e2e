#include <rrfp/hugging_face/image_processor.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include <rrfp/base/printable.hpp>

#include "json_file.hpp"

namespace rrfp::hugging_face {

namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

/// The settings of a folder's image processor; null if it has none.
struct processor_settings {
  std::string source;  ///< the file, and the object in it
  json values;
};

result<processor_settings> read_settings(const std::string& folder) {
  constexpr std::array<std::pair<const char*, const char*>, 2> files{
      {{"processor_config.json", "image_processor"}, {"preprocessor_config.json", nullptr}}};
  for (const auto& [name, object] : files) {
    const auto file = (fs::path{folder} / name).string();
    std::error_code unknown;
    if (!fs::exists(file, unknown)) continue;
    const auto text = read_config_text(file);
    if (!text) return text.failure();
    const auto read = parse_object(*text, file);
    if (!read) return read.failure();
    if (object == nullptr) return processor_settings{file + ": ", *read};
    if (!read->contains(object)) continue;
    if (!read->at(object).is_object())
      return error{file + ": " + object + ": expected an object, got " +
                   printable(read->at(object).dump())};
    return processor_settings{file + ": " + object + ".", read->at(object)};
  }
  return processor_settings{};
}

/// Relative tolerance for numbers that were rounded when they were written as text.
bool equal(double a, double b) { return std::abs(a - b) <= 1e-6 * std::max(1e-3, std::abs(b)); }

class processor {
 public:
  explicit processor(const processor_settings& settings) : settings_(settings) {}

  status check(const job::data_options& data) const {
    for (const auto& [key, value] : settings_.values.items()) {
      constexpr std::array<std::string_view, 3> known{"do_rescale", "do_normalize",
                                                      "do_convert_rgb"};
      if (!key.starts_with("do_") || std::find(known.begin(), known.end(), key) != known.end())
        continue;
      if (!value.is_null() && value != false)
        return unsupported(printable(key), printable(value.dump()));
    }
    if (is_absent("do_resize")) return unsupported("do_resize", "none, which means true");
    if (auto scaled = check_scale(); !scaled) return scaled;
    const bool is_normalized = is_absent("do_normalize") || at("do_normalize") == true;
    const std::vector<double> zero{0}, one{1};
    if (!is_normalized) {
      if (!agree(data.image_mean, zero) || !agree(data.image_std, one))
        return wrong("do_normalize", "true unless data.image_mean = 0 and data.image_std = 1",
                     "false");
      return success();
    }
    if (auto mean = check_colours("image_mean", data.image_mean); !mean) return mean;
    return check_colours("image_std", data.image_std);
  }

 private:
  bool is_absent(const char* key) const {
    return !settings_.values.contains(key) || settings_.values.at(key).is_null();
  }
  const json& at(const char* key) const { return settings_.values.at(key); }
  error wrong(const std::string& key, const std::string& expected, const std::string& got) const {
    return error{settings_.source + key + ": expected " + expected + ", got " + got};
  }
  error unsupported(const std::string& key, const std::string& got) const {
    return wrong(key, "false",
                 got +
                     "; rrfp keeps the aspect ratio: it shrinks images to "
                     "data.image_side_max and fits them to patches, and does not resize to a "
                     "fixed size, crop, pad or split them");
  }

  status check_scale() const {
    if (!is_absent("do_rescale") && at("do_rescale") != true)
      return wrong("do_rescale", "true", printable(at("do_rescale").dump()));
    if (is_absent("rescale_factor")) return success();
    const auto& factor = at("rescale_factor");
    if (factor.is_number() && equal(factor.get<double>(), 1.0 / 255)) return success();
    return wrong("rescale_factor", "1 / 255", printable(factor.dump()));
  }

  /// A single number applies to all three colours.
  static bool agree(const std::vector<double>& a, const std::vector<double>& b) {
    if (a.empty() || b.empty()) return false;
    for (std::size_t c = 0; c < 3; ++c)
      if (!equal(a[c % a.size()], b[c % b.size()])) return false;
    return true;
  }

  status check_colours(const char* key, const std::vector<double>& from_job) const {
    const auto expected = std::string{"data."} + key + " = " + json(from_job).dump();
    if (is_absent(key)) return wrong(key, expected, "none");
    std::vector<double> numbers;
    const auto& value = at(key);
    for (const auto& n : value.is_array() ? value : json::array({value}))
      if (n.is_number()) numbers.push_back(n.get<double>());
    const bool has_three = numbers.size() == 3 && value.size() == 3;
    const bool has_one = numbers.size() == 1 && (value.is_number() || value.size() == 1);
    if ((has_three || has_one) && agree(numbers, from_job)) return success();
    return wrong(key, expected, printable(value.dump()));
  }

  const processor_settings& settings_;
};

}  // namespace

status check_image_processor(const std::string& folder, const job::data_options& data) {
  const auto settings = read_settings(folder);
  if (!settings) return settings.failure();
  if (settings->values.is_null()) return success();
  return processor{*settings}.check(data);
}

}  // namespace rrfp::hugging_face
