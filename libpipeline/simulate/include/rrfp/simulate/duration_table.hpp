/// Every duration given task by task: the cost model of recorded runs.
///
/// CSV with the header `step,stage,chunk,mb,kind,ms`. Kinds F, B, W and BW are tasks; `act` and
/// `grad` are the messages that bring the input of F and of B or BW, and stage and chunk name the
/// receiver. Rows come in any order; empty lines are skipped.
///
///   step,stage,chunk,mb,kind,ms
///   0,1,0,3,F,1.25
///   0,1,0,3,act,0.08
///
/// A missing message takes no time; a missing task is an error before the run, unless it can be
/// told from the others: BW = B + W.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <rrfp/simulate/simulator.hpp>

namespace rrfp::simulate {

class duration_table final : public cost_model {
 public:
  /// The shape bounds what a row may name and tells where messages go.
  explicit duration_table(const pipeline_shape& shape);

  /// Errors: an unreadable file; `file:line: expected ..., got ...`.
  static result<duration_table> read(const std::string& file, const pipeline_shape& shape);
  /// `file` is what errors call the text.
  static result<duration_table> parse(std::string_view text, std::string_view file,
                                      const pipeline_shape& shape);

  /// Replaces what was known.
  void set_compute(step_id step, stage_id stage, const task& what, nanoseconds duration);
  /// Of the message that brings the input of `what` (F or B) to `to`.
  void set_link(step_id step, virtual_stage_id to, const task& what, nanoseconds duration);

  /// Sorted by step, stage, chunk, microbatch and kind; reads back to the nanosecond.
  std::string text() const;

  /// Steps that the rows speak of: the largest + 1, but never past the largest number; 0 without
  /// rows.
  std::uint64_t steps() const;
  /// What the task takes, told from other rows if need be; nothing if no row tells.
  std::optional<nanoseconds> duration_of(step_id step, stage_id stage, const task& what) const;

  /// Asking for a task that covers() would miss is a programmer's error.
  nanoseconds compute(step_id step, stage_id stage, const task& what) const override;
  nanoseconds link(step_id step, virtual_stage_id to, const task& what) const override;
  /// The error names the first task of the plan without a duration.
  status covers(const plan& what) const override;

 private:
  enum class row_kind : std::uint8_t { forward, backward, weight, backward_weight, act, grad };
  static constexpr int row_kinds = 6;
  static constexpr std::string_view row_names[row_kinds] = {"F", "B", "W", "BW", "act", "grad"};

  struct key {
    std::uint64_t step = 0;
    std::uint32_t stage = 0;
    std::uint32_t chunk = 0;
    std::uint32_t mb = 0;
    row_kind kind = row_kind::forward;

    auto operator<=>(const key&) const = default;
  };
  struct key_hash {
    std::size_t operator()(const key& k) const noexcept;
  };
  struct row {
    key where;
    nanoseconds duration = 0;
  };
  static row_kind row_kind_of(task_kind kind) { return static_cast<row_kind>(kind); }

  /// The error says what was expected and what came.
  result<row> parse_row(std::string_view line) const;
  const nanoseconds* find(const key& k) const;

  pipeline_shape shape_;
  std::unordered_map<key, nanoseconds, key_hash> rows_;
};

/// Collects the durations of a run, so that it can be told again.
class duration_recorder final : public observer {
 public:
  explicit duration_recorder(const pipeline_shape& shape);

  const duration_table& table() const { return table_; }

  void on_event(stage_id stage, nanoseconds at, const event& e) override;
  void on_task(const task_span& ran) override;

 private:
  void on_arrival(stage_id stage, nanoseconds at, const input_arrived& e);
  std::size_t index(virtual_stage_id vs, microbatch_id mb) const;

  pipeline_shape shape_;
  duration_table table_;
  step_id step_;
  /// When F and B (or BW) of (virtual stage, microbatch) ended: what their messages left at.
  std::vector<nanoseconds> forward_ended_;
  std::vector<nanoseconds> backward_ended_;
};

}  // namespace rrfp::simulate
