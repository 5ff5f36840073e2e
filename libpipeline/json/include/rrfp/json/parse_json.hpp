/// JSON that others wrote. The only door to the JSON library's parser (a test looks for others).
///
/// The parser takes any depth, but the library copies, compares and prints values by recursion: a
/// text of a hundred thousand brackets would end the process at the first error message that shows
/// it. So the depth is limited before the parser sees the text.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include <nlohmann/json.hpp>

namespace rrfp {

/// Deeper than anything that the runtime reads; a few kilobytes of stack.
inline constexpr std::size_t json_depth_max = 64;

/// Why a text is refused.
struct json_fault {
  std::string what;      ///< "not JSON", "nested deeper than 64"
  std::size_t byte = 0;  ///< where, from 1; 0 if the parser does not say
  std::size_t line = 0;  ///< the line of that byte, from 1; 0 likewise

  /// "not JSON at byte 7".
  std::string message() const;
  /// "SOURCE:3: not JSON".
  std::string message_in(const std::string& source) const;
};

/// The first place that is deeper than `depth_max` objects and arrays. Looks at brackets outside of
/// strings alone, so the text may be anything.
std::optional<json_fault> too_deep(std::string_view text, std::size_t depth_max);

json_fault not_json(std::string_view text, const nlohmann::json::exception& why);

/// `Json`: nlohmann::json or nlohmann::ordered_json. `each`: as in Json::parse; what it throws
/// passes through.
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
