/// Tensors, bytes of collectives and messages of actors between processes, over UCX active
/// messages.
///
/// Each node has one UCX worker and one progress thread. send() calls UCX itself while that thread
/// sleeps, and else leaves the message to it. Small messages are sent at once and received into a
/// pooled slab. Large ones are announced, and the receiver fetches them in order of arrival within
/// `inflight_bytes_max`, so unexpected messages neither block nor exhaust memory. A message reaches
/// its sink once or not at all; messages may overtake each other, except actor messages.
///
/// Start: open, exchange address() between nodes, set on_failure, connect to every node, bind the
/// local ranks, route the remote ones, wait until all nodes have done so, send. End: all nodes
/// agree to end, then each closes. Each run of a job opens a new transport with an epoch of its
/// own.
///
/// The wire format is described in libactors/rrfp/transport/ucx/wire_format.md.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/base/result.hpp>
#include <rrfp/core/transport_core.hpp>
#include <rrfp/tp_coord/rank_channel.hpp>
#include <rrfp/transport/transport.hpp>

namespace rrfp::actors {

/// The fault that a test or the weather injects into one message at its sender.
struct fault {
  bool drop = false;
  bool corrupt = false;               ///< the data no longer matches its checksum
  std::uint32_t duplicates = 0;       ///< further copies, sent at once
  std::chrono::microseconds delay{};  ///< before the message itself is sent
};

/// `allocate` returns memory aligned to 64 bytes, or null. Both empty: the system allocator.
struct slab_memory {
  std::function<void*(std::size_t bytes)> allocate;
  std::function<void(void*)> free;
};

struct ucx_options {
  node_id node;
  /// Drawn once per job; messages of another job are dropped.
  std::uint64_t job_token = 0;
  /// The number of the run in its job; messages of another run are dropped.
  std::uint32_t epoch = 0;

  /// UCX_TLS, unless the environment sets it; empty: UCX chooses.
  std::string tls;
  /// UCX_NET_DEVICES, unless the environment sets it: the network devices. "lo" stays within this
  /// machine; empty: UCX chooses.
  std::string net_devices;
  /// A message of at most this size is sent at once; a larger one is announced.
  std::size_t eager_bytes_max = 8 * 1024;
  /// Sender and receiver treat a larger message as a failure of the other node.
  std::size_t message_bytes_max = std::size_t{1} << 30;
  /// Limit of data being fetched at the same time, without delivered data. At least
  /// message_bytes_max.
  std::size_t inflight_bytes_max = std::size_t{1} << 30;
  /// The same for actor messages, which are not fetched; also the limit of those of a node that
  /// wait for earlier ones sent before it.
  std::size_t actor_message_bytes_max = std::size_t{1} << 30;
  /// Limit of unused memory kept for later messages.
  std::size_t cached_bytes_max = std::size_t{1} << 30;
  /// Limit of bytes for one member of a rank_channel that wait for a receive().
  std::size_t unexpected_bytes_max = std::size_t{256} << 20;
  /// Whether data has a checksum. Headers always have one.
  bool checksum_data = true;

  /// How long the progress thread polls for work before it sleeps.
  std::chrono::microseconds spin{20};
  /// UCX_KEEPALIVE_INTERVAL, unless the environment sets it: how often UCX checks silent peers on
  /// this machine.
  std::chrono::milliseconds keepalive{500};
  /// Limit of the time that close() waits for the answers of other nodes and for UCX.
  std::chrono::milliseconds close_max{2000};

  /// Memory for received data instead of system memory, such as pinned memory.
  slab_memory memory;

  /// Called first on the thread that opens and on the progress thread, the only ones that touch
  /// memory of devices. Other threads that send call UCX without it.
  std::function<void()> enter_thread;
  /// Called on the progress thread after each round in which it did something, and at its end. It
  /// may send.
  std::function<void()> after_round;

  /// Called on the progress thread for each tensor that leaves the node.
  std::function<fault(const message_header&)> inject;
};

struct ucx_counters : messaging::transport_counts {
  std::uint64_t slabs_in_use = 0;  ///< currently, by this transport or by delivered tensors
  std::uint64_t slab_bytes_cached = 0;
};

/// Ranks that exchange bytes; the position in `members` identifies a rank.
struct channel_group {
  /// The same on all members, and different from every other group of this job.
  std::uint32_t id = 0;
  std::vector<rank_address> members;
};

/// Thread-safe.
class ucx_transport final : public transport {
 public:
  /// Errors: UCX does not have the requested transport; limits contradict each other.
  static result<std::unique_ptr<ucx_transport>> open(ucx_options options);
  ~ucx_transport() override;

  /// Passed to connect() on other nodes; opaque bytes.
  const std::string& address() const;
  /// Call it before the first connect(). `failed` is called on the progress thread, at most once
  /// per node, and must not block. After that no message is received from that node or sent to it.
  void on_failure(std::function<void(node_id, std::string why)> failed);
  /// Call it before other nodes send. A large tensor without a checksum is fetched to the tensor
  /// that `allocate` returns on the progress thread; if that is undefined, to options.memory like
  /// all other data. It may return device memory only if takes_cuda().
  using device_allocator = std::function<tensor_buffer(const rank_address& to,
                                                       std::span<const std::int64_t> sizes, dtype)>;
  void fetch_to_devices(device_allocator allocate);
  /// Whether UCX was built to read and write memory of CUDA devices.
  bool takes_cuda() const;
  /// Errors: a malformed or damaged address, a node that UCX cannot reach, or one already
  /// connected.
  status connect(node_id node, const std::string& address);
  /// Reports the failure of a node that the control connection has detected, as if UCX had: UCX
  /// never detects a stopped process.
  void give_up(node_id node, std::string why);

  /// The node of a remote address. Addresses that are bound on this node need no route.
  void route(rank_address address, node_id node);
  /// The sink is called on the progress thread, or by a sender in the same process.
  void bind(rank_address address, message_sink sink) override;
  /// The tensor must be in host memory, unless takes_device_memory(). If the address is bound here,
  /// the sink gets the tensor itself; otherwise the address must be routed to a connected node.
  /// Only the sender's memory slots limit the queue.
  void send(message m) override;
  /// True for addresses that are bound here, and for all addresses if takes_cuda().
  bool takes_device_memory(const rank_address& to) const override;
  /// The channel of group.members[own], which is on this node. Every other member is on this node
  /// or routed. A channel is thread-safe. A receive() polls for some microseconds before it sleeps,
  /// and a small message that arrives meanwhile is copied straight into its buffer.
  std::unique_ptr<tp_coord::rank_channel> open_channel(const channel_group& group, rank_id own);
  /// Returns within about close_max. Must not be called by a sink. Received tensors stay valid.
  void close() override;

  /// Call it before other nodes send actor messages. `read` gets what send_actor_message() of the
  /// node has sent, in that order and once, on the progress thread, and must not block. Error: it
  /// does not understand the bytes, and the node has failed.
  using actor_message_reader = std::function<status(node_id from, std::string_view bytes)>;
  void on_actor_message(actor_message_reader read);
  /// To a connected node. Never blocks; dropped if the node has failed or left.
  void send_actor_message(node_id to, std::string bytes);

  ucx_counters counters() const;
  /// One line for the user: the transports that UCX chose for each connected node.
  std::string transports();

 private:
  class core;
  explicit ucx_transport(std::shared_ptr<core> c);

  const std::shared_ptr<core> core_;
};

}  // namespace rrfp::actors
