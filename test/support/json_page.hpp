/// Compares JSON output with docs/json-output.md.
#pragma once

#include <algorithm>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

namespace rrfp::test {

/// The types of the keys in the table below a heading of the page.
inline std::map<std::string, std::string> documented_keys(const std::string& heading) {
  static const std::regex row{R"(\| `([^`]+)` \| ([^|]+) \| [^|]+ \|)"};
  std::map<std::string, std::string> keys;
  std::ifstream page{RRFP_SOURCE "/docs/json-output.md"};
  bool is_inside = false;
  std::smatch match;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("#")) is_inside = line == "### " + heading;
    if (is_inside && std::regex_match(line, match, row)) keys[match[1]] = match[2];
  }
  return keys;
}

inline bool is_of_type(const nlohmann::json& value, const std::string& type) {
  const auto is_list_of = [&](auto holds) {
    return value.is_array() && std::all_of(value.begin(), value.end(), holds);
  };
  if (type == "text") return value.is_string();
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  if (type == "true or false") return value.is_boolean();
  if (type == "object") return value.is_object();
  if (type == "list of numbers") return is_list_of([](auto& v) { return v.is_number(); });
  if (type == "list of integers") return is_list_of([](auto& v) { return v.is_number_integer(); });
  if (type == "list of texts") return is_list_of([](auto& v) { return v.is_string(); });
  if (type == "list of objects") return is_list_of([](auto& v) { return v.is_object(); });
  FAIL("docs/json-output.md: unknown type " << type);
  return false;
}

/// Checks that the object has the keys that the page describes under `heading`, with these types,
/// and no others. `prefix`: of the keys of a nested object. Returns the keys that it had.
inline std::set<std::string> check_documented(const nlohmann::json& object,
                                              const std::string& heading,
                                              const std::string& prefix = "") {
  const auto keys = documented_keys(heading);
  REQUIRE_FALSE(keys.empty());
  std::set<std::string> had;
  for (const auto& [name, value] : object.items()) {
    const auto key = prefix + name;
    INFO(heading << ": " << key << ": " << value);
    const auto known = keys.find(key);
    CHECK(known != keys.end());
    if (known == keys.end()) continue;
    had.insert(key);
    const auto type = known->second.substr(0, known->second.find(", optional"));
    CHECK(is_of_type(value, type));
    const auto has_own_keys = [&](const std::string& of) {
      const auto next = keys.lower_bound(of);
      return next != keys.end() && next->first.starts_with(of);
    };
    if (value.is_object() && has_own_keys(key + "."))
      had.merge(check_documented(value, heading, key + "."));
    if (value.is_array() && has_own_keys(key + "[]."))
      for (const auto& item : value) had.merge(check_documented(item, heading, key + "[]."));
  }
  for (const auto& [key, type] : keys) {
    if (!key.starts_with(prefix) || type.ends_with(", optional")) continue;
    const auto name = key.substr(prefix.size());
    if (name.find_first_of(".[") != std::string::npos) continue;
    INFO(heading << ": " << key << " is missing in " << object);
    CHECK(object.contains(name));
  }
  return had;
}

}  // namespace rrfp::test
