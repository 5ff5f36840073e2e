/// One rank of a stage: its mailbox receives activations and gradients, its device runs the
/// launches of the supervisor in order and then sends the results to the neighbours.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <rrfp/actors/control/caf_compat.hpp>
#include <rrfp/actors/control/messages.hpp>
#include <rrfp/actors/control/run_context.hpp>
#include <rrfp/compute/rank_compute.hpp>
#include <rrfp/device/device.hpp>
#include <rrfp/device/rank_groups.hpp>
#include <rrfp/tp_coord/launch_order.hpp>

namespace rrfp::actors {

class state_copy;

/// The parameters of a rank.
struct rank_parts {
  rank_address address;
  /// The stage that holds the other side of a tied parameter; its own stage if there is none.
  stage_id tied_with;
  std::shared_ptr<compute::rank_compute> compute;
  rank_collectives groups;
  /// Not shared. Outlives the rank, so that no actor waits for running work.
  actors::device* device = nullptr;
  /// This rank's entry in the run's counters.
  metrics::rank_counters* counters = nullptr;
  std::shared_ptr<collective_watch> replicas_watch;  ///< null if there are no replicas
};

struct tp_rank_setup : rank_parts {
  /// "stage 1 rank 0"
  std::string name() const;
  /// Reports a failure, which ends the job; its message names the rank.
  void fail(const std::string& why) const;
  /// Reports that a collective failed. The job ends, too, but the cause may be a lost node, which
  /// the membership reports later.
  void suspect(const std::string& why) const;
  /// Reports a failure; what fails with a broken group fails because of a collective.
  void report(const std::string& why) const;

  actor_ref supervisor;
  actor_ref job;
  std::shared_ptr<run_context> context;
  /// A failure was reported; nothing more is run.
  std::shared_ptr<std::atomic<bool>> has_failed = std::make_shared<std::atomic<bool>>(false);
  /// Used by the device's thread: the state must not change before it is finished. May hold null.
  std::shared_ptr<std::shared_ptr<state_copy>> copying =
      std::make_shared<std::shared_ptr<state_copy>>();
};

class tp_rank : public actor_base, public runs_anywhere {
 public:
  tp_rank(caf::actor_config& config, tp_rank_setup setup);

  caf::behavior make_behavior() override;

 private:
  /// An input that has arrived; without a tensor before that and once it is launched.
  struct waiting_input {
    step_id step;
    tensor_buffer tensor;
  };

  /// The place of the input of an F (of a B or BW if not `forward`).
  waiting_input& input_of(bool forward, microbatch_id mb, chunk_id chunk);
  void on_tensor(message& m);
  /// Copies the tensor to device memory and then posts the message to this actor again.
  void copy_to_device(message& m);
  void begin(const begin_step& m);
  void start(const run_launch& l);
  void on_opened_sum(message& m);
  void join_opened_sum(tensor_buffer sum);
  void end(step_id step);
  void sum_gradients(step_id step);
  void send_tied(step_id step);
  void on_take_snapshot(const take_snapshot& m);
  void on_copy_state(const copy_state& m);
  void on_restore_state();
  void join_tied_if_both();

  /// Shared with running launches, which may outlive the actor.
  const std::shared_ptr<const tp_rank_setup> setup_;
  std::vector<waiting_input> inputs_;
  std::uint32_t inputs_waiting_ = 0;
  tp_coord::launch_order order_;
  step_id step_;
  /// The purpose of this step.
  compute::step_purpose purpose_ = compute::step_purpose::training;
  std::uint64_t collective_ns_before_ = 0;  ///< this step
  std::int64_t in_collectives_ = 0;         ///< in its tasks
  /// The message with the sum that this rank opens in this step, for a rank that goes on with it.
  std::optional<message_header> opens_sum_;
  bool awaits_sum_ = false;            ///< another rank opens a sum with which this one goes on
  std::optional<message> opened_sum_;  ///< arrived before the step
  bool sum_waits_ = false;             ///< the step ends when that sum arrives
  /// The step that ends when the gradient of the partner's side of a tied parameter arrives.
  std::optional<step_id> ending_;
  std::optional<message> tied_partner_;
};

}  // namespace rrfp::actors
