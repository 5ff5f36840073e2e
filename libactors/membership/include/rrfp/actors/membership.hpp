/// How the node processes of a job find, check and watch each other.
///
///   auto joined = membership::join(options, card);   // blocks until all nodes are here
///   joined.value()->on_lost([](node_id, std::string why) { ... });
///   ...
///   joined.value()->leave();                         // orderly: no loss to anybody
///
/// A star: every node keeps one TCP connection to rank 0 for the life of the job. A thread of its
/// own on either end sends heartbeats, so that a node that died (end of file), hangs or is cut off
/// (silence) is noticed whatever the rest of the process does. Rank 0 words the loss and tells it
/// to all others: every process of a job reports the same message. Only the loss of rank 0 is
/// worded by each itself; a rank 0 that stood still meanwhile takes their word for it when it wakes
/// up, and one that hears nobody any more knows that it is cut off itself.
///
/// The first loss ends the job: later ones are its consequences and are not told.
///
/// Who may join is settled by a mutual challenge over a shared key (WIRE.md in
/// libactors/membership); a refused join costs its own connection and nothing else.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include <rrfp/schedule/ids.hpp>
#include <rrfp/schedule/result.hpp>

namespace rrfp::actors {

/// Limits of a job's control plane.
inline constexpr std::uint32_t nodes_max = 4096;
inline constexpr std::size_t card_bytes_max = 64 * 1024;
inline constexpr std::size_t description_bytes_max = 1024;
inline constexpr std::size_t status_bytes_max = 256;
/// What one node may give to one exchange.
inline constexpr std::size_t gather_bytes_max = 64 * 1024 * 1024;

struct membership_options {
  std::uint32_t nodes = 1;
  node_id rank{0};
  /// Where rank 0 listens and the others find it. Any address but a loopback one demands a key
  /// file.
  std::string rendezvous_host = "127.0.0.1";
  std::uint16_t rendezvous_port = 0;
  /// A socket that listens already, in place of host and port: rank 0 only. Owned by the
  /// membership.
  int listen_fd = -1;
  /// A file of 16 bytes or more that only its owner may read, the same for every node; "": no key.
  std::string key_file;

  /// These five (nodes is the fifth) must be the same on every node.
  std::string job_id;
  std::uint64_t job_hash = 0;
  std::uint32_t epoch = 0;
  std::string version;

  /// What this node does, for messages: "stages 1, 2".
  std::string description;

  std::chrono::milliseconds join_timeout{60'000};
  std::chrono::milliseconds heartbeat{200};
  /// Silence after which a node is lost. At least three heartbeats. A connection that is closed
  /// is a loss at once.
  std::chrono::milliseconds node_timeout{10'000};

  /// Releases a blocked join or exchange, like interrupt().
  std::stop_token stop;
  /// If not null: set by a join() that fails because others did not come in time, could not be
  /// reached, or still hold the job or the place that this node had before, so that another one may
  /// succeed.
  bool* may_join_later = nullptr;
  /// Rank 0: one line for each refused join (100 at most), from the watch thread.
  std::function<void(std::string)> on_refused;
  /// One line when a node that had joined goes away before all have, from the watch thread: rank 0
  /// tells of any, the others of rank 0. Nothing is lost yet: this node waits for it to join again.
  std::function<void(std::string)> on_gone_early;
};

struct member {
  node_id node;
  /// Its address as rank 0 sees it; of rank 0, the address that this node reached it by.
  std::string host;
  /// What that node gave to join(), opaque here.
  std::string card;
  std::string description;
};

/// The membership of this process in a job. Every function may be called from any thread, but not
/// from the on_lost callback's own call when it blocks (all_gather, gather, leave, the destructor).
class membership {
 public:
  /// Blocks until all nodes have joined. Rank 0 listens; the others try again until rank 0 is up.
  /// An error says what was expected, what came, and which nodes are missing.
  static result<std::unique_ptr<membership>> join(membership_options options, std::string card);

  /// Without a leave() before it, the others see this node as lost.
  ~membership();
  membership(const membership&) = delete;
  membership& operator=(const membership&) = delete;

  node_id node() const;
  /// All nodes, by rank.
  const std::vector<member>& members() const;
  /// What to add to this process's steady_clock to get rank 0's; 0 on rank 0. Refined as heartbeats
  /// come and go: the offset of the quickest of the last 64 round trips (the clock filter of NTP).
  std::chrono::nanoseconds clock_offset() const;

  /// Called once, from the watch thread, with the node and a message for the user; at once if a
  /// node is lost already. Must not block: heartbeats wait for it. Takes the place of the callback
  /// before it, which is not called any more once this returns; null: nobody is told.
  void on_lost(std::function<void(node_id, std::string why)> callback);

  /// The message of the loss; waits for one for `limit`. Empty: none.
  std::string loss(std::chrono::milliseconds limit = {});

  /// What this node is at ("step 12"), told with the heartbeats and in the message of its loss.
  void set_status(std::string text);

  /// Every node gives bytes and gets those of all, by rank. All nodes call it and gather() in the
  /// same order, from one thread at a time. Ends with an error when a node is lost or has left,
  /// after `limit`, or when interrupted; after an error no further exchange is possible.
  result<std::vector<std::string>> all_gather(std::string bytes, std::chrono::milliseconds limit);

  /// The same, but the bytes go to rank 0 alone: the others get nothing, and return when rank 0 has
  /// those of all. A node that ends before it called this, ends it for all.
  result<std::vector<std::string>> gather(std::string bytes, std::chrono::milliseconds limit);

  /// Orderly goodbye: this node's end is no loss to the others from here on, and this node hears of
  /// no loss. Returns when the others know (rank 0: all of them), after `limit` at the latest.
  void leave(std::chrono::milliseconds limit = std::chrono::seconds{5});

  /// Releases a blocked exchange, now and from here on.
  void interrupt();

 private:
  class impl;
  explicit membership(std::unique_ptr<impl> state);

  std::unique_ptr<impl> impl_;
};

/// A socket that listens on a free port of 127.0.0.1, for a launcher that starts the nodes of a job
/// on its own machine. Survives exec.
struct listening_socket {
  int fd = -1;
  std::uint16_t port = 0;
};
result<listening_socket> listen_on_loopback();

}  // namespace rrfp::actors
