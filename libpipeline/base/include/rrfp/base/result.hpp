/// Operating errors are returned as values: what was expected, what came, where.
#pragma once

#include <string>
#include <utility>
#include <variant>

#include <rrfp/base/check.hpp>

namespace rrfp {

/// An error message that a user can act on.
struct error {
  std::string message;
};

/// A value or an error. `value()` on an error (and the reverse) is a programmer's error.
template <class T>
class [[nodiscard]] result {
 public:
  result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  result(error e) : state_(std::in_place_index<1>, std::move(e)) {}

  bool ok() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return ok(); }

  T& value() & {
    RRFP_CHECK(ok(), "value() of an error");
    return std::get<0>(state_);
  }
  const T& value() const& {
    RRFP_CHECK(ok(), "value() of an error");
    return std::get<0>(state_);
  }
  T&& value() && {
    RRFP_CHECK(ok(), "value() of an error");
    return std::get<0>(std::move(state_));
  }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }

  const std::string& message() const {
    RRFP_CHECK(!ok(), "message() of a value");
    return std::get<1>(state_).message;
  }
  error failure() const { return error{message()}; }

 private:
  std::variant<T, error> state_;
};

/// Success without a value, or an error.
using status = result<std::monostate>;
inline status success() { return std::monostate{}; }

}  // namespace rrfp
