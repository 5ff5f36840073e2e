#include "node_actor.hpp"

#include <rrfp/schedule/check.hpp>

namespace rrfp::actors {

node_actor::node_actor(caf::actor_config& config, node_parts parts,
                       std::shared_ptr<run_context> context,
                       std::function<void(const job_ended&)> on_end)
    : actor_base(config),
      parts_(std::move(parts)),
      context_(std::move(context)),
      on_end_(std::move(on_end)) {}

caf::behavior node_actor::make_behavior() {
  return {
      [this](const host_supervisors& m) { host(m); },
      [this](const host_ranks& m) { host(m); },
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
      [this](const job_ended& m) { end(m); },
  };
}

void node_actor::on_exit() {
  hosted_.clear();
  job_ = nullptr;
}

void node_actor::host(const host_supervisors& m) {
  job_ = m.job;
  supervisors_hosted answer;
  for (auto& parts : std::exchange(parts_.stages, {})) {
    const auto replica = parts.replica;
    const auto stage = parts.config.stage;
    hosted_.push_back(actors::spawn<stage_supervisor>(system(), std::move(parts), m.job, context_));
    answer.stages.push_back({replica, stage, hosted_.back()});
  }
  post(job_, std::move(answer));
  if (interrupted_) post(job_, interrupted{});
}

/// The job decides how it ends.
void node_actor::interrupt(interrupted m) {
  interrupted_ = true;
  if (job_) post(job_, m);
}

void node_actor::host(const host_ranks& m) {
  std::map<std::pair<replica_id, stage_id>, caf::actor> supervisors;
  for (const auto& s : m.stages) supervisors[{s.replica, s.stage}] = s.supervisor;
  ranks_hosted answer;
  for (auto& parts : std::exchange(parts_.ranks, {})) {
    const auto address = parts.address;
    const auto supervisor = supervisors.find({address.replica, address.stage});
    RRFP_CHECK(supervisor != supervisors.end(), "every stage has a supervisor");
    const auto rank = actors::spawn<tp_rank>(
        system(), tp_rank_setup{std::move(parts), supervisor->second, context_});
    // Here, not in the rank: its thread may start late, and messages may not.
    context_->wire->bind(address, [rank](message received) { post(rank, std::move(received)); });
    hosted_.push_back(rank);
    answer.ranks.push_back({address, rank});
  }
  post(job_, std::move(answer));
}

void node_actor::end(const job_ended& m) {
  if (context_->on_ending) context_->on_ending();
  for (const auto& actor : hosted_) post(actor, stop{});
  std::exchange(on_end_, [](const job_ended&) {})(m);
  quit();
}

}  // namespace rrfp::actors
