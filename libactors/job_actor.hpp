/// The job: asks nodes to host the stages, steps them through the training, and decides how it
/// ends.
///
///   hosting_stages -> hosting_ranks -> stepping -> updating -> stepping ... -> weighing -> (ended)
///
/// Any failure, an interrupt, or a time without progress leads to the end from every phase.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <rrfp/actors/session.hpp>

#include "caf_compat.hpp"
#include "messages.hpp"
#include "run_context.hpp"

namespace rrfp::actors {

struct job_setup {
  std::vector<caf::actor> nodes;
  job::train_options train;
  std::shared_ptr<run_context> context;
  double hang_timeout_s = 60;
  std::function<void(const step_summary&)> on_step;
  /// Called once, at the end, before the nodes are told; from then on nothing happens.
  std::function<void(run_result)> on_end;
};

class job_actor : public actor_base {
 public:
  job_actor(caf::actor_config& config, job_setup setup);

  caf::behavior make_behavior() override;
  /// Job, nodes and stages refer to each other; here the circle ends.
  void on_exit() override;

 private:
  enum class phase : std::uint8_t {
    hosting_stages,
    hosting_ranks,
    stepping,
    updating,
    weighing,
    reporting_hang
  };

  void take(supervisors_hosted& m);
  void take(ranks_hosted& m);
  void take(stage_step_ended& m);
  void take(const update_applied& m);
  void take(stage_weights& m);
  void take(stage_progress& m);
  void watch();

  void begin_next_step();
  void finish_step();
  void end(ending how, std::string message = {});
  template <class Message>
  void tell_stages(const Message& m);

  /// How many answers a question to all ranks of the job has.
  std::uint32_t rank_count() const;

  job_setup setup_;
  phase phase_ = phase::hosting_stages;
  bool ended_ = false;
  std::vector<stage_handle> stages_;
  std::vector<rank_handle> ranks_;
  std::uint32_t answers_ = 0;
  step_id step_;
  std::int64_t step_began_ = 0;
  step_summary summary_;
  std::vector<stage_step_ended> outcomes_;
  /// By replica.
  std::vector<std::vector<compute::parameter_hash>> hashes_;
  std::vector<std::string> hang_report_;
  std::vector<double> losses_;
  std::vector<double> step_ms_;
  double busy_ms_ = 0;
  double span_ms_ = 0;
  run_result result_;
};

}  // namespace rrfp::actors
