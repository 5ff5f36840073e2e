/// The names of the enumerators of an enum that counts from 0.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string_view>

namespace rrfp {

/// The name of `e` among those of all enumerators, in their order; "?" for any other value, which a
/// policy of a user may return.
template <class Enum>
std::string_view name_in(std::initializer_list<std::string_view> names, Enum e) {
  const auto at = static_cast<std::size_t>(e);
  return at < names.size() ? names.begin()[at] : "?";
}

}  // namespace rrfp
