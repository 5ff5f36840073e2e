/// A complete session setup of a tiny GPT, for a test to change.
#pragma once

#include <memory>

#include <rrfp/torch/model.hpp>
#include <rrfp/torch_actors/torch_model.hpp>

#include "run_setup.hpp"
#include "small_model.hpp"

namespace rrfp::actors::test {

inline torch_model small_parts(const pipeline_shape& shape, const job::model_options& model,
                               const job::train_options& train) {
  torch_model parts;
  parts.make_chunk = [model, n = shape.virtual_stages(), seed = train.seed](
                         virtual_stage_id vs, std::shared_ptr<compute::rank_group> group) {
    return compute::make_model_chunk(model, compute::test::nth_part(model, vs.value(), n), seed,
                                     std::move(group));
  };
  parts.data = std::make_shared<compute::test::uneven_source>(shape.microbatches);
  return parts;
}

inline session_setup small_setup(const choice_of_run& c, const job::model_options& model,
                                 const job::train_options& train) {
  auto s = run_setup(c, train);
  actors::train(s, small_parts(c.shape, model, train));
  return s;
}

}  // namespace rrfp::actors::test
