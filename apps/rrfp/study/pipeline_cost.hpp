/// The duration and memory of a microbatch on every stage of a pipeline, from first principles.
///
/// The model is a sequence of parts: encoder layers, projector, embedding, decoder layers, head. In
/// each of F, B and W, a part takes the longer of its FLOPs at the device's rate and its bytes at
/// the memory's rate (machine.hpp), divided by tp. A layer adds the machine's fixed time, and two
/// all-reduces of its output over the tp ranks in F and two in B, which are not overlapped
/// (Megatron without sequence parallelism). Bytes: F and B read the weights and write and read the
/// activations once; W reads activations and reads and writes FP32 gradients.
///
/// The experts of a mixture are divided over the tp ranks, whole, and each expert is a kernel of
/// its own over the tokens that it gets. The slowest rank counts, so uneven routing costs time
/// where ranks share the experts, and where an expert gets so few tokens that its weights bound it.
///
/// Stages are consecutive runs of parts, encoder first. The cut minimizes the time of the slowest
/// stage at the mean load; layout::cut says what it counts. The paper does not describe its cut.
/// Nothing is tuned per workload.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <rrfp/base/ids.hpp>
#include <rrfp/base/result.hpp>
#include <rrfp/job/job.hpp>
#include <rrfp/study/machine.hpp>
#include <rrfp/workload/model.hpp>

namespace rrfp::study {

using workload::load;
using workload::model;

struct part_cost {
  double forward_ms = 0;
  double backward_ms = 0;
  double weight_ms = 0;
  /// Bytes on each tp rank from F until W is done.
  double activation_bytes = 0;

  double all_ms() const { return forward_ms + backward_ms + weight_ms; }
  part_cost& operator+=(const part_cost& other);
};

enum class part_kind : std::uint8_t { encoder_layer, projector, embedding, decoder_layer, head };
inline constexpr int part_kinds = 5;

/// The parts of a model in order.
std::vector<part_kind> parts_of(const model& m);
/// The cost of one part on one of `tp` ranks. `layer` is its number among the decoder's layers.
part_cost cost_of(const model& m, part_kind part, const load& l, std::uint32_t tp,
                  const machine& on, std::uint32_t layer = 0);
/// A tied head counts as well, because its stage holds a copy.
std::uint64_t parameters_of(const model& m, part_kind part);

struct layout {
  std::uint32_t stages = 1;
  std::uint32_t tp = 1;
  std::uint32_t replicas = 1;
  /// Samples per microbatch.
  std::uint32_t samples = 1;
  /// The load of a microbatch for which the stages are balanced.
  std::uint32_t mean_images = 0;
  double mean_tokens = 0;  ///< 0: as in load
  /// cost, and automatic: all parts, on devices of the given speeds, like a framework that balances
  /// by a profile. layers: the layers alone, as if all devices were equal, like a framework that
  /// divides layers; each other part lies on the stage of the layer before it, so the head comes on
  /// top of the last stage's layers. given: the layers as it says, the other parts as with
  /// `layers`.
  job::cut_options cut = {};
  std::vector<double> speeds = {};  ///< of the devices of each stage; empty: all 1
};

/// The costs of one pipeline on devices of speed 1. Thread-safe. One chunk per stage.
class pipeline_cost {
 public:
  /// Errors: more stages than the model has parts (or layers, if those are divided), given layers
  /// that are not all layers. The values of the machine must be in the ranges of [machine], and
  /// the ranks must share the experts evenly.
  static result<pipeline_cost> make(model m, const machine& on, layout l);

  /// The cost of a microbatch.
  part_cost stage(stage_id s, const load& l) const;
  /// The tensor between stage `lower` and the next one. Activation and gradient have the same size.
  double message_ms(stage_id lower, const load& l) const;
  double message_bytes(stage_id lower, const load& l) const;
  /// A message without content on the same link.
  double empty_message_ms(stage_id lower) const;
  /// Bytes on one rank: FP16 weights, FP32 gradients, FP32 weights and two moments of Adam: 18
  /// bytes per parameter (Megatron without the distributed optimizer).
  double static_bytes(stage_id s) const;
  /// The all-reduce of a step's gradients over the replicas, after the slowest stage; 0 with one
  /// replica.
  double gradient_exchange_ms() const;

  const model& described() const { return model_; }
  const std::vector<std::uint32_t>& cuts() const { return cuts_; }
  const layout& arrangement() const { return layout_; }

 private:
  pipeline_cost(model m, const machine& on, layout l);

  /// Seconds on the link between stage `lower` and the next, with the ranks that share it.
  double link_s(stage_id lower, double bytes) const;

  model model_;
  machine on_;
  layout layout_;
  std::vector<part_kind> parts_;
  std::vector<std::uint32_t> cuts_;
};

/// The model of cost.preset on the machine of a job; null without a preset. Error: more stages than
/// the model has parts. The preset must exist.
result<std::shared_ptr<const pipeline_cost>> workload_of(const job::job& j);

}  // namespace rrfp::study
