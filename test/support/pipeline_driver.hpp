/// A whole pipeline without a clock: checked stages, the messages between them and the running
/// launches. The test says which event happens next, so any delay and any duration is reachable.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "stage_model.hpp"

namespace rrfp::testing {

struct pipeline_setup {
  pipeline_shape shape;
  std::uint32_t ranks = 1;
  std::uint32_t lookahead = 0;
  dispatch_mode mode = dispatch_mode::ready;
  memory_limit limit;
  std::vector<std::uint64_t> slot_bytes;  ///< the same on every stage; may be empty
  std::vector<hint_table> hints;          ///< by stage
  std::uint32_t weight_pieces = 1;
  std::uint32_t early_forwards = 0;
  std::uint32_t forwards_in_order = 0;  ///< bit s: on stage s
  /// The microbatches of a step before; 0: there was none. In ready mode it is complete; in order
  /// it is aborted, because its tables are no sequences.
  std::uint32_t microbatches_before = 0;

  checked_stage make(std::uint32_t stage) const { return {config(stage), hints_of(stage)}; }
  hints_of_shapes hints_of(std::uint32_t stage) const {
    return [hint = std::make_shared<hint_table>(hints[stage])](const pipeline_shape& of) {
      return of == hint->shape ? hint : std::make_shared<hint_table>(of);
    };
  }
  void begin(checked_stage& stage, step_id step) const {
    if (microbatches_before != 0) {
      stage.begin(step_id{2 * step.value()}, {}, weight_pieces, microbatches_before);
      if (mode == dispatch_mode::ready)
        complete(stage);
      else
        stage.abort();
    }
    stage.begin(step_id{2 * step.value() + 1}, slot_bytes, weight_pieces, shape.microbatches);
  }
  /// Runs the step before, whose inputs come as early as they can.
  void complete(checked_stage& stage) const;
  stage_config config(std::uint32_t stage) const {
    return {.shape = shape,
            .stage = stage_id{stage},
            .ranks = ranks,
            .lookahead = lookahead,
            .mode = mode,
            .limit = limit,
            .early_forwards = early_forwards,
            .forwards_in_order = (forwards_in_order >> stage & 1) != 0};
  }
};

/// An input in flight to one rank of a stage.
struct message {
  std::uint32_t stage;
  input_arrived what;

  bool operator==(const message&) const = default;
};

/// The message of a launch that ended on one rank, if any: F sends forward, B and BW send back.
inline std::optional<message> output_of(const pipeline_shape& shape, std::uint32_t stage,
                                        const launch& ended, rank_id rank) {
  const auto& t = ended.what;
  const auto vs = shape.virtual_stage(stage_id{stage}, t.chunk);
  const bool forward = t.kind == task_kind::forward;
  if (ended.pass == forward_pass::again || t.kind == task_kind::weight ||
      (forward ? shape.is_last(vs) : shape.is_first(vs)))
    return std::nullopt;
  const auto to = shape.at(virtual_stage_id{forward ? vs.value() + 1 : vs.value() - 1});
  const auto kind = forward ? task_kind::forward : task_kind::backward;
  return message{to.stage.value(), {kind, t.mb, to.chunk, rank}};
}

inline void pipeline_setup::complete(checked_stage& stage) const {
  auto of = shape;
  of.microbatches = microbatches_before;
  const auto s = stage.core().config().stage.value();
  const auto arrive = [&](task_kind kind, microbatch_id mb, std::uint32_t chunk, rank_id rank) {
    stage.arrive({kind, mb, chunk_id{chunk}, rank});
  };
  for (std::uint32_t i = 0; i < of.microbatches; ++i)
    for (std::uint32_t r = 0; r < ranks; ++r)
      arrive(task_kind::forward, microbatch_id{i}, 0, rank_id{r});
  for (stage.decide(); !stage.core().step_complete(); stage.decide()) {
    bool any = false;
    for (std::uint32_t r = 0; r < ranks; ++r) {
      if (!stage.model().can_finish(rank_id{r})) continue;
      any = true;
      const auto ended = stage.finish(rank_id{r});
      const auto& t = ended.what;
      const auto c = t.chunk.value();
      if (!output_of(of, s, ended, rank_id{r})) continue;
      // The other stages take no time: what was sent comes back at once.
      if (t.kind == task_kind::forward && c + 1 < of.chunks)
        arrive(task_kind::forward, t.mb, c + 1, rank_id{r});
      else if (t.kind == task_kind::forward)
        arrive(task_kind::backward, t.mb, c, rank_id{r});
      else if (c > 0)
        arrive(task_kind::backward, t.mb, c - 1, rank_id{r});
    }
    expect(any, "the step before goes on");
  }
}

class pipeline_driver {
 public:
  explicit pipeline_driver(const pipeline_setup& setup) : setup_(setup) {
    for (std::uint32_t s = 0; s < setup.shape.stages; ++s) stages_.push_back(setup.make(s));
  }

  /// Begins the step on every stage; the data of all microbatches is in flight to the first virtual
  /// stage.
  void begin_step(std::uint64_t step = 0) {
    for (auto& stage : stages_) setup_.begin(stage, step_id{step});
    messages_.clear();
    for (std::uint32_t i = 0; i < setup_.shape.microbatches; ++i)
      for (std::uint32_t r = 0; r < setup_.ranks; ++r)
        messages_.push_back({0, {task_kind::forward, microbatch_id{i}, chunk_id{0}, rank_id{r}}});
    launched_.assign(stages_.size(), {});
  }

  const std::vector<message>& messages() const { return messages_; }
  /// Delivers `messages()[at]` (the last message moves to its place); returns the stage.
  std::uint32_t deliver(std::size_t at) {
    const auto m = messages_[at];
    messages_[at] = messages_.back();
    messages_.pop_back();
    stages_[m.stage].arrive(m.what);
    return m.stage;
  }

  bool can_finish(std::uint32_t stage, std::uint32_t rank) const {
    return stages_[stage].model().can_finish(rank_id{rank});
  }
  void finish(std::uint32_t stage, std::uint32_t rank) {
    const auto ended = stages_[stage].finish(rank_id{rank});
    if (const auto sent = output_of(setup_.shape, stage, ended, rank_id{rank}))
      messages_.push_back(*sent);
  }

  std::span<const action> decide(std::uint32_t stage) {
    const auto actions = stages_[stage].decide();
    for (const auto& a : actions)
      if (const auto* l = std::get_if<launch>(&a); l != nullptr && l->ends_task())
        launched_[stage].push_back(l->what);
    return actions;
  }

  bool complete() const {
    for (const auto& stage : stages_)
      if (!stage.core().step_complete()) return false;
    return messages_.empty();
  }
  /// Every task of every stage was launched exactly once in this step.
  bool everything_launched_once() const {
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      auto got = launched_[s];
      auto wanted = setup_.hints[s].tasks();
      std::sort(got.begin(), got.end());
      std::sort(wanted.begin(), wanted.end());
      if (got != wanted) return false;
    }
    return true;
  }

  checked_stage& stage(std::uint32_t s) { return stages_[s]; }
  /// In the order of launching.
  const std::vector<task>& launched(std::uint32_t s) const { return launched_[s]; }
  const pipeline_setup& setup() const { return setup_; }

 private:
  pipeline_setup setup_;
  std::vector<checked_stage> stages_;
  std::vector<message> messages_;
  std::vector<std::vector<task>> launched_;
};

/// The same hint on every stage.
inline std::vector<hint_table> on_every_stage(const hint_table& hint) {
  return std::vector<hint_table>(hint.shape.stages, hint);
}

/// Hints that rank tasks by fixed sequences.
inline std::vector<hint_table> sequence_hints(const pipeline_shape& shape,
                                              const std::vector<sequence>& sequences) {
  std::vector<hint_table> hints;
  for (const auto& order : sequences) hints.push_back(sequence_hint(shape, order));
  return hints;
}

}  // namespace rrfp::testing
