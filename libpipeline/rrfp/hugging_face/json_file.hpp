/// Reads the JSON files of a model folder.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <rrfp/base/printable.hpp>
#include <rrfp/base/result.hpp>
#include <rrfp/io/parse_json.hpp>

namespace rrfp::hugging_face {

/// Error: the file cannot be read, or has more than config_bytes_max bytes.
result<std::string> read_config_text(const std::string& file);

/// `source` names the file in errors. Error: the text is not JSON, or not an object.
result<nlohmann::ordered_json> parse_object(std::string_view text, const std::string& source);

/// An object of the file and its path there. Keeps the first error, so readers need not check after
/// each key.
class section {
 public:
  using json = nlohmann::ordered_json;

  section(const json& object, std::string source, std::string path, std::optional<error>& failure)
      : object_(object), source_(std::move(source)), path_(std::move(path)), failure_(failure) {}

  void fail(const std::string& key, const std::string& expected, const json& got,
            const std::string& why = "") const {
    fail_with(key, expected, printable(got.dump()) + why);
  }
  /// `got`: in words.
  void fail_with(const std::string& key, const std::string& expected,
                 const std::string& got) const {
    if (!failure_)
      failure_ = error{source_ + ": " + path_ + key + ": expected " + expected + ", got " + got};
  }

  /// False for missing keys and null; both keep the default.
  bool has(const char* key) const {
    const auto it = object_.find(key);
    return it != object_.end() && !it->is_null();
  }
  const json& at(const char* key) const { return object_.at(key); }
  auto items() const { return object_.items(); }

  void integer(const char* key, std::uint32_t& to) const {
    if (!has(key)) return;
    const auto& v = at(key);
    const auto most = std::numeric_limits<std::int32_t>::max();
    if (!v.is_number_integer() || v < 0 || v > most) return fail(key, "an integer >= 0", v);
    to = v.get<std::uint32_t>();
  }
  void needed_integer(const char* key, std::uint32_t& to) const {
    if (!has(key)) return fail(key, "an integer", nullptr);
    integer(key, to);
  }
  void needed_number(const char* key, double& to) const {
    if (!has(key)) return fail(key, "a number", nullptr);
    number(key, to);
  }
  void number(const char* key, double& to) const {
    if (!has(key)) return;
    if (!at(key).is_number()) return fail(key, "a number", at(key));
    to = at(key).get<double>();
  }
  void boolean(const char* key, bool& to) const {
    if (!has(key)) return;
    if (!at(key).is_boolean()) return fail(key, "true or false", at(key));
    to = at(key).get<bool>();
  }
  /// For keys with a single supported value.
  void require(const char* key, const json& allowed) const {
    if (has(key) && at(key) != allowed) fail(key, allowed.dump(), at(key));
  }
  std::string text(const char* key) const {
    if (!has(key)) return {};
    if (at(key).is_string()) return at(key).get<std::string>();
    fail(key, "a string", at(key));
    return {};
  }
  std::optional<section> part(const char* key) const {
    if (!has(key)) return std::nullopt;
    if (!at(key).is_object()) {
      fail(key, "an object", at(key));
      return std::nullopt;
    }
    return section(at(key), source_, path_ + key + ".", failure_);
  }

 private:
  const json& object_;
  std::string source_, path_;
  std::optional<error>& failure_;
};

}  // namespace rrfp::hugging_face
