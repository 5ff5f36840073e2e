#include <rrfp/core/sequence.hpp>

#include <algorithm>
#include <string>

namespace rrfp {

namespace {

std::string at_stage(std::uint32_t stage, const task& t) {
  return to_string(t) + " of stage " + std::to_string(stage);
}

/// One mark for each task of one stage.
class task_marks {
 public:
  explicit task_marks(const pipeline_shape& shape) : shape_(shape), done_(shape.task_indices()) {}

  bool is_foreign(const task& t) const {
    return t.mb.value() >= shape_.microbatches || t.chunk.value() >= shape_.chunks;
  }
  bool test(const task& t) const { return done_[shape_.index(t)]; }
  bool test_weight(microbatch_id mb, chunk_id chunk) const {
    return test({task_kind::weight, mb, chunk});
  }
  void set(const task& t) {
    done_[shape_.index(t)] = true;
    if (has_weight(t.kind)) done_[shape_.index({task_kind::weight, t.mb, t.chunk})] = true;
  }

 private:
  pipeline_shape shape_;
  std::vector<bool> done_;
};

/// Executes the sequences without a clock, as far as possible.
class dry_run {
 public:
  dry_run(const pipeline_shape& shape, std::span<const sequence> sequences)
      : shape_(shape),
        sequences_(sequences),
        done_(shape.stages, task_marks{shape}),
        next_(shape.stages, 0) {}

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::uint32_t s = 0; s < shape_.stages; ++s) {
        while (next_[s] < sequences_[s].size() && !blocker(s)) {
          done_[s].set(sequences_[s][next_[s]++]);
          moved = true;
        }
      }
    }
  }

  bool ended() const {
    for (std::uint32_t s = 0; s < shape_.stages; ++s)
      if (next_[s] < sequences_[s].size()) return false;
    return true;
  }

  /// Follows the waits from the first stalled stage until a stage repeats.
  std::string cycle() const {
    std::uint32_t s = 0;
    while (next_[s] == sequences_[s].size()) ++s;
    std::vector<std::uint32_t> path;
    while (std::find(path.begin(), path.end(), s) == path.end()) {
      path.push_back(s);
      s = blocker(s)->stage;
    }
    path.erase(path.begin(), std::find(path.begin(), path.end(), s));
    std::string text;
    for (const auto stage : path) {
      const auto wanted = *blocker(stage);
      if (!text.empty()) text += "; ";
      text += "stage " + std::to_string(stage) + " stops at " + to_string(head(stage)) +
              " (position " + std::to_string(next_[stage]) + "), which needs " +
              at_stage(wanted.stage, wanted.required);
    }
    return text;
  }

 private:
  struct need {
    std::uint32_t stage;
    task required;
  };

  const task& head(std::uint32_t s) const { return sequences_[s][next_[s]]; }

  /// The task that the head of stage s waits for.
  std::optional<need> blocker(std::uint32_t s) const {
    const auto& t = head(s);
    const auto unless_done = [&](std::uint32_t stage, const task& wanted) -> std::optional<need> {
      if (done_[stage].test(wanted)) return std::nullopt;
      return need{stage, wanted};
    };
    if (t.kind == task_kind::weight) return unless_done(s, {task_kind::backward, t.mb, t.chunk});
    if (is_backward(t.kind))
      if (const auto own = unless_done(s, {task_kind::forward, t.mb, t.chunk})) return own;
    const auto from = shape_.producer_of(stage_id{s}, t);
    return from ? unless_done(from->stage.value(), from->what) : std::nullopt;
  }

  const pipeline_shape shape_;
  const std::span<const sequence> sequences_;
  std::vector<task_marks> done_;
  std::vector<std::size_t> next_;
};

/// Has its own table of positions, so that rank() is a lookup.
class sequence_policy final : public policy {
 public:
  sequence_policy(std::string_view name, const sequence& order) : name_(name) {
    for (const auto& t : order) {
      shape_.microbatches = std::max(shape_.microbatches, t.mb.value() + 1);
      shape_.chunks = std::max(shape_.chunks, t.chunk.value() + 1);
    }
    rank_.assign(shape_.task_indices(), ~std::uint64_t{0});
    fused_.assign(std::size_t{shape_.microbatches} * shape_.chunks, true);
    for (std::size_t at = 0; at < order.size(); ++at) {
      const auto& t = order[at];
      rank_[shape_.index(t)] = at;
      if (t.kind == task_kind::backward) fused_[shape_.index(t.mb, t.chunk)] = false;
    }
  }

  std::string_view name() const override { return name_; }
  task_kind backward_of(microbatch_id mb, chunk_id chunk) const override {
    return fused_[shape_.index(mb, chunk)] ? task_kind::backward_weight : task_kind::backward;
  }
  std::uint32_t lanes() const override { return 1; }
  std::uint32_t lane_of(const task&) const override { return 0; }
  std::uint64_t rank(const task& t) const override { return rank_[shape_.index(t)]; }
  lane_order order(const stage_view&) const override { return {{0}, 1}; }

 private:
  std::string name_;
  pipeline_shape shape_;  ///< with the chunks and microbatches of the sequence
  std::vector<std::uint64_t> rank_;
  std::vector<bool> fused_;
};

}  // namespace

std::unique_ptr<policy> make_sequence_policy(std::string_view name, sequence order) {
  return std::make_unique<sequence_policy>(name, order);
}

std::unique_ptr<policy> policy_set::make(stage_id stage) const {
  if (make_) return make_(stage);
  RRFP_CHECK(stage.value() < sequences_.size(), "the stage must belong to the schedule");
  return make_sequence_policy(name_, sequences_[stage.value()]);
}

status check_sequence(const pipeline_shape& shape, stage_id stage, const sequence& order) {
  task_marks seen{shape};
  for (const auto& t : order) {
    if (seen.is_foreign(t))
      return error{at_stage(stage.value(), t) + " does not exist: the job has " +
                   std::to_string(shape.microbatches) + " microbatches and " +
                   std::to_string(shape.chunks) + " chunks"};
    if (seen.test(t) || (t.kind == task_kind::backward_weight && seen.test_weight(t.mb, t.chunk)))
      return error{at_stage(stage.value(), t) + " occurs twice"};
    seen.set(t);
  }
  constexpr task_kind by_row[] = {task_kind::forward, task_kind::backward, task_kind::weight};
  for (const auto kind : by_row)
    for (std::uint32_t c = 0; c < shape.chunks; ++c)
      for (std::uint32_t mb = 0; mb < shape.microbatches; ++mb)
        if (const task t{kind, microbatch_id{mb}, chunk_id{c}}; !seen.test(t))
          return error{at_stage(stage.value(), t) + " is missing"};
  return success();
}

status check_sequences(const pipeline_shape& shape, std::span<const sequence> sequences) {
  if (auto valid = shape.validate(); !valid) return valid;
  if (sequences.size() != shape.stages)
    return error{"expected one sequence for each of " + std::to_string(shape.stages) +
                 " stages, got " + std::to_string(sequences.size())};
  for (std::uint32_t s = 0; s < shape.stages; ++s)
    if (auto complete = check_sequence(shape, stage_id{s}, sequences[s]); !complete)
      return complete;
  dry_run run{shape, sequences};
  run.run();
  if (run.ended()) return success();
  return error{"the order can never complete; cycle of waits: " + run.cycle()};
}

status check_slots(const pipeline_shape& shape, stage_id stage, const sequence& order,
                   const memory_limit& limit, std::span<const std::uint64_t> slot_bytes) {
  memory_slots slots{limit, shape.microbatches, shape.chunks};
  slots.reset(slot_bytes);
  task_marks due{shape};
  std::vector<std::uint32_t> fold_next(shape.chunks);
  const auto refused = [&](const task& t, const std::string& which) {
    return error{at_stage(stage.value(), t) +
                 " exceeds the memory limit: the sequence needs more than " + which};
  };
  for (const auto& t : order) {
    if (t.kind == task_kind::forward) {
      if (slots.must_take(t.mb)) {
        const auto bound = slots.bound_on_fitting(t.mb);
        if (bound == memory_bound::activations)
          return refused(t, std::to_string(limit.activations) + " activations");
        if (bound == memory_bound::slots) return refused(t, std::to_string(limit.slots) + " slots");
        if (bound == memory_bound::bytes) return refused(t, std::to_string(limit.bytes) + " bytes");
        slots.take(t.mb);
      }
      slots.activation_begins();
      continue;
    }
    if (!has_weight(t.kind)) continue;
    due.set({task_kind::weight, t.mb, t.chunk});
    auto& next = fold_next[t.chunk.value()];
    for (; next < shape.microbatches && due.test_weight(microbatch_id{next}, t.chunk); ++next)
      slots.activation_ends(microbatch_id{next});
  }
  return success();
}

sequence tasks_of(const policy& hint, const pipeline_shape& shape) {
  sequence tasks;
  for (chunk_id chunk; chunk.value() < shape.chunks; chunk = chunk_id{chunk.value() + 1})
    for (std::uint32_t i = 0; i < shape.microbatches; ++i) {
      const microbatch_id mb{i};
      const auto backward = hint.backward_of(mb, chunk);
      RRFP_CHECK(is_backward(backward), "backward_of must return B or BW");
      tasks.push_back({task_kind::forward, mb, chunk});
      tasks.push_back({backward, mb, chunk});
      if (backward == task_kind::backward) tasks.push_back({task_kind::weight, mb, chunk});
    }
  return tasks;
}

sequence obeyed_order(const policy& hint, const pipeline_shape& shape) {
  auto order = tasks_of(hint, shape);
  const auto key = [&](const task& t) { return std::tuple{hint.rank(t), t.mb, t.chunk}; };
  std::ranges::sort(order, {}, key);
  return order;
}

}  // namespace rrfp
