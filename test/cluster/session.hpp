/// One run of a job on one node: what session.cpp, the stage supervisors, the ranks and the UCX
/// transport do around their cores.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <rrfp/core/copy_fetches.hpp>
#include <rrfp/core/recovery_point.hpp>
#include <rrfp/core/stage_core.hpp>
#include <rrfp/core/stage_snapshot.hpp>
#include <rrfp/core/transport_core.hpp>
#include <rrfp/tp_coord/launch_order.hpp>

#include "data_network.hpp"
#include "mail.hpp"
#include "rank_compute.hpp"

namespace rrfp::cluster {

class process;
class job;

/// The copies that a process holds; it outlives the sessions.
struct held_copies {
  copy_set set;
  std::map<copy_key, std::string> bytes;

  void put(const copy_key& what, std::string copy, std::uint64_t complete);
  void keep(job_record r);
  void clear() { *this = {}; }

 private:
  void drop(const std::vector<copy_key>& all);
};

std::uint64_t hash_of_bytes(const std::string& bytes);

/// How a run ended on this node.
struct run_end {
  job_end how = job_end::done;
  std::string message;
  run_record summary;
  std::optional<node_id> drained{};
};

struct session_setup {
  std::uint32_t run = 0;
  std::uint64_t token = 0;
  std::vector<node_id> absent;
  std::uint64_t first_step = 0;
  /// The checkpoint that the run resumes from; of all ranks.
  std::map<copy_key, rank_state> resumed;
  std::string history;  ///< of the job, in that checkpoint
  bool makes_copies = false;
  recovery_point from;
};

class session final : public data_port, event_sink {
 public:
  session(process& owner, session_setup setup, std::function<void(run_end)> on_end);
  ~session() override;

  const scenario& c() const;
  const session_setup& setup() const { return setup_; }
  std::uint32_t number() const { return number_; }
  /// Connects to the sessions of other nodes: node and number of the session by turns.
  status connect(const std::vector<std::uint32_t>& peers);
  /// Nothing: there is none.
  std::optional<node_id> buddy_of_rank(stage_id stage, rank_id rank) const;
  /// All nodes are connected: the run begins.
  void start();
  /// The nodes have not met.
  void fail(const error& why);
  void give_up(node_id lost, const std::string& why);
  /// The membership reports a loss.
  void lose(const std::string& why);
  /// Sends disconnect messages; `done` is called when all have answered, or after a time.
  void leave(std::function<void()> done);
  /// The process is gone.
  void vanish();
  /// The user interrupts this node, or asks it for a report.
  void interrupt(bool again);
  void drain();
  /// On node 0: a process waits to take the place of an absent node.
  void take_in(node_id waits);
  node_id node_of(replica_id replica, stage_id stage, rank_id rank) const;
  /// The nodes that take part.
  std::vector<node_id> present() const;
  void ask_report();

  // For the job.
  void send(mail m);
  void send_to_stages(mail m);
  void send_to_nodes(const mail& m);
  void send_to_node(node_id to, mail m);
  void unreachable(const std::string& why);
  void fail_collectives(node_id lost, const std::string& why);
  void suspect(const error& why);
  void later(nanoseconds after, std::function<void()> work);
  nanoseconds time() const;
  process& owner() { return owner_; }

  node_id place() const override;
  nanoseconds resumes_at() const override;
  void arrive(const data_message& m, std::uint32_t number) override;
  void broke(node_id other) override;
  void on_event(std::uint32_t what, std::uint32_t argument) override;

 private:
  enum class stage_phase : std::uint8_t { idle, running, ending };
  struct stage_driver {
    stage_key key;
    stage_core core;
    stage_phase phase = stage_phase::idle;
    step_id step{};
    std::vector<mail> early{};
    rank_set ended = 0;
    std::vector<symbol> losses{};
    std::vector<std::vector<symbol>> gradients{};  ///< by rank
    bool is_notified = false;
  };
  struct input {
    step_id step;
    std::optional<symbol> value;
  };
  /// Work of a rank's device, in its order.
  struct work {
    enum class kind : std::uint8_t { begin, task, reduce, apply, snapshot, copy, hashes, restore };
    kind what = kind::task;
    step_id step;
    launch launched{};
    symbol value = 0;
    std::vector<symbol> values{};
  };
  struct rank_driver {
    rank_address key;
    std::uint32_t index = 0;
    rank_compute compute;
    microbatch_shares shares{};                                  ///< of the step
    std::optional<std::pair<step_id, rank_state>> opened_sum{};  ///< came before the step
    tp_coord::launch_order order{};
    std::vector<input> inputs{};
    std::deque<work> queue{};
    bool is_busy = false;       ///< a task runs, or waits for the other ranks
    bool has_computed = false;  ///< of the task: only the others are missing
    bool is_copying = false;
    bool has_sent = false;   ///< its gradients, to the other replicas
    bool has_begun = false;  ///< a step
  };
  /// Of a rank channel: group, receiver, sender, tag.
  using channel_key = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint64_t>;

  bool leads() const;
  messaging::transport_core_options transport_options() const;
  void build();
  rank_state initial_state(const rank_address& at) const;
  void settle_transport();
  void fetch_announced();
  void end(run_end how);

  // Sending.
  void send_output(const rank_driver& from, const task& produced, symbol value);
  void send_tensor(tensor_header h, data_message m);
  microbatch_shares shares_of(const mail& m) const;
  void send_bytes(const rank_address& to, std::uint32_t group, std::uint32_t from,
                  std::uint32_t member, std::uint64_t tag, const std::string& bytes);
  bool dispatch(node_id to, data_message m, messaging::chosen_link by);
  node_id node_of(const mail& m) const;

  // Receiving.
  void deliver(const data_message& m);
  void read(const mail& m);
  void read_as_node(const mail& m);
  void read_as_supervisor(stage_driver& stage, const mail& m);
  void read_as_rank(rank_driver& rank, const mail& m);

  // Stages.
  void send_to_ranks(const stage_driver& stage, mail m);
  void begin(stage_driver& stage, const mail& m);
  void on_arrived(stage_driver& stage, const mail& m);
  void notify(stage_driver& stage, const event& e);
  void settle();
  void choose(stage_driver& stage);
  void on_rank_ended(stage_driver& stage, const mail& m);

  // Ranks.
  rank_driver* rank_at(const rank_address& key);
  stage_driver* stage_at(const stage_key& key);
  void on_tensor(rank_driver& rank, const tensor_header& h, const data_message& m);
  void on_opened_sum(rank_driver& rank, step_id step, const rank_state& sum);
  void join_opened_sum(rank_driver& rank, const rank_state& sum);
  void leave_opened_sum(rank_driver& rank);
  void announce_arrival(const rank_driver& rank, step_id step, task_kind kind, microbatch_id mb,
                        chunk_id chunk);
  void accept_launch(rank_driver& rank, step_id step, const launch& l);
  void run_device(rank_driver& rank);
  /// False: it must wait.
  bool run_one(rank_driver& rank, work& w);
  void begin_task(rank_driver& rank);
  void end_step(rank_driver& rank, const work& w);
  void reply(const rank_driver& rank, mail m);
  /// Whether all other members have sent what this one waits for.
  bool have_come(std::uint32_t group, std::uint32_t own, std::uint32_t members,
                 std::uint64_t tag) const;
  std::string take_bytes(std::uint32_t group, std::uint32_t own, std::uint32_t from,
                         std::uint64_t tag);
  void wake_group(std::uint32_t group, std::uint32_t member);
  void finish_task(rank_driver& rank);
  bool reduce(rank_driver& rank, work& w);
  void take_snapshot(rank_driver& rank, std::uint64_t step);
  void copy_state(rank_driver& rank, std::uint64_t step, std::uint64_t complete);
  std::uint32_t group_of_stage(const rank_address& at) const;
  std::uint32_t group_of_replicas(const rank_address& at) const;

  // Copies.
  void hold(const copy_key& what, std::string bytes, std::uint64_t complete);
  void report_held(const copy_key& what, const std::string& failure);
  void restore(rank_driver& rank);
  void on_copy_offered(const mail& m);
  void on_fetch_copy(const mail& m);
  void on_copy_piece(const mail& m);
  /// Of a copy that is fetched; `complete`: as copy_set::put().
  struct expected_copy {
    std::uint64_t xxh64 = 0;
    std::uint64_t complete = 0;
  };
  void begin_fetch(const copy_key& what, node_id from, std::uint64_t bytes, expected_copy expected,
                   std::function<void(bool)> done);
  void ask(const std::vector<copy_fetches::request>& requests);

  process& owner_;
  const session_setup setup_;
  std::function<void(run_end)> on_end_;
  world& world_;
  random_source random_;
  const sink_id self_;
  const std::uint32_t number_;
  const nanoseconds began_;
  const std::vector<node_id> places_;  ///< of all ranks
  messaging::transport_core transport_;
  std::map<node_id, std::uint32_t> numbers_;  ///< of the sessions of those that it connects to
  std::vector<char> links_;                   ///< a link is the address of an entry
  std::vector<std::unique_ptr<stage_driver>> stages_;
  std::vector<std::unique_ptr<rank_driver>> ranks_;
  std::map<rank_address, rank_driver*> rank_of_;
  std::map<stage_key, stage_driver*> stage_of_;
  std::vector<stage_driver*> notified_;
  std::map<channel_key, std::string> mailbox_;
  std::unique_ptr<job> job_;
  std::deque<mail> local_mail_;
  nanoseconds local_last_ = 0;
  copy_fetches fetches_;
  std::map<copy_key, std::string> fetched_;
  std::map<copy_key, expected_copy> expected_;
  std::map<copy_key, std::vector<std::function<void(bool)>>> fetch_receivers_;
  bool watches_ = false;     ///< from now on failures of connections are reported
  std::string unreachable_;  ///< what failed before; empty: nothing
  bool has_ended_ = false;   ///< the node's actors are gone
  bool is_leaving_ = false;
  bool is_over_ = false;  ///< the transport is closed
  std::function<void()> on_left_;
  std::shared_ptr<bool> lives_ = std::make_shared<bool>(true);
};

}  // namespace rrfp::cluster
