#include "find_tasks.hpp"

#include <algorithm>
#include <map>
#include <ranges>
#include <tuple>
#include <unordered_map>

#include <fmt/format.h>

namespace rrfp::foreign {

namespace {

/// The records that begin in [begin, end).
template <class Record>
auto within_time(const std::vector<Record>& list, nanoseconds begin, nanoseconds end) {
  const auto from = [&](nanoseconds at) {
    return std::ranges::lower_bound(list, at, {}, &Record::begin);
  };
  return std::ranges::subrange{from(begin), from(std::max(begin, end))};
}

/// The last of these ordered times up to `at`; 0: none.
nanoseconds last_up_to(const std::vector<nanoseconds>& times, nanoseconds at) {
  const auto after = std::upper_bound(times.begin(), times.end(), at);
  return after == times.begin() ? 0 : *std::prev(after);
}

/// The end of the last message that was sent, or received, by a call in `posted`.
std::optional<nanoseconds> message_of(const rank_trace& trace, const interval& posted,
                                      bool is_send) {
  std::optional<nanoseconds> end;
  for (const auto& t : within_time(trace.transfers, posted.begin, posted.end))
    if (t.is_send == is_send) end = std::max(end.value_or(t.end), t.end);
  return end;
}

/// Whether the rank does nothing until a message that it sends is on its way: DeepSpeed does so.
bool waits_for_sends(const rank_trace& trace) {
  return std::ranges::none_of(trace.posts, [&](const auto& p) {
    const auto end = p.is_send ? message_of(trace, p, true) : std::nullopt;
    return end && !(within_time(trace.operators, p.end, *end).empty() &&
                    within_time(trace.posts, p.end, *end).empty());
  });
}

class by_names {
 public:
  explicit by_names(const rank_trace& trace) : trace_(trace) {
    // Beside the names of torch's runtime, those of GPipe are a program's own.
    has_stages_ = std::ranges::any_of(
        trace.named, [](const auto& r) { return r.kind && r.virtual_stage != unnamed; });
    for (const auto& r : trace.named)
      if (!r.kind) receives_[{r.virtual_stage, r.is_forward, r.microbatch}].push_back(r);
  }

  std::vector<found_task> find() const {
    std::vector<found_task> tasks;
    for (const auto& r : trace_.named) {
      if (!r.kind || (has_stages_ && r.virtual_stage == unnamed)) continue;
      found_task t{r, *r.kind, r.virtual_stage, r.microbatch, arrival_of(r)};
      if (t.arrived) t.begin = std::clamp(*t.arrived, t.begin, t.end);
      // Up to its first operator the schedule prepares the task. A whole backward begins before its
      // own: autograd starts its engine.
      const auto operators = within_time(trace_.operators, t.begin, t.end);
      if (!operators.empty() && t.kind != task_kind::backward_weight)
        t.begin = operators.front().begin;
      // GPipe sends within the interval, after the task.
      if (r.virtual_stage == unnamed) {
        const auto posts = within_time(trace_.posts, t.begin, t.end);
        const auto send = std::ranges::find_if(posts, &message_span::is_send);
        if (send != posts.end()) t.end = send->begin;
      }
      tasks.push_back(t);
    }
    return tasks;
  }

 private:
  std::optional<nanoseconds> arrival_of(const marked_range& r) const {
    if (r.kind == task_kind::weight) return std::nullopt;
    if (r.virtual_stage == unnamed) return message_of(trace_, r, false);
    const auto found = receives_.find({r.virtual_stage, r.is_forward, r.microbatch});
    if (found == receives_.end()) return std::nullopt;
    // The last one before the task; the same message comes in every step.
    const marked_range* posted = nullptr;
    for (const auto& p : found->second)
      if (p.begin <= r.begin) posted = &p;
    return posted == nullptr ? std::nullopt : message_of(trace_, *posted, false);
  }

  const rank_trace& trace_;
  bool has_stages_ = false;
  std::map<std::tuple<std::uint32_t, bool, std::uint32_t>, std::vector<marked_range>> receives_;
};

std::vector<found_task> by_functions(const rank_trace& trace) {
  std::vector<found_task> tasks;
  const bool has_weights = std::ranges::any_of(
      trace.functions, [](const auto& r) { return r.kind == task_kind::weight; });
  for (const auto& r : trace.functions) {
    // A function may call one of the same name.
    if (!tasks.empty() && r.begin < tasks.back().end) continue;
    auto kind = *r.kind;
    if (has_weights && kind == task_kind::backward_weight) kind = task_kind::backward;
    tasks.push_back({r, kind, unnamed, unnamed, std::nullopt});
  }
  return tasks;
}

/// See find_tasks.hpp.
class by_operators {
 public:
  explicit by_operators(const rank_trace& trace)
      : trace_(trace), waits_for_sends_(waits_for_sends(trace)) {
    for (const auto& p : trace.posts) edges_.push_back(p.end);
    for (const auto& t : trace.transfers) edges_.push_back(t.end);
    edges_.insert(edges_.end(), trace.splits.begin(), trace.splits.end());
    std::ranges::sort(edges_);
  }

  std::vector<found_task> find() {
    std::vector<found_task> tasks;
    std::size_t link = 0;
    for (auto& b : backwards()) {
      auto first = b.begin;
      nanoseconds last = 0;
      for (; link < trace_.links.size() && trace_.links[link].backward <= b.end; ++link) {
        if (trace_.links[link].backward < b.begin) continue;
        first = std::min(first, trace_.links[link].forward);
        last = std::max(last, trace_.links[link].forward);
      }
      // Without a forward it is none of the pipeline's.
      if (last == 0) continue;
      tasks.push_back(forward_at(first, last));
      tasks.push_back(b);
    }
    std::ranges::stable_sort(tasks, {}, &found_task::begin);
    return separate(std::move(tasks));
  }

 private:
  /// Runs of autograd's operators without a message or another operator between them.
  std::vector<found_task> backwards() {
    std::vector<found_task> found;
    bool open = false;
    auto post = trace_.posts.begin();
    nanoseconds before = 0;
    for (const auto& o : trace_.operators) {
      for (; post != trace_.posts.end() && post->begin < o.begin; ++post) open = false;
      if (!o.is_autograd) {
        open = false;
        before = o.begin;
        continue;
      }
      if (open) {
        found.back().end = std::max(found.back().end, o.end);
        continue;
      }
      open = true;
      found_task b{o, task_kind::backward_weight, unnamed, unnamed, std::nullopt};
      b.begin = begin_of(o.begin, before);
      found.push_back(b);
    }
    return found;
  }

  /// A backward begins when its message has come, or with its first operator.
  nanoseconds begin_of(nanoseconds first, nanoseconds operator_before) const {
    const auto edge = edge_before(first);
    return edge > operator_before ? edge : first;
  }

  /// The last end of a message, or of a split of the batch, up to `at`; 0: none, or the optimizer
  /// ran since. torch's 1F1B waits for a send only together with a receive, which it posts after
  /// it.
  nanoseconds edge_before(nanoseconds at) const {
    const auto post = std::ranges::upper_bound(trace_.posts, at, {}, &message_span::begin);
    if (!waits_for_sends_ && post != trace_.posts.begin() && std::prev(post)->is_send)
      return std::prev(post)->end;
    const auto edge = last_up_to(edges_, at);
    return last_up_to(trace_.updates, at) > edge ? 0 : edge;
  }

  found_task forward_at(nanoseconds first, nanoseconds last) const {
    found_task f;
    const auto edge = edge_before(first);
    f.begin = edge == 0 ? first : edge;
    const auto next = std::ranges::upper_bound(trace_.posts, last, {}, &message_span::begin);
    const auto until = next == trace_.posts.end() ? last : next->begin;
    // The operators up to the next message, or to the backward of the same stage.
    auto o = std::ranges::lower_bound(trace_.operators, last, {}, &operator_span::begin);
    if (o != trace_.operators.begin() && (o == trace_.operators.end() || o->begin > last)) --o;
    f.end = last;
    for (; o != trace_.operators.end() && o->begin <= std::max(until, last) && !o->is_autograd; ++o)
      f.end = std::max(f.end, o->end);
    const bool is_last = o == trace_.operators.end() || o->begin > until;
    if (is_last && next != trace_.posts.end() && until > f.end + schedule_time &&
        !waits_between(f.end, until))
      f.end = until;
    return f;
  }

  /// Whether a message that was sent before ends between: the rank may have waited for that.
  bool waits_between(nanoseconds begin, nanoseconds end) const {
    const auto after = std::upper_bound(edges_.begin(), edges_.end(), begin);
    return after != edges_.end() && *after <= end;
  }

  /// Tasks of one rank do not overlap: a forward that follows a backward at once, without a message
  /// between, begins at its end.
  static std::vector<found_task> separate(std::vector<found_task> tasks) {
    for (std::size_t i = 1; i < tasks.size(); ++i) {
      auto& before = tasks[i - 1];
      auto& t = tasks[i];
      if (t.begin >= before.end) continue;
      if (before.kind == task_kind::forward)
        before.end = t.begin;
      else
        t.begin = std::min(before.end, t.end);
    }
    return tasks;
  }

  /// What a schedule at most takes between a task and a message. More than that without an operator
  /// is the task's.
  static constexpr nanoseconds schedule_time = 500'000;

  const rank_trace& trace_;
  bool waits_for_sends_;
  std::vector<nanoseconds> edges_;
};

/// Replaces the times on the host by those of the kernels that it launched.
void move_to_device(const rank_trace& trace, std::vector<found_task>& tasks) {
  std::unordered_map<std::uint64_t, const kernel_span*> kernels;
  for (const auto& k : trace.kernels)
    if (!k.is_collective && k.correlation != 0) kernels.emplace(k.correlation, &k);
  for (auto& t : tasks) {
    auto l = std::ranges::lower_bound(trace.launches, t.begin, {}, &kernel_launch::at);
    std::optional<interval> on_device;
    for (; l != trace.launches.end() && l->at < t.end; ++l) {
      const auto found = kernels.find(l->correlation);
      if (found == kernels.end()) continue;
      const auto& k = *found->second;
      if (!on_device) on_device = k;
      on_device->begin = std::min(on_device->begin, k.begin);
      on_device->end = std::max(on_device->end, k.end);
    }
    if (on_device) static_cast<interval&>(t) = *on_device;
    t.arrived = std::nullopt;
  }
}

/// The message that a task waited for is the last one that was received since the task before, if
/// the names do not say it.
void find_arrivals(const rank_trace& trace, std::vector<found_task>& tasks) {
  std::vector<nanoseconds> received;
  for (const auto& t : trace.transfers)
    if (!t.is_send) received.push_back(t.end);
  std::ranges::sort(received);
  nanoseconds last = 0;
  for (auto& t : tasks) {
    const auto arrived = last_up_to(received, t.begin);
    if (!t.arrived && t.kind != task_kind::weight && arrived > last) t.arrived = arrived;
    last = t.end;
  }
}

/// In order, without overlap.
void tidy(std::vector<found_task>& tasks) {
  std::ranges::stable_sort(tasks, {}, &found_task::begin);
  nanoseconds last = 0;
  for (auto& t : tasks) {
    t.begin = std::max(t.begin, last);
    t.end = std::max(t.begin, t.end);
    last = t.end;
  }
}

}  // namespace

result<rank_tasks> find_tasks(const rank_trace& trace) {
  rank_tasks found{trace.file, trace.rank.value_or(0), trace.pipeline, {}};
  if (trace.overlapped > 0)
    return error{fmt::format(
        "{}: expected each task with a time of its own, got {} pairs of DualPipeV that overlap",
        trace.file, trace.overlapped)};
  if (std::ranges::any_of(trace.named, [](const auto& r) { return r.kind.has_value(); })) {
    found.tasks = by_names{trace}.find();
  } else if (!trace.functions.empty()) {
    found.by = found_by::functions;
    found.tasks = by_functions(trace);
  } else {
    found.by = found_by::operators;
    if (!trace.posts.empty()) found.tasks = by_operators{trace}.find();
  }
  if (found.tasks.empty())
    return error{fmt::format(
        "{}: expected tasks of a pipeline (PP:0F0, Forward 0, or c10d::send between autograd's "
        "operators), got none: record CPU activities of a step of torch.distributed.pipelining, "
        "for other frameworks with_stack=True",
        trace.file)};
  found.on_device = !trace.kernels.empty() && !trace.launches.empty();
  if (found.on_device) move_to_device(trace, found.tasks);
  tidy(found.tasks);
  if (!found.on_device && found.by != found_by::names) find_arrivals(trace, found.tasks);
  return found;
}

}  // namespace rrfp::foreign
