#include "strict_json.hpp"

#include <set>
#include <string>
#include <vector>

namespace rrfp::safetensors {

result<nlohmann::json> parse_strict(std::string_view text) {
  using nlohmann::json;
  std::vector<std::set<std::string>> open_objects;
  std::string twice;
  bool too_deep = false;
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    const bool opens =
        event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
    if (opens && depth >= json_depth_max) {
      too_deep = true;
      return false;  // what it holds is not kept
    }
    if (event == json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == json::parse_event_t::object_end) open_objects.pop_back();
    if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open_objects.back().insert(key).second && twice.empty()) twice = key;
    }
    return true;
  };
  try {
    auto made = json::parse(text.begin(), text.end(), watch);
    if (too_deep) return error{"nested deeper than " + std::to_string(json_depth_max)};
    if (!twice.empty()) return error{"'" + twice + "' stands there twice"};
    return made;
  } catch (const json::parse_error& e) {
    return error{"not JSON at byte " + std::to_string(e.byte)};
  } catch (const json::exception& e) {
    return error{std::string{"not JSON: "} + e.what()};
  }
}

}  // namespace rrfp::safetensors
