/// One rank of a stage: its mailbox takes activations and gradients in, its device runs the
/// launches of the supervisor in their order, and results go to the neighbours from there.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include <rrfp/compute/rank_compute.hpp>
#include <rrfp/schedule/policy.hpp>
#include <rrfp/tp_coord/order/launch_order.hpp>

#include "caf_compat.hpp"

#include "device.hpp"
#include "messages.hpp"
#include "rank_groups.hpp"
#include "run_context.hpp"

namespace rrfp::actors {

/// What a rank is made of.
struct rank_parts {
  rank_address address;
  /// On which stage the other side of a tied parameter lives; its own if there is none elsewhere.
  stage_id tied_with;
  std::shared_ptr<compute::rank_compute> compute;
  rank_collectives groups;
  /// Its own. Outlives the rank, so that no actor waits for running work.
  actors::device* device = nullptr;
  /// What its stage obeys, if sends and receives meet; else empty.
  sequence obeyed;
  /// Its own entries of the run's.
  metrics::rank_counters* counters = nullptr;
  std::shared_ptr<collective_watch> replicas_watch;  ///< null if there is no such group
};

struct tp_rank_setup : rank_parts {
  /// "stage 1 rank 0"
  std::string name() const;

  caf::actor supervisor;
  std::shared_ptr<run_context> context;
};

class tp_rank : public actor_base {
 public:
  tp_rank(caf::actor_config& config, tp_rank_setup setup);

  caf::behavior make_behavior() override;

 private:
  /// Inputs that are here and not yet launched.
  using input_key = std::tuple<step_id, bool /*forward*/, microbatch_id, chunk_id>;

  void on_tensor(message& m);
  /// To the memory of the device; the message comes back then.
  void copy_to_device(message& m);
  void begin(const begin_step& m);
  void start(const run_launch& l);
  void end(step_id step);
  void send_tied(step_id step);
  void on_take_snapshot(const take_snapshot& m);
  /// The input that has to come from another stage for the next F or B of the order, if it was not
  /// named before.
  std::optional<message_header> next_input(step_id step);
  void join_tied_if_both();
  /// An evaluation: nothing is to be summed.
  void end_evaluation(step_id step);

  /// Runs `work` on the device; what it throws ends the job.
  template <class Work>
  void on_device(Work work);

  /// Shared with the launches that are on their way, which may outlive the actor.
  const std::shared_ptr<const tp_rank_setup> setup_;
  std::map<input_key, at::Tensor> inputs_;
  tp_coord::launch_order order_;
  /// Of this step.
  compute::step_purpose purpose_ = compute::step_purpose::training;
  std::size_t launched_ = 0;
  std::optional<message_header> named_input_;
  /// The step that ends as soon as the partner's side of a tied parameter is here.
  std::optional<step_id> ending_;
  std::optional<message> tied_partner_;
};

}  // namespace rrfp::actors
