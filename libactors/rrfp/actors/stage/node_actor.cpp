#include "node_actor.hpp"

#include <utility>

#include <fmt/format.h>

#include "node_report.hpp"

#include <rrfp/actors/recovery/copy_exchange.hpp>

namespace rrfp::actors {

namespace {

/// How long the job may take to answer a request: it asks all stages first.
constexpr std::chrono::milliseconds job_answer_time{2500};
/// How long the stages of a node may take to report what they wait for.
constexpr std::chrono::milliseconds stage_answer_time{500};

}  // namespace

hosted_actors host(caf::actor_system& system, node_parts parts,
                   const std::shared_ptr<run_context>& context) {
  auto& all = context->actors;
  const auto job = all.find({actor_kind::job});
  hosted_actors hosted;
  for (auto& p : parts.stages) {
    const auto replica = p.replica;
    const auto stage = p.core.config().stage;
    const auto supervisor = system.spawn<stage_supervisor>(std::move(p), job, context);
    all.bind(supervisor_of(replica, stage), supervisor);
    hosted.supervisors[{replica, stage}] = supervisor;
  }
  for (auto& p : parts.ranks) {
    const auto address = p.address;
    const auto supervisor = all.find(supervisor_of(address.replica, address.stage));
    const auto rank = system.spawn<tp_rank>(tp_rank_setup{std::move(p), supervisor, job, context});
    all.bind({actor_kind::rank, address}, rank);
    context->wire->bind(address, [rank](message received) { post(rank, std::move(received)); });
    hosted.ranks.push_back(rank);
  }
  for (const auto& [at, supervisor] : hosted.supervisors) {
    stage_ranks members;
    for (std::uint32_t r = 0; r < context->setup.ranks; ++r)
      members.ranks.push_back(all.find({actor_kind::rank, {at.stage, rank_id{r}, at.replica}}));
    post(supervisor, std::move(members));
  }
  return hosted;
}

node_actor::node_actor(caf::actor_config& config, hosted_actors hosted, actor_ref job,
                       std::shared_ptr<run_context> context,
                       std::function<void(const job_ended&)> on_end)
    : actor_base(config),
      hosted_(std::move(hosted)),
      job_(std::move(job)),
      context_(std::move(context)),
      on_end_(std::move(on_end)) {}

caf::behavior node_actor::make_behavior() {
  return {
      // The job decides how it ends.
      [this](const interrupted& m) { post(job_, m); },
      [this](const failed& m) { post(job_, m); },
      [this](const drain_asked& m) { post(job_, m); },
      [this](const batch_given& m) { post(job_, m); },
      [this](const node_lost& m) {
        // The job may not have noticed: only these two nodes may have lost each other.
        post(job_, failed{{m.message, error_kind::node_lost}});
        end({{ending::node_lost, m.message}});
      },
      [this](const suspected& m) {
        post(job_, m);
        post_after(this, unexplained_loss_time, node_lost{m.why.message});
      },
      [this](const step_over& m) {
        if (context_->setup.on_step) context_->setup.on_step(m.summary);
      },
      [this](const state_ready&) {
        if (context_->setup.on_state_ready) context_->setup.on_state_ready();
      },
      [this](const copy_offered& m) { context_->copies->on(m); },
      [this](const fetch_copy& m) { context_->copies->on(m); },
      [this](const keep_copies& m) { context_->copies->on(m); },
      [this](const report_requested& m) { request_report(m); },
      [this](const write_report& m) { begin_report(m); },
      [this](state_reported& m) { on_state_reported(m); },
      [this](const report_due& m) { on_report_due(m); },
      [this](const job_ended& m) { end(m); },
  };
}

void node_actor::on_exit() {
  hosted_ = {};
  job_ = {};
}

void node_actor::request_report(const report_requested& m) {
  post(job_, m);
  post_after(this, job_answer_time, report_due{reports_, true});
}

void node_actor::begin_report(const write_report& m) {
  if (report_) finish_report();
  report_ = report{++reports_, m, {}};
  if (hosted_.supervisors.empty()) return finish_report();
  for (const auto& [_, supervisor] : hosted_.supervisors)
    post(supervisor, report_state{caf::actor_cast<caf::actor>(this)});
  post_after(this, stage_answer_time, report_due{reports_, false});
}

void node_actor::on_state_reported(state_reported& m) {
  if (!report_) return;
  report_->stages[{m.replica, m.stage}] = std::move(m.text);
  if (report_->stages.size() == hosted_.supervisors.size()) finish_report();
}

void node_actor::on_report_due(const report_due& m) {
  if (m.number != reports_) return;
  if (m.job_was_asked) return begin_report({"asked for", {"the job does not answer"}});
  if (report_) finish_report();
}

void node_actor::finish_report() {
  auto finished = *std::exchange(report_, std::nullopt);
  for (const auto& [at, _] : hosted_.supervisors)
    finished.stages.try_emplace(at, fmt::format("stage {}: does not answer\n", at.stage.value()));
  if (context_->setup.on_report)
    context_->setup.on_report(node_report(*context_, finished.request, finished.stages));
}

void node_actor::end(const job_ended& m) {
  if (report_) finish_report();
  for (const auto& [_, supervisor] : hosted_.supervisors) post(supervisor, stop{});
  for (const auto& rank : hosted_.ranks) post(rank, stop{});
  std::exchange(on_end_, [](const job_ended&) {})(m);
  quit();
}

}  // namespace rrfp::actors
