/// A stage of one's own as the runtime takes it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <rrfp/compute/stage_module.hpp>
#include <rrfp/stage.hpp>

#include "fed_source.hpp"

namespace rrfp {

struct stage_loss {
  std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)> of;
};

/// `given_by`: where its input comes from, for messages. Error: the stage has no forward, or
/// parameters that cannot be trained.
result<std::unique_ptr<compute::stage_module>> make_stage_chunk(const stage_place& place, stage s,
                                                                std::string given_by,
                                                                stage_loss loss);

/// `last`, the last part of the model, with its outputs kept in `data` where they are asked for.
/// It throws if `last` gives none then.
std::unique_ptr<compute::stage_module> keeping_outputs(std::unique_ptr<compute::stage_module> last,
                                                       const stage_place& place,
                                                       std::shared_ptr<fed_source> data);

}  // namespace rrfp
