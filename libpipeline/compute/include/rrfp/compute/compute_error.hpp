/// The one exception that leaves stage_compute: a task could not be computed.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace rrfp::compute {

enum class compute_fault : std::uint8_t {
  library,          ///< libtorch refused (a shape, a device), or a user's module threw
  memory,           ///< the device has no more; says what is held and what to lower
  data,             ///< the batch source threw, or gave a microbatch that makes no sense
  non_finite_loss,  ///< the loss of a microbatch is NaN or infinite
  collective,       ///< the tensor-parallel ranks of the stage could not come together
};

/// The message names stage, task and step, and gives the first line of what the library said. After
/// it the step cannot be finished: stage_compute::abort_step().
class compute_error : public std::runtime_error {
 public:
  compute_error(compute_fault fault, const std::string& message)
      : std::runtime_error(message), fault_(fault) {}

  compute_fault fault() const noexcept { return fault_; }

 private:
  compute_fault fault_;
};

}  // namespace rrfp::compute
