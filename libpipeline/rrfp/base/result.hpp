/// Operating errors are returned as values: what was expected, what came, where.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include <rrfp/base/check.hpp>

namespace rrfp {

/// What caused an error. A program that an error ends has the exit code of its kind.
enum class error_kind : std::uint8_t {
  bad_input,    ///< a job, an argument, a file or its data; also a training that diverged
  failed,       ///< an internal error, or an output that cannot be written
  node_lost,    ///< a node was lost or did not join: the same job may run again
  interrupted,  ///< by the user
};

struct error {
  std::string message;  ///< for the user: what was expected, what came, where
  error_kind kind = error_kind::bad_input;
};

/// The error of a part, as that of the whole: "WHERE: message".
inline error within(const std::string& where, error e) {
  e.message.insert(0, where + ": ");
  return e;
}

/// A value or an error. value() of an error, and failure() of a value, abort the process.
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

  const std::string& message() const { return failure().message; }
  const error& failure() const {
    RRFP_CHECK(!ok(), "failure() of a value");
    return std::get<1>(state_);
  }

 private:
  std::variant<T, error> state_;
};

/// Success without a value, or an error.
using status = result<std::monostate>;
inline status success() { return std::monostate{}; }

}  // namespace rrfp
