/// Short messages for exceptions of libtorch and of user code.
#pragma once

#include <exception>
#include <string>

#include <c10/util/Exception.h>

namespace rrfp::compute {

/// The first line of the message, without the stack trace that libtorch adds.
inline std::string first_line_of(const std::exception& e) {
  const auto* of_libtorch = dynamic_cast<const c10::Error*>(&e);
  const std::string text = of_libtorch ? of_libtorch->what_without_backtrace() : e.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace rrfp::compute
