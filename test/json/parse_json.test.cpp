/// Deeply nested text is refused before it reaches the parser.
#include <catch2/catch.hpp>

#include <rrfp/io/parse_json.hpp>

namespace rrfp {
namespace {

using nlohmann::json;

std::string repeated(const std::string& text, std::size_t count) {
  std::string all;
  for (std::size_t i = 0; i < count; ++i) all += text;
  return all;
}

std::string nested(std::size_t depth) { return repeated("[", depth) + repeated("]", depth); }

std::string refusal(const std::string& text) {
  const auto read = parse_json(text);
  const auto* const fault = std::get_if<json_fault>(&read);
  return fault == nullptr ? "read" : fault->message();
}

}  // namespace

TEST_CASE("JSON is read up to the maximum depth and refused beyond it") {
  CHECK(refusal(nested(json_depth_max)) == "read");
  CHECK(refusal(nested(json_depth_max + 1)) == "nested deeper than 64 at byte 65");
  CHECK(refusal(repeated("{\"a\":", 100'000)) == "nested deeper than 64 at byte 321");
  CHECK(refusal(repeated("[{\"a\":", 100'000)) == "nested deeper than 64 at byte 193");
  CHECK(refusal(repeated("[]", 1000)).starts_with("not JSON"));
  const auto wide = "[" + repeated("[],", 1000) + "[]]";
  CHECK(refusal(wide) == "read");
}

TEST_CASE("Brackets in strings do not count as nesting") {
  CHECK(refusal("[\"" + repeated("[{", 1000) + "\"]") == "read");
  CHECK(refusal("[\"\\\"" + repeated("[", 1000) + "\"]") == "read");
  CHECK(refusal("[\"\\\\\"," + nested(100) + "]").starts_with("nested deeper than 64"));
  CHECK(refusal("\"" + repeated("[", 1000)).starts_with("not JSON"));
  CHECK(refusal("\"\\").starts_with("not JSON"));
}

TEST_CASE("An error names the byte or the line") {
  const auto read = parse_json<nlohmann::ordered_json>("{\n  \"a\": 1,\n  \"b\" 2\n}\n");
  const auto* const fault = std::get_if<json_fault>(&read);
  REQUIRE(fault != nullptr);
  CHECK(fault->message() == "not JSON at byte 19");
  CHECK(fault->message_in("a.json") == "a.json:3: not JSON");
  CHECK(refusal("") == "not JSON at byte 1");
  const auto deep = too_deep("[\n[\n[", 2);
  REQUIRE(deep.has_value());
  CHECK(deep->message_in("a.json") == "a.json:3: nested deeper than 2");
  // The parser reports no position for a number that is out of range.
  CHECK(refusal("[1e999]") == "not JSON: number overflow parsing '1e999'");
  CHECK(refusal("[" + std::string(1000, '9') + "]").size() < 100);
}

TEST_CASE("A callback may drop values, and its exceptions propagate") {
  const auto dropped = parse_json("[1, 2, 3]", [](int, json::parse_event_t, json& value) {
    return !value.is_number() || value != 2;
  });
  CHECK(std::get<json>(dropped) == json{1, 3});
  CHECK_THROWS_AS(parse_json("[1]", [](int, json::parse_event_t, json&) -> bool { throw 7; }), int);
}

}  // namespace rrfp
