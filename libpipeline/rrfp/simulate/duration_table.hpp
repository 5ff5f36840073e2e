/// A cost model with one duration per task and message, as recorded from a run.
///
/// CSV with the header `step,stage,chunk,mb,kind,ms`. The kinds F, B, W and BW are tasks. The kinds
/// `act` and `grad` are the messages that carry the input of F and of B or BW; stage and chunk name
/// the receiver. Steps count from 1. Rows may come in any order; empty lines are skipped.
///
///   step,stage,chunk,mb,kind,ms
///   1,1,0,3,F,1.25
///   1,1,0,3,act,0.08
///
/// A message without a row takes no time. A task without a row is an error before the run, unless
/// other rows determine it: BW = B + W.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <rrfp/simulate/simulator.hpp>

namespace rrfp::simulate {

class duration_table final : public cost_model {
 public:
  /// `shape` limits the indices that a row may name and defines the routes of messages.
  explicit duration_table(const pipeline_shape& shape);

  /// Errors: an unreadable file; `file:line: expected ..., got ...`.
  static result<duration_table> read(const std::string& file, const pipeline_shape& shape);
  /// `file` names the text in errors.
  static result<duration_table> parse(std::string_view text, std::string_view file,
                                      const pipeline_shape& shape);

  /// Replaces an earlier value.
  void set_compute(step_id step, stage_id stage, const task& t, nanoseconds duration);
  /// The message that carries the input of `t` (F or B) to `to`. Replaces an earlier value.
  void set_link(step_id step, virtual_stage_id to, const task& t, nanoseconds duration);

  /// Rows sorted by step, stage, chunk, microbatch and kind. parse() restores every nanosecond.
  std::string text() const;

  /// Number of steps that the rows cover: the largest step + 1; 0 without rows.
  std::uint64_t steps() const;
  /// The duration of the task, derived from other rows if necessary; nothing if no row determines
  /// it.
  std::optional<nanoseconds> duration_of(step_id step, stage_id stage, const task& t) const;

  /// A task that covers() would report as missing is a programmer's error.
  nanoseconds compute(step_id step, stage_id stage, const task& t) const override;
  nanoseconds link(step_id step, virtual_stage_id to, const task& t) const override;
  /// The error names the first task of the plan that has no duration.
  status covers(const plan& p) const override {
    return covers(p, [](step_id, task t) { return t; });
  }
  /// The same for a plan whose tasks have the durations of other ones, which `loaded` returns.
  status covers(const plan& p, const std::function<task(step_id, task)>& loaded) const;

 private:
  enum class row_kind : std::uint8_t { forward, backward, weight, backward_weight, act, grad };
  static constexpr std::string_view row_names[] = {"F", "B", "W", "BW", "act", "grad"};

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
    key row_id;
    nanoseconds duration = 0;
  };
  static row_kind row_kind_of(task_kind kind) { return static_cast<row_kind>(kind); }

  /// The error says what was expected and what came.
  result<row> parse_row(std::string_view line) const;
  key link_key(step_id step, virtual_stage_id to, const task& t) const;
  const nanoseconds* find(const key& k) const;

  pipeline_shape shape_;
  std::unordered_map<key, nanoseconds, key_hash> rows_;
};

/// Extra time per task and message, added to every other cost. A task or message without a row gets
/// no extra time; a BW without a row gets the sum of its B and its W. Steps past the end of the
/// table repeat it from the start: step modulo (largest step listed + 1). Thread-safe.
class given_delays {
 public:
  explicit given_delays(duration_table table) : table_(std::move(table)), steps_(table_.steps()) {}

  nanoseconds compute(step_id step, stage_id stage, const task& t) const;
  /// As cost_model::link().
  nanoseconds link(step_id step, virtual_stage_id to, const task& t) const;

 private:
  step_id listed(step_id step) const;

  duration_table table_;
  std::uint64_t steps_;
};

/// Records the durations of a run, so that it can be simulated again.
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
  /// End of F and of B (or BW) by (virtual stage, microbatch): the time at which their messages
  /// left.
  std::vector<nanoseconds> forward_ended_;
  std::vector<nanoseconds> backward_ended_;
  std::vector<nanoseconds> in_pieces_;  ///< by virtual stage: of a W that runs in pieces
};

}  // namespace rrfp::simulate
