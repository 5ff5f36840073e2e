/// Writes the order of one stage task by task, so that a schedule's source reads like its
/// definition.
///
/// In every schedule here, each kind of task takes the microbatches of a chunk in ascending order,
/// so "the next F of chunk 1" identifies a task. A fixed schedule has one builder per stage.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <rrfp/core/placement.hpp>
#include <rrfp/core/policy.hpp>

namespace rrfp::policies {

inline constexpr chunk_id first_chunk{0};
inline constexpr chunk_id second_chunk{1};

class sequence_builder {
 public:
  /// `chunks`: number of chunks of the stage.
  explicit sequence_builder(std::uint32_t chunks) : forwards_(chunks), backwards_(chunks) {}

  void forward(chunk_id chunk = first_chunk);
  /// The input gradient alone; its W joins the queue of due W.
  void backward(chunk_id chunk = first_chunk);
  void backward_weight(chunk_id chunk = first_chunk);
  /// Emits the oldest due W, of this chunk or of any; does nothing if none is due.
  void weight(chunk_id chunk);
  void weight();
  /// Emits all due W, oldest first.
  void remaining_weights();

  /// Number of F written for the chunk.
  std::uint32_t forwards(chunk_id chunk = first_chunk) const { return forwards_[chunk.value()]; }

  sequence take() && { return std::move(order_); }

 private:
  void emit(task_kind kind, std::uint32_t mb, chunk_id chunk) {
    order_.push_back({kind, microbatch_id{mb}, chunk});
  }

  sequence order_;
  std::vector<std::uint32_t> forwards_;   ///< by chunk
  std::vector<std::uint32_t> backwards_;  ///< by chunk, B and BW
  std::vector<task> due_;                 ///< W whose B is written, oldest first
};

}  // namespace rrfp::policies
