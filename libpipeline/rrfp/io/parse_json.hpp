/// Parses untrusted JSON. All code must use this instead of the JSON library's parser (a test
/// checks that).
///
/// The parser accepts any depth, but the library copies, compares and prints values recursively: a
/// text of a hundred thousand brackets would overflow the stack when an error message prints it.
/// Therefore the depth is checked before the parser runs.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include <nlohmann/json.hpp>

namespace rrfp {

/// Deeper than anything that the runtime reads; needs a few kilobytes of stack.
inline constexpr std::size_t json_depth_max = 64;

/// Why a text was refused.
struct json_fault {
  std::string reason;    ///< "not JSON", "nested deeper than 64"
  std::size_t byte = 0;  ///< its position, from 1; 0 if the parser does not report it
  std::size_t line = 0;  ///< the line of that byte, from 1; 0 if unknown

  /// "not JSON at byte 7".
  std::string message() const;
  /// "SOURCE:3: not JSON".
  std::string message_in(const std::string& source) const;
};

/// Follows a text byte by byte: how deep it is nested, and whether it is in a string. Only brackets
/// outside strings count, so the text need not be valid JSON.
class json_nesting {
 public:
  void take(char c) {
    if (in_string_) {
      in_string_ = is_escaped_ || c != '"';
      is_escaped_ = !is_escaped_ && c == '\\';
    } else if (c == '"') {
      in_string_ = true;
    } else if (c == '[' || c == '{') {
      ++depth_;
    } else if (c == ']' || c == '}') {
      depth_ -= depth_ > 0 ? 1 : 0;
    }
  }
  std::size_t depth() const { return depth_; }
  bool in_string() const { return in_string_; }

 private:
  std::size_t depth_ = 0;
  bool in_string_ = false;
  bool is_escaped_ = false;
};

/// The first place that is nested deeper than `depth_max` objects and arrays.
std::optional<json_fault> too_deep(std::string_view text, std::size_t depth_max);
std::string too_deep_reason(std::size_t depth_max);

json_fault not_json(std::string_view text, const nlohmann::json::exception& why);

/// `Json`: nlohmann::json or nlohmann::ordered_json. `each`: the callback of Json::parse; its
/// exceptions propagate.
template <class Json = nlohmann::json>
std::variant<Json, json_fault> parse_json(std::string_view text,
                                          const typename Json::parser_callback_t& each = nullptr,
                                          std::size_t depth_max = json_depth_max) {
  if (auto fault = too_deep(text, depth_max)) return std::move(*fault);
  try {
    return Json::parse(text.begin(), text.end(), each);
  } catch (const typename Json::exception& why) {
    return not_json(text, why);
  }
}

}  // namespace rrfp
