#include <rrfp/hugging_face/image_processor.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "json_file.hpp"

namespace rrfp::hugging_face {

namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

/// The settings of a folder's image processor; null if it has none.
struct processor_settings {
  std::string file;
  std::string path;  ///< of the object in the file
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
    if (object == nullptr) return processor_settings{file, "", *read};
    if (!read->contains(object)) continue;
    if (!read->at(object).is_object())
      return error{file + ": " + object + ": expected an object, got " +
                   printable(read->at(object).dump())};
    return processor_settings{file, std::string{object} + ".", read->at(object)};
  }
  return processor_settings{};
}

/// Relative tolerance for numbers that were rounded when they were written as text.
bool equal(double a, double b) { return std::abs(a - b) <= 1e-6 * std::max(1e-3, std::abs(b)); }

/// A single number applies to all three colours.
bool agree(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.empty() || b.empty()) return false;
  for (std::size_t c = 0; c < 3; ++c)
    if (!equal(a[c % a.size()], b[c % b.size()])) return false;
  return true;
}

void check_colours(const section& s, const char* key, const std::vector<double>& from_job) {
  const auto expected = std::string{"data."} + key + " = " + json(from_job).dump();
  if (!s.has(key)) return s.fail_with(key, expected, "none");
  std::vector<double> numbers;
  const auto& value = s.at(key);
  for (const auto& n : value.is_array() ? value : json::array({value}))
    if (n.is_number()) numbers.push_back(n.get<double>());
  const bool has_three = numbers.size() == 3 && value.size() == 3;
  const bool has_one = numbers.size() == 1 && (value.is_number() || value.size() == 1);
  if (!(has_three || has_one) || !agree(numbers, from_job)) s.fail(key, expected, value);
}

void check(const section& s, const job::data_options& data) {
  constexpr auto why =
      "; rrfp keeps the aspect ratio: it shrinks images to data.image_side_max and fits them to "
      "patches, and does not resize to a fixed size, crop, pad or split them";
  for (const auto& [key, value] : s.items()) {
    constexpr std::array<std::string_view, 3> known{"do_rescale", "do_normalize", "do_convert_rgb"};
    if (!key.starts_with("do_") || std::find(known.begin(), known.end(), key) != known.end())
      continue;
    if (!value.is_null() && value != false) return s.fail(printable(key), "false", value, why);
  }
  if (!s.has("do_resize"))
    return s.fail_with("do_resize", "false", std::string{"none, which means true"} + why);
  s.require("do_rescale", true);
  if (s.has("rescale_factor"))
    if (const auto& f = s.at("rescale_factor");
        !f.is_number() || !equal(f.get<double>(), 1.0 / 255))
      s.fail("rescale_factor", "1 / 255", f);
  if (!s.has("do_normalize") || s.at("do_normalize") == true) {
    check_colours(s, "image_mean", data.image_mean);
    check_colours(s, "image_std", data.image_std);
  } else if (!agree(data.image_mean, {0}) || !agree(data.image_std, {1})) {
    s.fail("do_normalize", "true unless data.image_mean = 0 and data.image_std = 1", false);
  }
}

}  // namespace

status check_image_processor(const std::string& folder, const job::data_options& data) {
  const auto settings = read_settings(folder);
  if (!settings) return settings.failure();
  if (settings->values.is_null()) return success();
  std::optional<error> failure;
  check(section{settings->values, settings->file, settings->path, failure}, data);
  return failure ? status{*failure} : success();
}

}  // namespace rrfp::hugging_face
