#include <rrfp/actors/run_job.hpp>

#include <algorithm>
#include <chrono>
#include <stop_token>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <rrfp/actors/recovery.hpp>

namespace rrfp::actors {

namespace {

using clock = std::chrono::steady_clock;
using in_seconds = std::chrono::duration<double>;

/// How long node 0 may take to write traces and tables after training.
constexpr std::chrono::minutes outputs_limit{10};
/// Between two attempts to join.
constexpr std::chrono::milliseconds retry_pause{100};

class member_of_job final : public job_member {
 public:
  member_of_job(job_on_nodes j, job_program& program) : job_(std::move(j)), program_(program) {
    RRFP_CHECK(!job_.runs.empty() && (!job_.place || job_.framework != nullptr),
               "a job has runs, and joins with a framework");
    if (job_.place && recovery().max_restarts > 0)
      standing_ = std::make_shared<process_standing>(job_.is_fenced);
  }

  bool begin() override {
    while (!has_ended_) {
      const bool joins = job_.place && members_ == nullptr;
      if (joins && !take_place()) break;
      if (auto begun = begin_next(joins); !begun)
        leave_or_join_again(end_without_run(begun.failure()));
      else if (session_ != nullptr)
        return true;
      else
        leave_or_join_again(aftermath::over);
    }
    return false;
  }

  aftermath end(const run_result& r) override {
    auto next = aftermath_of(r, &*begun_);
    const auto number = start_.number;
    drop_run();
    if (next == aftermath::over && r.how == ending::done) {
      finish_run(to_record(r.summary));
      auto& run = job_.runs[number];
      run = {run.options, {}, {}};  // frees data and model
      if (report_.finished.size() < job_.runs.size()) return next;
    }
    return leave_or_join_again(next);
  }

  const begun_run& run() const override { return *begun_; }
  actors::session& session() const override { return *session_; }
  const job_outcome& outcome() const override { return outcome_; }

 private:
  const job::recovery_options& recovery() const { return job_.runs.front().options.recovery; }
  job_node node() const { return {members_.get()}; }
  bool may_recover() const { return report_.totals.restarts < recovery().max_restarts; }
  bool is_lost() const { return standing_ && standing_->is_lost(); }
  bool is_over() const { return standing_ && standing_->is_over(); }

  /// Joins the others. False: the job has ended for this process.
  bool take_place() {
    outcome_ = {};
    std::stop_source stop;
    program_.on_joining([stop]() mutable { stop.request_stop(); }, handed_over_);
    auto members = join(stop.get_token());
    const bool is_interrupted = !program_.has_joined(members.ok());
    if (members && !is_interrupted) {
      members_ = *std::move(members);
      return true;
    }
    has_ended_ = outcome_.is_not_joined = true;
    outcome_.lost = report_.lost;
    if (is_interrupted) {
      outcome_.how = ending::interrupted;
    } else if (is_over()) {
      outcome_.is_late = true;
    } else {
      outcome_.how = end_of(members.failure().kind);
      outcome_.message = members.message();
    }
    return false;
  }

  /// The run of this membership is over.
  aftermath leave_or_join_again(aftermath next) {
    if (next == aftermath::over && node().leads() && !std::exchange(written_, true))
      outcome_.how = program_.write_outputs(outcome_.how);
    if (members_ != nullptr) {
      if (next == aftermath::over && outcome_.how == ending::done) next = finish();
      // All nodes have agreed on every other end, and know which node leaves.
      if ((outcome_.how != ending::node_lost || handed_over_) && !is_over()) members_->leave();
      members_.reset();
    }
    has_ended_ = next != aftermath::joins_again;
    return next;
  }

  /// As join_job(). After a loss, a node that has not noticed it yet refuses to let others join,
  /// also the replacement, so each tries again: for recovery.hold_s in all, or, in a process that
  /// has just started, for transport.join_timeout_s.
  result<std::unique_ptr<membership>> join(const std::stop_token& stop) {
    auto j = job_.job;
    const auto limit = report_.lost.empty() ? j.transport.join_timeout_s : recovery().hold_s;
    const auto since = report_.lost.empty() ? clock::now() : *lost_at_;
    for (j.transport.join_timeout_s = limit;;) {
      auto options = program_.options_of_join();
      options.standing = standing_;
      options.stop = stop;
      options.on_waiting = [this](const std::string& text) { program_.on_waiting(text); };
      auto members = join_job(j, *job_.place, *job_.framework, std::move(options));
      if (members) return members;
      const bool may_try_again = standing_ && !is_lost() && !is_over() &&
                                 members.failure().kind == error_kind::node_lost &&
                                 !program_.joins_once();
      const auto left = limit - in_seconds{clock::now() - since}.count();
      if (!may_try_again || left <= in_seconds{retry_pause}.count()) return members;
      program_.on_waiting(members.message());
      if (standing_->now().choice.is_first()) {
        standing_->change([](auto& known) {
          if (known.awake_at) *known.awake_at += std::chrono::nanoseconds{retry_pause}.count();
        });
        std::this_thread::sleep_for(retry_pause);
      }
      j.transport.join_timeout_s = std::max(limit - in_seconds{clock::now() - since}.count(),
                                            in_seconds{retry_pause}.count());
    }
  }

  /// Agrees on the next run and opens its session; there is none if all runs are over.
  status begin_next(bool has_joined) {
    report_.held = copies_->held();
    report_.record = copies_->record();
    if (lost_at_) report_.held_s = in_seconds{clock::now() - *lost_at_}.count();
    auto start = agree_on_start(members_.get(), job_.runs, report_);
    if (!start) return start.failure();
    start_ = *std::move(start);
    if (has_joined) program_.on_agreed(node(), start_.from);
    // What other nodes have finished while this one was lost.
    for (auto n = report_.finished.size(); n < start_.number; ++n) {
      const auto& finished = start_.from.finished[n];
      const auto summary = summary_of(finished);
      program_.take_over(job_.runs[n].options, summary ? *summary : run_summary{}, node());
      finish_run(finished);
    }
    if (!start_.from.has_copies()) copies_->clear();
    report_.lost.clear();
    return start_.number == job_.runs.size() ? success() : open();
  }

  /// Keeps the summary of a run that is over, and drops what recovery needs of it.
  void finish_run(run_record summary) {
    report_.finish_run(std::move(summary));
    recoveries_.clear();
    copies_->clear();
  }

  status open() {
    const auto& run = job_.runs[start_.number];
    const auto& from = start_.from;
    if (may_recover() || !from.lost.empty())
      start_.setup.recovery = recovery_setup{recovery().every, copies_, from};
    note_begin(from, start_.setup.first_step());
    begun_.emplace(begun_run{run, node(), start_, recoveries_, report_.totals, may_recover()});
    auto setup = start_.setup;
    setup.name = run.options.name;
    setup.losses = report_.totals;
    if (auto ready = program_.prepare(*begun_, setup); !ready && setup.ready) setup.ready = ready;
    setup.on_step = [this, own = std::move(setup.on_step)](const step_summary& s) {
      if (s.purpose == compute::step_purpose::training) report_.steps = s.step;
      if (own) own(s);
    };
    std::optional<cluster> in_cluster;
    if (members_ != nullptr) {
      auto places = job::node_places::make(run.options, members_->nodes());
      if (!places) return places.failure();
      in_cluster =
          cluster{members_.get(), places->without(start_.start.absent), run.options.transport,
                  start_.start, static_cast<std::uint32_t>(start_.number)};
    }
    auto opened = session::open(std::move(setup), std::move(in_cluster));
    if (!opened) return opened.failure();
    session_ = *std::move(opened);
    return success();
  }

  /// Adds up what a loss has cost; `first`: the steps that are complete, where the run goes on.
  void note_begin(const recovery_point& from, std::uint64_t first) {
    if (!from.lost.empty()) {
      const auto repeated = from.steps - std::min(from.steps, first);
      report_.totals = from.totals;
      report_.totals.repeated_steps += repeated;
      report_.totals.held_s += from.held_s;
      recoveries_.push_back({from.lost, first, from.has_copies(), repeated, from.held_s});
    }
    report_.began_after = from.began_after.value_or(first);
  }

  /// The next run may need what it holds: the folder of its checkpoints.
  void drop_run() {
    begun_.reset();
    session_.reset();
    start_ = {};
  }

  /// Of a run that could not begin.
  aftermath end_without_run(const error& why) {
    drop_run();
    return aftermath_of({{end_of(why.kind), why.message}}, nullptr);
  }

  aftermath aftermath_of(const run_result& r, const begun_run* run) {
    outcome_.how = r.how;
    outcome_.message = r.message;
    handed_over_ = r.drained.has_value();
    auto next = aftermath::over;
    if (r.drained && r.drained == members_->node())
      next = aftermath::leaves;
    else if (is_lost())
      next = aftermath::fenced;
    else if (r.how == ending::node_lost && members_ != nullptr && may_recover())
      next = aftermath::joins_again;
    outcome_.has_left = next == aftermath::leaves;
    if (next == aftermath::joins_again) {
      if (report_.lost.empty()) lost_at_ = clock::now();
      report_.lost = r.message;
      ++report_.totals.restarts;
    }
    if (next == aftermath::fenced) outcome_.how = ending::node_lost;
    if (next == aftermath::over && r.how == ending::node_lost && recovery().max_restarts > 0 &&
        !may_recover())
      outcome_.message += fmt::format("; recovery.max_restarts = {} allows no further loss",
                                      recovery().max_restarts);
    program_.on_run_end({r, next, node(), run, report_.steps, report_.totals});
    return next;
  }

  /// Node 0 writes the outputs of the job. If it is lost before that, all nodes must restart. The
  /// job is over once all have agreed that they are written. For recovery.hold_s, replacements of
  /// nodes that are lost later are told that it is over.
  aftermath finish() {
    if (!standing_ && !job_.has_outputs) return aftermath::over;
    auto& members = *members_;
    program_.on_finishing([&members] { members.interrupt(); });
    const auto agreed =
        standing_ ? members.finish(outputs_limit) : agree_on(members, success(), outputs_limit);
    const bool is_told = agreed && standing_;
    const auto lost = members.loss();
    auto next = aftermath::over;
    if (lost && !is_told) next = end_without_run({lost->why, error_kind::node_lost});
    if (is_told) members.leave(to_ms(recovery().hold_s), [this] { program_.at_the_end(outcome_); });
    program_.on_finishing(nullptr);
    return next;
  }

  job_on_nodes job_;
  job_program& program_;
  /// Null: a node that was declared lost joins again.
  std::shared_ptr<process_standing> standing_;
  std::unique_ptr<membership> members_;  ///< null: this process has not joined, or is the only one
  run_start start_;
  std::optional<begun_run> begun_;
  std::unique_ptr<actors::session> session_;  ///< of the run that has begun
  bool has_ended_ = false;                    ///< the job, for this process
  job_outcome outcome_;
  bool handed_over_ = false;
  bool written_ = false;  ///< the outputs
  /// What this node brings to the next agreement.
  recovery_report report_;
  std::shared_ptr<copy_store> copies_ = std::make_shared<copy_store>();
  std::optional<clock::time_point> lost_at_;
  std::vector<recovery_record> recoveries_;  ///< of the current run
};

}  // namespace

std::unique_ptr<job_member> job_member::make(job_on_nodes j, job_program& program) {
  return std::make_unique<member_of_job>(std::move(j), program);
}

job_outcome run_job(job_on_nodes j, job_program& program) {
  member_of_job member{std::move(j), program};
  while (member.begin()) member.end(program.train(member.run(), member.session()));
  return member.outcome();
}

}  // namespace rrfp::actors
