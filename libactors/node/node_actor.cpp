#include "node_actor.hpp"

#include <fmt/format.h>

#include <rrfp/base/check.hpp>

#include "node_report.hpp"

namespace rrfp::actors {

namespace {

/// How long the job may take to answer a request: it asks all stages first.
constexpr std::chrono::milliseconds job_answer_time{2500};
/// How long the stages of a node may take to report what they wait for.
constexpr std::chrono::milliseconds stage_answer_time{500};

}  // namespace

node_actor::node_actor(caf::actor_config& config, node_parts parts,
                       std::shared_ptr<run_context> context,
                       std::function<void(const job_ended&)> on_end)
    : actor_base(config),
      parts_(std::move(parts)),
      context_(std::move(context)),
      on_end_(std::move(on_end)) {}

caf::behavior node_actor::make_behavior() {
  return {
      [this](const host_supervisors& m) { on_host_supervisors(m); },
      [this](const host_ranks& m) { on_host_ranks(m); },
      [this](const interrupted& m) { interrupt(m); },
      [this](const node_lost& m) {
        end({ending::node_lost, m.message});
      },
      [this](const node_unreachable& m) {
        post_after(this, unexplained_loss_time, node_lost{m.message});
      },
      [this](const step_over& m) {
        if (context_->on_step) context_->on_step(m.summary);
      },
      [this](const report_requested& m) { request_report(m); },
      [this](const write_report& m) { begin_report(m); },
      [this](state_reported& m) { on_state_reported(m); },
      [this](const report_due& m) { on_report_due(m); },
      [this](const job_ended& m) { end(m); },
  };
}

void node_actor::on_exit() {
  hosted_.clear();
  supervisors_.clear();
  job_ = nullptr;
}

void node_actor::on_host_supervisors(const host_supervisors& m) {
  job_ = m.job;
  supervisors_hosted answer;
  for (auto& parts : std::exchange(parts_.stages, {})) {
    const auto replica = parts.replica;
    const auto stage = parts.config.stage;
    hosted_.push_back(actors::spawn<stage_supervisor>(system(), std::move(parts), m.job, context_));
    answer.stages.push_back({replica, stage, hosted_.back()});
  }
  supervisors_ = answer.stages;
  post(job_, std::move(answer));
  if (interrupted_) post(job_, interrupted{});
}

/// The job decides how it ends.
void node_actor::interrupt(interrupted m) {
  interrupted_ = true;
  if (job_) post(job_, m);
}

void node_actor::on_host_ranks(const host_ranks& m) {
  std::map<std::pair<replica_id, stage_id>, caf::actor> supervisors;
  for (const auto& s : m.stages) supervisors[{s.replica, s.stage}] = s.supervisor;
  ranks_hosted answer;
  for (auto& parts : std::exchange(parts_.ranks, {})) {
    const auto address = parts.address;
    const auto supervisor = supervisors.find({address.replica, address.stage});
    RRFP_CHECK(supervisor != supervisors.end(), "every stage has a supervisor");
    const auto rank = actors::spawn<tp_rank>(
        system(), tp_rank_setup{std::move(parts), supervisor->second, context_});
    // Bound here, not in the rank, whose actor may start after the first message arrives.
    context_->wire->bind(address, [rank](message received) { post(rank, std::move(received)); });
    hosted_.push_back(rank);
    answer.ranks.push_back({address, rank});
  }
  post(job_, std::move(answer));
}

void node_actor::request_report(const report_requested& m) {
  if (!job_) return begin_report({m.why, {"the job has not started here yet"}});
  post(job_, m);
  post_after(this, job_answer_time, report_due{reports_, true});
}

void node_actor::begin_report(const write_report& m) {
  if (report_) finish_report();
  report_ = report{++reports_, m, {}};
  if (supervisors_.empty()) return finish_report();
  for (const auto& s : supervisors_)
    post(s.supervisor, report_state{caf::actor_cast<caf::actor>(this)});
  post_after(this, stage_answer_time, report_due{reports_, false});
}

void node_actor::on_state_reported(state_reported& m) {
  if (!report_) return;
  report_->stages[{m.replica, m.stage}] = std::move(m.text);
  if (report_->stages.size() == supervisors_.size()) finish_report();
}

void node_actor::on_report_due(const report_due& m) {
  if (m.number != reports_) return;
  if (m.job_was_asked) return begin_report({"asked for", {"the job does not answer"}});
  if (report_) finish_report();
}

void node_actor::finish_report() {
  auto finished = *std::exchange(report_, std::nullopt);
  for (const auto& s : supervisors_)
    finished.stages.try_emplace({s.replica, s.stage},
                                fmt::format("stage {}: does not answer\n", s.stage.value()));
  if (context_->on_report)
    context_->on_report(node_report(*context_, finished.request, finished.stages));
}

void node_actor::end(const job_ended& m) {
  if (report_) finish_report();
  for (const auto& actor : hosted_) post(actor, stop{});
  std::exchange(on_end_, [](const job_ended&) {})(m);
  quit();
}

}  // namespace rrfp::actors
