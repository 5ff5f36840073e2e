/// Adapts a user-defined stage to the interface of the runtime.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <rrfp/stage.hpp>
#include <rrfp/torch/stage_module.hpp>

#include "fed_source.hpp"

namespace rrfp {

struct stage_loss {
  std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)> function;
  /// Also of forward.
  std::optional<at::ScalarType> autocast;
};

/// `input_name`: the source of its input, for messages. `seed`: of the numbers that it draws.
/// Error: the stage has no forward, or parameters that cannot be trained.
result<std::unique_ptr<compute::stage_module>> make_stage_chunk(const stage_place& place, stage s,
                                                                std::string input_name,
                                                                stage_loss loss,
                                                                std::uint64_t seed);

/// Wraps `last`, the last part of the model, so that requested outputs are kept in `data`. Throws
/// in forward if `last` provides none.
std::unique_ptr<compute::stage_module> keep_outputs(std::unique_ptr<compute::stage_module> last,
                                                    const stage_place& place,
                                                    std::shared_ptr<fed_source> data);

}  // namespace rrfp
