#include "json_line.hpp"

#include <utility>

#include <rrfp/io/parse_json.hpp>

namespace rrfp::data {

namespace {

using nlohmann::json;

bad_sample wrong_key(const std::string& key, const std::string& expected, const std::string& got) {
  return {bad_reason::wrong_key, "\"" + key + "\": expected " + expected + ", got " + got};
}

sample_or<json> read_object(std::string_view line) {
  auto parsed = parse_json(line);
  if (const auto* fault = std::get_if<json_fault>(&parsed))
    return bad_sample{bad_reason::not_json,
                      "expected a JSON object, got a line that is " + fault->message()};
  auto& value = std::get<json>(parsed);
  if (value.is_object()) return std::move(value);
  return bad_sample{bad_reason::not_json,
                    std::string{"expected a JSON object, got a JSON "} + value.type_name()};
}

sample_or<std::string> text_at(json& object, const std::string& key) {
  const auto found = object.find(key);
  if (found == object.end()) return wrong_key(key, "a string", "an object without that key");
  if (!found->is_string()) return wrong_key(key, "a string", found->type_name());
  return std::move(found->get_ref<std::string&>());
}

sample_or<std::vector<std::string>> images_of(json& object) {
  const auto many = object.find("images");
  const auto one = object.find("image");
  const std::string expected = "an array of paths, or \"image\" with one";
  if (many == object.end() && one == object.end())
    return wrong_key("images", expected, "an object with neither key");
  if (many != object.end() && one != object.end())
    return wrong_key("images", expected, "both keys");
  if (one != object.end()) {
    if (!one->is_string()) return wrong_key("image", "a path", one->type_name());
    return std::vector{std::move(one->get_ref<std::string&>())};
  }
  if (!many->is_array()) return wrong_key("images", "an array of paths", many->type_name());
  std::vector<std::string> paths;
  for (auto& path : *many) {
    if (!path.is_string())
      return wrong_key("images", "an array of paths",
                       std::string{"an entry that is "} + path.type_name());
    paths.push_back(std::move(path.get_ref<std::string&>()));
  }
  return paths;
}

}  // namespace

sample_or<std::string> read_document(std::string_view line, const std::string& text_key) {
  auto object = read_object(line);
  if (const auto* bad = fault_of(object)) return *bad;
  return text_at(std::get<json>(object), text_key);
}

sample_or<captioned_images> read_captioned(std::string_view line, const std::string& text_key) {
  auto object = read_object(line);
  if (const auto* bad = fault_of(object)) return *bad;
  auto images = images_of(std::get<json>(object));
  if (const auto* bad = fault_of(images)) return *bad;
  auto text = text_at(std::get<json>(object), text_key);
  if (const auto* bad = fault_of(text)) return *bad;
  return captioned_images{std::get<0>(std::move(text)), std::get<0>(std::move(images))};
}

}  // namespace rrfp::data
