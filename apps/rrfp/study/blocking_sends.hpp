/// Blocking sends, as in frameworks with fixed schedules: after a task a rank posts its send
/// together with the receive that its next F or B needs, and waits until its output was received. A
/// message leaves when its receiver has posted the receive. Between processes both are signals: one
/// to the sender when the receive is posted, one after the arrival.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>

#include <rrfp/core/policy.hpp>
#include <rrfp/job/job.hpp>
#include <rrfp/transport/transport.hpp>

namespace rrfp::actors {

struct session_setup;

}  // namespace rrfp::actors

namespace rrfp::study {

/// Wraps a transport in a blocking_transport.
std::function<std::unique_ptr<actors::transport>(std::unique_ptr<actors::transport>)>
blocking_sends(const pipeline_shape& shape, const policy_factory& make_policy);

/// The session's sends block. It must be in mode in-order, without lookahead.
void block_sends(actors::session_setup& setup);

/// What the session of a job of a study needs beside that of any job: its sends block if the job
/// says so.
void prepare_session(const job::job& j, actors::session_setup& setup);

/// `make_policy` is that of the session. Thread-safe.
class blocking_transport final : public actors::transport, public actors::output_gate {
 public:
  blocking_transport(std::unique_ptr<actors::transport> inner, const pipeline_shape& shape,
                     policy_factory make_policy)
      : inner_(std::move(inner)), shape_(shape), make_policy_(std::move(make_policy)) {}

  /// All ranks of this process are bound before the first send.
  void bind(rank_address address, actors::message_sink sink) override;
  /// Sends at once, without a posted receive; not the input of a task of another process.
  void send(actors::message m) override { inner_->send(std::move(m)); }
  bool takes_device_memory(const rank_address& to) const override {
    return inner_->takes_device_memory(to);
  }
  void close() override;
  actors::output_gate* gate() override { return this; }

  void begin_step(const rank_address& rank, step_id step, std::uint32_t microbatches) override;
  void end_task(const rank_address& rank, step_id step, const task& ended) override;
  /// Sends `m` once its receive is posted. `go_on` is called after the receiver's sink, on a thread
  /// of the transport.
  void send_output(actors::message m, std::function<void()> go_on) override;
  /// Once for each message.
  void post_receive(const message_header& input) { tell_sender(input, false); }

 private:
  /// The sender is not part of it.
  using message_key = std::tuple<step_id, payload, microbatch_id, chunk_id, rank_address>;
  struct transfer {
    bool posted = false;
    std::optional<actors::message> held;
    std::function<void()> go_on;
  };
  /// The F and B of a rank in this step.
  struct progress {
    sequence tasks;
    std::size_t next = 0;  ///< whose receive is posted next
  };

  static message_key key_of(const message_header& h);
  /// That the receive of an input is posted, or that the input was received.
  void tell_sender(const message_header& input, bool is_received);
  /// Posts the receive of the rank's next F or B, if its input is from another stage.
  void post_next(const rank_address& rank, step_id step);
  void deliver(actors::message m, const actors::message_sink& sink);
  /// At the sender.
  void posted(const message_key& key);
  void received(const message_key& key);

  const std::unique_ptr<actors::transport> inner_;
  const pipeline_shape shape_;
  const policy_factory make_policy_;
  std::mutex mutex_;
  std::set<rank_address> here_;
  std::map<rank_address, progress> ranks_;
  std::map<message_key, transfer> transfers_;
};

}  // namespace rrfp::study
