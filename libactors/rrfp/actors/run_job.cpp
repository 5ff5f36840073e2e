#include <rrfp/actors/run_job.hpp>

#include <algorithm>
#include <chrono>
#include <stop_token>
#include <thread>
#include <utility>

#include <rrfp/actors/recovery.hpp>

namespace rrfp::actors {

namespace {

using clock = std::chrono::steady_clock;
using in_seconds = std::chrono::duration<double>;

/// How long node 0 may take to write traces and tables after training.
constexpr std::chrono::minutes outputs_limit{10};
/// Between two attempts to join.
constexpr std::chrono::milliseconds retry_pause{100};

/// This process as a member of a job.
class job_member {
 public:
  job_member(job_on_nodes j, job_program& program) : job_(std::move(j)), program_(program) {
    if (job_.place && recovery().max_restarts > 0)
      standing_ = std::make_shared<process_standing>(job_.is_fenced);
  }

  job_outcome run() {
    if (job_.place) {
      while (take_part() == aftermath::joins_again) {
      }
    } else {
      go_on({});
    }
    return outcome_;
  }

 private:
  const job::recovery_options& recovery() const { return job_.runs.front().options.recovery; }
  bool may_recover() const { return card_.totals.restarts < recovery().max_restarts; }
  bool is_lost() const { return standing_ && standing_->is_lost(); }
  bool is_over() const { return standing_ && standing_->is_over(); }

  /// From joining the others to the end of the job, or to a loss.
  aftermath take_part() {
    outcome_ = {};
    std::stop_source stop;
    program_.on_joining([stop]() mutable { stop.request_stop(); }, handed_over_);
    const auto members = join(stop.get_token());
    const bool is_interrupted = !program_.has_joined(members.ok());
    if (is_interrupted || !members) {
      end_of_joining(members, is_interrupted);
      return aftermath::over;
    }
    const job_node node{members->get()};
    auto next = go_on(node);
    if (next == aftermath::over && outcome_.how == ending::done) next = finish(node);
    // All nodes have agreed on every other end, and know which node leaves.
    if ((outcome_.how != ending::node_lost || handed_over_) && !is_over()) (*members)->leave();
    return next;
  }

  /// As join_job(). After a loss, a node that has not noticed it yet refuses to let others join,
  /// also the replacement, so each tries again: for recovery.hold_s in all, or, in a process that
  /// has just started, for transport.join_timeout_s.
  result<std::unique_ptr<membership>> join(const std::stop_token& stop) {
    auto j = job_.job;
    const auto limit = card_.lost.empty() ? j.transport.join_timeout_s : recovery().hold_s;
    const auto since = card_.lost.empty() ? clock::now() : *lost_at_;
    for (j.transport.join_timeout_s = limit;;) {
      auto hooks = program_.hooks_of_join();
      hooks.standing = standing_;
      hooks.stop = stop;
      hooks.on_waiting = [this](const std::string& text) { program_.on_waiting(text); };
      auto members = join_job(j, *job_.place, *job_.framework, std::move(hooks));
      const auto left = limit - in_seconds{clock::now() - since}.count();
      if (members || !may_try_again(members.failure()) || left <= 0) return members;
      program_.on_waiting(members.message());
      std::this_thread::sleep_for(retry_pause);
      j.transport.join_timeout_s =
          std::max(left - in_seconds{retry_pause}.count(), in_seconds{retry_pause}.count());
    }
  }

  bool may_try_again(const error& why) const {
    return standing_ && !is_lost() && !is_over() && why.kind == error_kind::node_lost &&
           !program_.joins_once();
  }

  void end_of_joining(const result<std::unique_ptr<membership>>& members, bool is_interrupted) {
    outcome_.is_not_joined = true;
    outcome_.lost = card_.lost;
    if (is_interrupted) {
      outcome_.how = ending::interrupted;
    } else if (is_over()) {
      outcome_.is_late = true;
    } else {
      outcome_.how = end_of(members.failure().kind);
      outcome_.message = members.message();
    }
  }

  /// Trains the runs that are left, or until the loss of a node.
  aftermath go_on(job_node node) {
    auto next = aftermath::over;
    for (bool joined = true; joined || card_.finished.size() < job_.runs.size(); joined = false) {
      auto start = agree(node);
      if (!start) {
        next = end(start.failure(), node);
        break;
      }
      node.start = start->start;
      if (joined && node.members != nullptr) program_.on_agreed(node, start->from);
      take_over(start->from, node);
      if (start->number == job_.runs.size()) break;
      next = train(*std::move(start), node);
      if (next != aftermath::over || outcome_.how != ending::done) break;
    }
    if (next == aftermath::over && node.leads() && !std::exchange(written_, true))
      outcome_.how = program_.write_outputs(outcome_.how);
    return next;
  }

  result<run_start> agree(const job_node& node) {
    card_.held = copies_->held();
    card_.record = copies_->record();
    if (lost_at_) card_.held_s = in_seconds{clock::now() - *lost_at_}.count();
    return agree_on_start(node.members, job_.runs, card_);
  }

  /// What other nodes have finished while this one was lost.
  void take_over(const recovery_point& from, const job_node& node) {
    for (auto n = card_.finished.size(); n < from.finished.size(); ++n) {
      run_summary done;
      if (auto summary = summary_of(from.finished[n])) done = *std::move(summary);
      program_.take_over(n, done, node);
      finish_run(from.finished[n]);
    }
    if (!from.has_copies()) copies_->clear();
    card_.lost.clear();
  }

  /// Keeps the summary of a run that is over, and drops what recovery needs of it.
  void finish_run(run_record summary) {
    card_.finish_run(std::move(summary));
    recoveries_.clear();
    copies_->clear();
  }

  aftermath train(run_start start, const job_node& node) {
    auto& run = job_.runs[start.number];
    const auto& from = start.from;
    auto& setup = start.setup;
    if (may_recover() || !from.lost.empty())
      setup.recovery = recovery_setup{recovery().every, copies_, from};
    note_begin(from, setup.first_step());
    const begun_run begun{run, node, start, recoveries_, card_.totals, may_recover()};
    auto session = open(begun, setup);
    if (!session) return end(session.failure(), node);
    const auto result = program_.train(begun, **session);
    const auto next = end(result, node, &begun);
    if (next != aftermath::over || result.how != ending::done) return next;
    finish_run(to_record(result.summary));
    run = {run.options, {}, {}};  // frees data and model
    return next;
  }

  /// Adds up what a loss has cost; `first`: the steps that are complete, where the run goes on.
  void note_begin(const recovery_point& from, std::uint64_t first) {
    if (!from.lost.empty()) {
      const auto repeated = from.steps - std::min(from.steps, first);
      card_.totals = from.totals;
      card_.totals.repeated_steps += repeated;
      card_.totals.held_s += from.held_s;
      recoveries_.push_back({from.lost, first, from.has_copies(), repeated, from.held_s});
    }
    card_.began_after = from.began_after.value_or(first);
  }

  result<std::unique_ptr<session>> open(const begun_run& begun, session_setup setup) {
    setup.name = begun.run.options.name;
    setup.losses = card_.totals;
    if (auto ready = program_.prepare(begun, setup); !ready && setup.ready) setup.ready = ready;
    setup.on_step = [this, own = std::move(setup.on_step)](const step_summary& s) {
      if (s.purpose == compute::step_purpose::training) card_.steps = s.step;
      if (own) own(s);
    };
    return open_session(begun.run.options, std::move(setup), begun.node,
                        static_cast<std::uint32_t>(begun.start.number));
  }

  aftermath end(const error& why, const job_node& node) {
    run_result ended;
    ended.how = end_of(why.kind);
    ended.message = why.message;
    return end(ended, node, nullptr);
  }

  aftermath end(const run_result& r, const job_node& node, const begun_run* run) {
    outcome_.how = r.how;
    outcome_.message = r.message;
    handed_over_ = r.drained.has_value();
    const auto next = after(r, node);
    outcome_.has_left = next == aftermath::leaves;
    if (next == aftermath::joins_again) {
      if (card_.lost.empty()) lost_at_ = clock::now();
      card_.lost = r.message;
      ++card_.totals.restarts;
    }
    if (next == aftermath::fenced) outcome_.how = ending::node_lost;
    program_.on_run_end({r, next, node, run, card_.steps, card_.totals});
    return next;
  }

  aftermath after(const run_result& r, const job_node& node) const {
    if (r.drained && r.drained == node.members->node()) return aftermath::leaves;
    if (is_lost()) return aftermath::fenced;
    const bool is_loss = r.how == ending::node_lost && node.members != nullptr;
    return is_loss && may_recover() ? aftermath::joins_again : aftermath::over;
  }

  /// Node 0 writes the outputs of the job. If it is lost before that, all nodes must restart. The
  /// job is over once all have agreed that they are written. For recovery.hold_s, replacements of
  /// nodes that are lost later are told that it is over.
  aftermath finish(const job_node& node) {
    auto& members = *node.members;
    program_.on_finishing([&members] { members.interrupt(); });
    const auto agreed =
        standing_ ? members.finish(outputs_limit) : agree_on(members, success(), outputs_limit);
    const bool is_told = agreed && standing_;
    const auto lost = members.loss();
    auto next = aftermath::over;
    if (lost && !is_told) next = end(error{lost->why, error_kind::node_lost}, node);
    if (is_told)
      members.leave(std::chrono::milliseconds{static_cast<std::int64_t>(recovery().hold_s * 1e3)},
                    [this] { program_.at_the_end(outcome_); });
    program_.on_finishing(nullptr);
    return next;
  }

  job_on_nodes job_;
  job_program& program_;
  /// Null: a node that was declared lost joins again.
  std::shared_ptr<process_standing> standing_;
  job_outcome outcome_;
  bool handed_over_ = false;
  bool written_ = false;  ///< the outputs
  /// What this node brings to the next agreement.
  recovery_card card_;
  std::shared_ptr<copy_store> copies_ = std::make_shared<copy_store>();
  std::optional<clock::time_point> lost_at_;
  std::vector<recovery_record> recoveries_;  ///< of the current run
};

}  // namespace

job_outcome run_job(job_on_nodes j, job_program& program) {
  RRFP_CHECK(!j.runs.empty() && (!j.place || j.framework != nullptr),
             "a job has runs, and joins with a framework");
  return job_member{std::move(j), program}.run();
}

}  // namespace rrfp::actors
