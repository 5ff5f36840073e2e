/// Calls of functions that the user's program passes to its pipeline.
#pragma once

#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

#include <rrfp/base/result.hpp>
#include <rrfp/compute/compute_error.hpp>

namespace rrfp {

inline void print_to_stderr(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }

/// Wraps a user function: its exceptions get its name, and all become std::exceptions.
template <class Result, class... Arguments>
std::function<Result(Arguments...)> named(std::string name, std::function<Result(Arguments...)> f) {
  if (!f) return f;
  return [name = std::move(name), f = std::move(f)](Arguments... arguments) -> Result {
    try {
      return f(std::forward<Arguments>(arguments)...);
    } catch (const std::exception& e) {
      throw std::runtime_error(name + " threw: " + compute::first_line_of(e));
    } catch (...) {
      throw std::runtime_error(name + " threw an object that is not a std::exception");
    }
  };
}

/// Runs `work`; an exception becomes an error.
template <class Work>
auto caught(Work work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::exception& e) {
    return error{compute::first_line_of(e), error_kind::failed};
  }
}

}  // namespace rrfp
