#include <rrfp/io/parse_json.hpp>

#include <algorithm>

namespace rrfp {

namespace {

std::size_t line_at(std::string_view text, std::size_t byte) {
  const auto before = text.substr(0, byte);
  return 1 + static_cast<std::size_t>(std::count(before.begin(), before.end(), '\n'));
}

}  // namespace

std::string json_fault::message() const {
  return byte == 0 ? reason : reason + " at byte " + std::to_string(byte);
}

std::string json_fault::message_in(const std::string& source) const {
  return source + (line == 0 ? "" : ":" + std::to_string(line)) + ": " + reason;
}

std::string too_deep_reason(std::size_t depth_max) {
  return "nested deeper than " + std::to_string(depth_max);
}

std::optional<json_fault> too_deep(std::string_view text, std::size_t depth_max) {
  json_nesting nesting;
  for (std::size_t at = 0; at < text.size(); ++at) {
    nesting.take(text[at]);
    if (nesting.depth() > depth_max)
      return json_fault{too_deep_reason(depth_max), at + 1, line_at(text, at + 1)};
  }
  return std::nullopt;
}

json_fault not_json(std::string_view text, const nlohmann::json::exception& why) {
  const auto* const syntax = dynamic_cast<const nlohmann::json::parse_error*>(&why);
  if (syntax != nullptr) return {"not JSON", syntax->byte, line_at(text, syntax->byte)};
  // A number out of range; drop the library's prefix "[json.exception...] ".
  constexpr std::size_t length_max = 80;
  const std::string_view what = why.what();
  const auto words = what.substr(std::min(what.find("] ") + 2, what.size()));
  return {"not JSON: " + std::string{words.substr(0, length_max)}};
}

}  // namespace rrfp
