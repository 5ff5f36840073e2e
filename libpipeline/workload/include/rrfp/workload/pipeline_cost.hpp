/// What every stage of a pipeline takes for a microbatch, from first principles.
///
/// The model is a row of parts: encoder layers, projector, embedding, decoder layers, head. A part
/// takes, in F, B and W each, the longer of its FLOPs at the device's rate and its bytes at the
/// memory's (machine.hpp), divided by tp; a layer adds two all-reduces of its output over the tp
/// ranks in F and two in B, not hidden (Megatron without sequence parallelism). Bytes: F and B read
/// the weights and write and read activations once; W reads activations and reads and writes FP32
/// gradients.
///
/// Stages are runs of parts, encoder first, cut so that the dearest stage is as cheap as can be at
/// the mean load: what a framework that balances by a profile does; the paper does not say.
/// Nothing is tuned by workload.
#pragma once

#include <cstdint>
#include <vector>

#include <rrfp/schedule/ids.hpp>
#include <rrfp/schedule/result.hpp>
#include <rrfp/workload/machine.hpp>
#include <rrfp/workload/model.hpp>

namespace rrfp::workload {

struct part_cost {
  double forward_ms = 0;
  double backward_ms = 0;
  double weight_ms = 0;
  /// On each tp rank, from F until W is done.
  double activation_bytes = 0;

  double all_ms() const { return forward_ms + backward_ms + weight_ms; }
  part_cost& operator+=(const part_cost& other);
};

enum class part_kind : std::uint8_t { encoder_layer, projector, embedding, decoder_layer, head };

/// The parts of a model in their order.
std::vector<part_kind> parts_of(const model& m);
/// Of one part. On one rank of tp.
part_cost cost_of(const model& m, part_kind part, const load& l, std::uint32_t tp,
                  const machine& on);
/// A tied head counts again: its stage holds a copy.
std::uint64_t parameters_of(const model& m, part_kind part);

/// First part of each stage, and one past the last part of all: stages + 1 numbers that rise. Such
/// that the largest sum of a stage is smallest; every stage gets a part. `costs.size() >= stages`.
std::vector<std::uint32_t> cut_evenly(const std::vector<double>& costs, std::uint32_t stages);

struct layout {
  std::uint32_t stages = 1;
  std::uint32_t tp = 1;
  std::uint32_t replicas = 1;
  /// Samples in a microbatch.
  std::uint32_t samples = 1;
  /// Images of a microbatch for which stages are cut evenly.
  std::uint32_t mean_images = 0;
};

/// Thread-safe. One chunk a stage.
class pipeline_cost {
 public:
  /// Errors: more stages than the model has parts; a machine out of range.
  static result<pipeline_cost> make(model m, machine on, layout where);

  /// Of a microbatch with so many images.
  const part_cost& stage(stage_id s, std::uint32_t images) const;
  /// Of the tensor between stage `lower` and the next one, either way: activation and gradient
  /// have the same size.
  double message_ms(stage_id lower, std::uint32_t images) const;
  double message_bytes(stage_id lower, std::uint32_t images) const;
  /// On one rank: FP16 weights, FP32 gradients, FP32 weights and two moments of Adam: 18 bytes a
  /// parameter (Megatron without the distributed optimizer).
  double static_bytes(stage_id s) const;
  /// The all-reduce of a step's gradients over the replicas, after the slowest stage; 0 with one.
  double gradient_exchange_ms() const;

  const std::vector<std::uint32_t>& cuts() const { return cuts_; }
  const machine& on() const { return on_; }
  const layout& where() const { return where_; }

  /// Costs are tabled up to so many images a sample.
  static constexpr std::uint32_t images_max = 64;

 private:
  pipeline_cost(model m, machine on, layout where);

  /// The link between two neighbouring stages, and how many ranks share it.
  double link_s(stage_id lower, double bytes) const;

  model model_;
  machine on_;
  layout where_;
  std::vector<part_kind> parts_;
  std::vector<std::uint32_t> cuts_;
  /// By images * stages + stage.
  std::vector<part_cost> table_;
};

}  // namespace rrfp::workload
