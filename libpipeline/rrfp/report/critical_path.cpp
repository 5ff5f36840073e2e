#include <rrfp/report/critical_path.hpp>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <unordered_map>

namespace rrfp::report {

namespace {

class path_finder {
 public:
  explicit path_finder(const timeline& t) : timeline_(t), run_(*t.run) {
    for (const auto& l : t.lanes) {
      const traced_task* before = nullptr;
      for (const auto* task : l.tasks) {
        before_[task] = before;
        before = task;
        ++tasks_;
        keep_latest(launches_[{task->replica, task->stage, task->seq}], task);
        if (task->what.kind != task_kind::weight)
          keep_latest(outputs_[output_of(run_.shape, *task)], task);
        keep_latest(last_of_step_[task->step], task);
      }
    }
    for (const auto& w : run_.waits)
      if (ends_with_an_arrival(w.what.why)) woken_.emplace(w.replica, w.stage, w.end);
    path_.by_stage.resize(run_.shape.stages);
  }

  critical_path find() {
    auto step = timeline_.steps.size();
    const auto* task = last_of_step_.at(timeline_.steps[--step].step);
    cursor_ = timeline_.end();
    // An inconsistent trace could contain a cycle.
    for (std::size_t hops = 0; task != nullptr && hops < tasks_; ++hops) {
      spend(path_.step_begin, task->end);
      const auto [from, why] = predecessor_of(*task);
      path_.tasks.push_back({task, why});
      compute(*task);
      switch (why) {
        case predecessor::sender:
          spend(path_.launch_gap, task->decided);
          spend(path_.transfer, from->end);
          break;
        case predecessor::previous_launch: spend(path_.launch_gap, from->end); break;
        case predecessor::step_begin:
          spend(path_.step_begin, timeline_.steps[step].begin);
          if (step > 0) spend(path_.between_steps, timeline_.steps[step - 1].end);
          break;
      }
      task = from;
      if (why == predecessor::step_begin && step > 0)
        task = last_of_step_.at(timeline_.steps[--step].step);
    }
    spend(path_.step_begin, timeline_.begin());
    std::ranges::reverse(path_.tasks);
    return std::move(path_);
  }

 private:
  static void keep_latest(const traced_task*& kept, const traced_task* t) {
    if (kept == nullptr || kept->end < t->end) kept = t;
  }

  /// The task whose output this one needs, on the rank that ended last.
  const traced_task* sender_of(const traced_task& t) const {
    const auto sender = run_.shape.producer_of(t.stage, t.what);
    if (!sender) return nullptr;
    auto wanted = output_of(run_.shape, t);
    std::get<virtual_stage_id>(wanted) = sender->vs;
    const auto found = outputs_.find(wanted);
    // A task that began no earlier cannot be the sender.
    return found == outputs_.end() || found->second->begin >= t.begin ? nullptr : found->second;
  }

  /// The previous launch on this stage: on the rank that ended last, if it ended before this task
  /// began, else on this task's rank.
  const traced_task* previous_launch(const traced_task& t) const {
    const auto* own = before_.at(&t);
    if (own == nullptr || own->step != t.step) return nullptr;
    const auto* latest = launches_.at({own->replica, own->stage, own->seq});
    return latest->end <= t.begin ? latest : own;
  }

  std::pair<const traced_task*, predecessor> predecessor_of(const traced_task& t) const {
    const auto* sender = sender_of(t);
    const auto* before = previous_launch(t);
    const bool woken = woken_.contains({t.replica, t.stage, t.decided});
    if (sender != nullptr && (before == nullptr || woken || sender->end > before->end))
      return {sender, predecessor::sender};
    if (before != nullptr) return {before, predecessor::previous_launch};
    return {nullptr, predecessor::step_begin};
  }

  void compute(const traced_task& t) {
    auto& share = path_.by_stage[t.stage.value()];
    ++share.tasks;
    // Negative of a task that became shorter, as in the load of a stage.
    share.delay += std::min<nanoseconds>(t.delay, std::max<nanoseconds>(cursor_ - t.begin, 0));
    spend(share.compute_by_kind[static_cast<std::size_t>(t.what.kind)], t.begin);
  }

  /// Moves the cursor back to `to`, never forward, and adds the time to `part`.
  void spend(nanoseconds& part, nanoseconds to) {
    to = std::max(to, timeline_.begin());
    if (to >= cursor_) return;
    part += cursor_ - to;
    cursor_ = to;
  }

  const timeline& timeline_;
  const traced_run& run_;
  std::unordered_map<const traced_task*, const traced_task*> before_;
  std::map<task_output, const traced_task*> outputs_;
  std::map<step_id, const traced_task*> last_of_step_;
  std::map<std::tuple<replica_id, stage_id, launch_seq>, const traced_task*> launches_;
  std::set<std::tuple<replica_id, stage_id, nanoseconds>> woken_;
  std::size_t tasks_ = 0;
  nanoseconds cursor_ = 0;
  critical_path path_;
};

}  // namespace

nanoseconds path_share::compute() const {
  return std::accumulate(compute_by_kind.begin(), compute_by_kind.end(), nanoseconds{0});
}

nanoseconds critical_path::length() const {
  auto sum = transfer + launch_gap + step_begin + between_steps;
  for (const auto& share : by_stage) sum += share.compute();
  return sum;
}

critical_path find_critical_path(const timeline& t) { return path_finder{t}.find(); }

}  // namespace rrfp::report
