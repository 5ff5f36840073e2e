/// All stages of a pipeline in one thread. Which ready task runs next is drawn at random from a
/// seed, so that a result that depends on the order of execution shows.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include <rrfp/torch/stage_compute.hpp>

#include "plain_loop.hpp"

namespace rrfp::compute::test {

enum class split : std::uint8_t { fused, split, mixed };

struct pipeline_options {
  split backward = split::mixed;
  std::uint64_t order_seed = 1;
  /// Runs microbatches strictly one after the other, each as far as it goes.
  bool one_by_one = false;
  /// The tensor-parallel ranks of every stage; each rank has its own pipeline and thread.
  std::shared_ptr<rank_group> group = nullptr;
  /// Combines the reports of the ranks; empty: there is one rank.
  std::function<std::vector<parameter_norm>(std::vector<parameter_norm>)> gather_norms = nullptr;
  /// Called with every chunk before the first step.
  std::function<void(stage_module&)> prepare = nullptr;
  bool recompute = false;
  /// Number of layers of each virtual stage; empty: evenly.
  std::vector<std::uint32_t> cut = {};
};

class pipeline {
 public:
  pipeline(const job::model_options& model, const job::train_options& train,
           const pipeline_shape& shape, std::shared_ptr<const batch_source> data,
           pipeline_options options = {});

  /// All tasks of a step, without its end.
  void run_tasks(step_id step);
  /// The tied exchange, clipping, the optimizer. Returns the norm.
  double finish(double lr);

  std::vector<double> losses() const;
  std::map<std::string, at::Tensor> weights() const;
  std::uint64_t hash() const;
  stage_compute& stage(std::uint32_t s) { return *stages_[s]; }
  std::size_t stages() const { return stages_.size(); }
  std::vector<parameter_hash> hashes() const;
  std::vector<named_tensor> snapshot() const;

 private:
  struct todo {
    stage_id stage;
    task what;
    forward_pass pass = forward_pass::once;
  };
  using place = std::pair<std::uint32_t, std::uint32_t>;  // virtual stage, microbatch

  void add_tasks();
  bool is_ready(const todo& t) const;
  void run_pieces(stage_compute& stage, launch& l);
  void run(const todo& t);
  fold_range folds_after(place at);

  pipeline_shape shape_;
  double clip_norm_;
  pipeline_options options_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<stage_compute>> stages_;
  std::vector<todo> tasks_;
  std::map<place, at::Tensor> activations_, gradients_;
  std::map<place, bool> is_forward_done_, is_backward_done_, is_weight_ready_;
  std::map<std::uint32_t, std::uint32_t> folded_;
};

/// Runs `steps` steps of a pipeline; the result is that of train_plainly().
training_result train_in_stages(const job::model_options& model, const job::train_options& train,
                                const pipeline_shape& shape,
                                std::shared_ptr<const batch_source> data, std::uint64_t steps,
                                pipeline_options options = {});

/// As a checkpoint gives them.
std::vector<named_buffer> to_buffers(const std::vector<named_tensor>& all);

}  // namespace rrfp::compute::test
