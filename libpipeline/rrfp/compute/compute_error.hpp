/// The only exception that stage_compute throws: a task failed.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace rrfp::compute {

enum class compute_fault : std::uint8_t {
  library,  ///< libtorch (a shape, a device) or a user's module threw
  memory,   ///< the device is out of memory; the message says what is held and what to lower
  data,     ///< the batch source threw, or returned an invalid microbatch
  non_finite_loss,  ///< the loss of a microbatch is NaN or infinite
  collective,       ///< a collective of the stage's tensor-parallel ranks failed
};

/// The message names stage, task and step, and has the first line of the library's message. The
/// step cannot be completed afterwards.
class compute_error : public std::runtime_error {
 public:
  compute_error(compute_fault fault, const std::string& message)
      : std::runtime_error(message), fault_(fault) {}

  compute_fault fault() const noexcept { return fault_; }

 private:
  compute_fault fault_;
};

/// The first line of the message, without the stack trace that libtorch adds.
inline std::string first_line_of(const std::exception& e) {
  const std::string text = e.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace rrfp::compute
