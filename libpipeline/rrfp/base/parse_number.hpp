/// Numbers from text.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace rrfp {

/// The number that the whole text is; nothing for any other text. `base`: of an integer,
/// default 10.
template <class Number>
std::optional<Number> parse_number(std::string_view text, auto... base) {
  Number n{};
  const auto* const end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, n, base...);
  return failure == std::errc{} && stop == end ? std::optional{n} : std::nullopt;
}

}  // namespace rrfp
