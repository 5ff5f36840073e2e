#include "strict_json.hpp"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include <rrfp/base/printable.hpp>
#include <rrfp/io/parse_json.hpp>

namespace rrfp::safetensors {

result<nlohmann::json> parse_strict(std::string_view text) {
  using nlohmann::json;
  std::vector<std::set<std::string>> open_objects;
  std::string duplicate;
  const auto watch = [&](int /*depth*/, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == json::parse_event_t::object_end) open_objects.pop_back();
    if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open_objects.back().insert(key).second && duplicate.empty()) duplicate = key;
    }
    return true;
  };
  auto made = parse_json(text, watch, strict_depth_max);
  if (const auto* fault = std::get_if<json_fault>(&made)) return error{fault->message()};
  if (!duplicate.empty()) return error{"duplicate key '" + printable(duplicate) + "'"};
  return std::get<json>(std::move(made));
}

}  // namespace rrfp::safetensors
