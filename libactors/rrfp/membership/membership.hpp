/// How the node processes of a job find, authenticate and monitor each other.
///
///   auto joined = membership::join(options);          // blocks until all nodes have joined
///   joined.value()->on_lost([](node_id, std::string why) { ... });
///   ...
///   joined.value()->leave();                         // the others do not report a loss
///
/// A star: every node keeps one TCP connection to node 0 for the life of the job. On both ends a
/// dedicated thread sends heartbeats, so a node that dies (end of file), hangs or is cut off (no
/// heartbeat) is detected whatever the rest of its process does. Node 0 writes the message of a
/// loss and sends it to all others, so every process reports the same one. Only if node 0 is lost
/// does each node write the message itself. A node 0 that was stalled takes over that message when
/// it resumes, and a node 0 that receives no heartbeat at all reports itself as lost.
///
/// The first loss ends the job; later losses follow from it and are not reported.
///
/// The connections are TLS 1.3 with a shared key (WIRE.md in libactors/rrfp/membership): only a
/// process with the key of the job may join. A refused join closes its own connection and affects
/// nothing else.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include <rrfp/base/ids.hpp>
#include <rrfp/base/result.hpp>
#include <rrfp/core/leader_choice.hpp>
#include <rrfp/core/membership_events.hpp>
#include <rrfp/core/rank_hosts.hpp>

namespace rrfp::actors {

using membership_core::description_bytes_max;
using membership_core::gather_bytes_max;
using membership_core::member;
using membership_core::nodes_max;
using membership_core::status_bytes_max;

namespace control {
struct address;
class life_line;
}  // namespace control

/// What a process knows over all its memberships: that it was declared lost, so that another one
/// may have its place, which nodes it expects after a loss, who leads, or that the job is over.
/// Thread-safe.
class process_standing {
 public:
  using process_id = membership_core::process_id;

  struct knowledge {
    std::set<process_id> lost;
    membership_core::leader_choice choice;
    std::optional<std::int64_t> awake_at;  ///< as core_options::awake_at
    bool has_joined = false;
    /// All nodes have agreed on the end: whoever comes now has nothing to do.
    bool is_over = false;
  };

  /// `fenced`: a lost process may not join again. Then this draws the identity of this process.
  explicit process_standing(bool fenced);
  ~process_standing();

  process_id process() const { return process_; }
  knowledge now() const;
  void change(const std::function<void(knowledge&)>& change);
  /// This process was declared lost, or was stopped for so long that it must have been.
  bool is_lost() const { return now().lost.contains(process_); }
  bool is_over() const { return now().is_over; }

  /// Opens the life line of this process on the host of `here`, unless it is open. Returns its
  /// port; 0: it cannot be opened.
  std::uint16_t open_life_line(const control::address& here);
  control::life_line* life_line() const { return life_line_.get(); }

 private:
  const process_id process_;
  std::unique_ptr<control::life_line> life_line_;  ///< opened before others are told of it
  mutable std::mutex mutex_;
  knowledge now_;
};

struct membership_options {
  std::uint32_t nodes = 1;
  node_id node{0};
  /// The address where node 0 listens. An address other than loopback requires a key.
  std::string rendezvous_host = "127.0.0.1";
  std::uint16_t rendezvous_port = 0;  ///< 0 on node 0: any free port
  /// Node 0: called on another thread, with the port, once it listens. An error ends the join.
  std::function<status(std::uint16_t)> on_listening;
  /// A socket that already listens, instead of host and port; node 0 only. The membership owns it.
  int listen_fd = -1;
  /// A file of 16 bytes or more that only its owner may access, the same on every node.
  std::string key_file;
  /// Without a key file: a descriptor of key_descriptor(), which the membership owns. Without both,
  /// the variable RRFP_KEY of the environment; and without it, the nodes share a key in a file of
  /// this user, named by the port of the rendezvous, in $XDG_RUNTIME_DIR or /tmp; node 0 removes
  /// it.
  int key_fd = -1;

  /// These four and `nodes` must be the same on every node.
  std::string job_id;
  std::uint64_t job_hash = 0;
  std::string version;
  std::string vector_instructions;

  /// The work of this node, for messages: "stages 1, 2".
  std::string description;

  std::chrono::milliseconds join_timeout{60'000};
  std::chrono::milliseconds heartbeat{200};
  /// Time without a heartbeat after which a node is lost; at least three heartbeats. A closed
  /// connection is a loss at once.
  std::chrono::milliseconds node_timeout{10'000};

  /// Null on all nodes or on none.
  std::shared_ptr<process_standing> standing;
  /// After a loss the job goes on without nodes if this has a place for each rank; the same on
  /// every node. If it may lack nodes, requires `standing`.
  rank_hosts hosts{};

  /// How long a process that learns of the end while it joins tells it to others; see leave().
  std::chrono::milliseconds telling_max{0};
  /// Called about once a second by a join that waits, with what it waits for, and by an exchange
  /// that waits, with an empty text.
  std::function<void(std::string)> on_waiting;

  /// Releases a blocked join or exchange, like interrupt().
  std::stop_token stop;
  /// Node 0: called on the watch thread with one line for each refused join, at most 100.
  std::function<void(std::string)> on_refused;
  /// Called on the watch thread with one line when a joined node disconnects before the job begins:
  /// on node 0 for any node, on the others for node 0. This is no loss: the join continues to wait.
  std::function<void(std::string)> on_gone_early;
};

struct node_loss {
  node_id node;
  std::string why;  ///< for the user
};

/// The membership of this process in a job. Thread-safe; but the on_lost callback must not call the
/// functions that block (exchange, leave, the destructor).
class membership {
 public:
  /// Blocks until all nodes have joined, or enough of them. Node 0 listens; the others retry until
  /// node 0 is up. An error says what was expected, what was found, and which nodes are missing. It
  /// is node_lost if a later join may succeed: nodes did not join in time, node 0 was unreachable,
  /// or the previous job or process of this node still runs. With options.standing it is also
  /// node_lost if an earlier process of node 0 still has the port, or if this process was declared
  /// lost, which standing->is_lost() then returns.
  static result<std::unique_ptr<membership>> join(membership_options options);

  membership() = default;
  /// The other nodes report this node as lost unless leave() was called before.
  virtual ~membership() = default;
  membership(const membership&) = delete;
  membership& operator=(const membership&) = delete;

  virtual node_id node() const = 0;
  /// Node 0, or the node that has taken its place after its loss. Whatever below is said of node 0
  /// is meant of the leader.
  virtual node_id leader() const = 0;
  bool leads() const { return node() == leader(); }
  /// How many nodes the job has.
  virtual std::uint32_t nodes() const = 0;
  /// On node 0 all nodes, by number; on the others node 0 alone.
  virtual const std::vector<member>& members() const = 0;
  /// On node 0: the nodes that the job has gone on without.
  std::vector<node_id> absent() const;
  /// Add it to this process's steady_clock to get that of node 0; 0 on node 0. It is the offset of
  /// the quickest of the last 64 heartbeat round trips (the clock filter of NTP).
  virtual std::chrono::nanoseconds clock_offset() const = 0;

  /// Sets the callback of the first loss; it gets the node and a message for the user. It is called
  /// once, on the watch thread, and immediately if a node is already lost. It must not block,
  /// because heartbeats wait for it. After this returns, the previous callback is not called. May
  /// be null.
  virtual void on_lost(std::function<void(node_id, std::string why)> callback) = 0;

  /// Node 0: sets the callback of an absent node that waits to join, called as that of on_lost(),
  /// and several times for one node.
  virtual void on_node_waits(std::function<void(node_id)> callback) = 0;

  /// The loss, for which it waits at most `limit`; nothing if there is none.
  virtual std::optional<node_loss> loss(std::chrono::milliseconds limit = {}) = 0;

  /// The progress of this node ("step 12"), sent with heartbeats and named if the node is lost.
  virtual void set_status(const std::string& text) = 0;

  /// Makes the answers of node 0 to what all nodes have contributed, by number: one for each node,
  /// or one for all.
  using answering = std::function<std::vector<std::string>(std::vector<std::string> all)>;

  /// Every node contributes bytes (gather_bytes_max at most); node 0 calls `answer`, and each node
  /// gets its answer. All nodes must call exchange() in the same order, from one thread at a time.
  /// Error: a node was lost or left, or `limit` has passed (node_lost), or interrupt(). After an
  /// error no further exchange is possible.
  virtual result<std::string> exchange(std::string bytes, std::chrono::milliseconds limit,
                                       const answering& answer) = 0;

  /// The last exchange, without bytes: all nodes agree that the job is over. A node for which this
  /// has succeeded does not report a loss any more; leave() tells the end to replacements of nodes
  /// that were lost before they knew it. Requires options.standing.
  virtual status finish(std::chrono::milliseconds limit) = 0;

  /// Leaves the job: from now on neither does the end of this node count as a loss, nor does this
  /// node report one. Returns when node 0 (on node 0: all others) has answered, or after `limit`.
  /// After the last exchange: when all nodes, or their replacements, know the end; nobody is left
  /// then who could tell it to a replacement of this process, so `at_the_end`, called at once on a
  /// thread of the membership, may end the process.
  virtual void leave(std::chrono::milliseconds limit = std::chrono::seconds{5},
                     std::function<void()> at_the_end = {}) = 0;

  /// Ends a blocked exchange, and every later one, with an error.
  virtual void interrupt() = 0;
};

/// A socket that listens on a free port of 127.0.0.1, for a launcher that starts all nodes of a job
/// on this machine. It stays open across exec.
struct listening_socket {
  int fd = -1;
  std::uint16_t port = 0;
};
result<listening_socket> listen_on_loopback();

/// A descriptor with a random key, for the same launcher: nobody else on this machine can join the
/// nodes that inherit it. It stays open across exec.
result<int> key_descriptor();

}  // namespace rrfp::actors
