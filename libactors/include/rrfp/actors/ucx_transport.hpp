/// Tensors and bytes between processes, over UCX active messages.
///
/// One UCX worker and one progress thread a node; every UCX call happens on that thread, and send()
/// only queues and wakes it. Small messages travel at once and land in a pooled slab. Large ones
/// are announced, and fetched in order of arrival when `inflight_bytes_max` has room, so an
/// unexpected arrival neither blocks nor exhausts anything. A message reaches its sink once or not
/// at all; messages may overtake each other.
///
/// Start: open, exchange address() between nodes, set on_failure, connect to every node, bind the
/// local ranks, route the remote ones, wait until all nodes have done so, send. End: all nodes
/// agree to end, then each closes. A new epoch (after the loss of a node) opens a new transport.
///
/// The wire format is described in libactors/ucx/wire_format.md.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <rrfp/actors/transport.hpp>
#include <rrfp/schedule/result.hpp>
#include <rrfp/tp_coord/rank_channel.hpp>

namespace rrfp::actors {

/// What a test or a fault plan does to one message at its sender.
struct fault {
  bool drop = false;
  bool corrupt = false;               ///< the data no longer matches its checksum
  std::uint32_t duplicates = 0;       ///< further copies, sent at once
  std::chrono::microseconds delay{};  ///< of the message itself
};

/// Memory aligned to 64 bytes, or null if there is no more; both empty: the system's.
struct slab_memory {
  std::function<void*(std::size_t bytes)> allocate;
  std::function<void(void*)> free;
};

struct ucx_options {
  node_id node;
  /// Drawn once a job; messages of another job are dropped.
  std::uint64_t job_token = 0;
  std::uint32_t epoch = 0;

  /// UCX_TLS unless the environment says otherwise; empty leaves the choice to UCX.
  std::string tls;
  /// UCX_NET_DEVICES unless the environment says otherwise: where the network is listened to. "lo"
  /// keeps all to this machine; empty leaves the choice to UCX.
  std::string net_devices;
  /// Up to here a message travels at once; above it is announced.
  std::size_t eager_bytes_max = 8 * 1024;
  /// A larger message is refused by the sender and by the receiver, as a failure of the other.
  std::size_t message_bytes_max = std::size_t{1} << 30;
  /// Data being fetched at the same time; what has been delivered does not count. At least
  /// message_bytes_max.
  std::size_t inflight_bytes_max = std::size_t{1} << 30;
  /// Unused memory kept for the next arrivals.
  std::size_t cached_bytes_max = std::size_t{1} << 30;
  /// Bytes for one rank of a rank_channel that no receive() has asked for yet.
  std::size_t unexpected_bytes_max = std::size_t{256} << 20;
  /// Checksums of the data. Headers always have one.
  bool checksum_data = true;

  /// How long the progress thread looks for work before it sleeps.
  std::chrono::microseconds spin{50};
  /// UCX_KEEPALIVE_INTERVAL unless the environment says otherwise: how often silent peers on this
  /// machine are looked after.
  std::chrono::milliseconds keepalive{500};
  /// How long close() waits for other nodes to hear of it, and for UCX to let go.
  std::chrono::milliseconds close_max{2000};

  /// Where arriving data goes, if not to memory of the system: what a device reaches by itself.
  slab_memory memory;

  /// Called first on each thread that calls UCX: on the one that opens, and the progress thread.
  std::function<void()> enter_thread;

  /// Called on the progress thread for each tensor that leaves the node.
  std::function<fault(const message_header&)> inject;
};

struct ucx_counters {
  std::uint64_t sent = 0;  ///< tensors and channel messages handed to UCX
  std::uint64_t sent_bytes = 0;
  std::uint64_t received = 0;  ///< tensors and channel messages delivered
  std::uint64_t received_bytes = 0;
  std::uint64_t dropped_duplicate = 0;
  std::uint64_t dropped_stale = 0;        ///< of another job or epoch
  std::uint64_t dropped_invalid = 0;      ///< header does not decode
  std::uint64_t dropped_unreachable = 0;  ///< to a node that failed or left
  std::uint64_t announced = 0;            ///< now waiting to be fetched
  std::uint64_t inflight_bytes = 0;       ///< now being fetched
  std::uint64_t inflight_bytes_peak = 0;
  std::uint64_t slabs_in_use = 0;  ///< now, by this transport or by tensors that it delivered
  std::uint64_t slab_bytes_in_use = 0;
  std::uint64_t slab_bytes_cached = 0;
};

/// Some ranks that exchange bytes; each knows itself and the others by position in `members`.
struct channel_group {
  /// The same on all members and unlike that of any other group of this job.
  std::uint32_t id = 0;
  std::vector<rank_address> members;
};

/// Thread-safe.
class ucx_transport final : public transport {
 public:
  /// Errors: UCX has no transport as demanded, limits that contradict each other.
  static result<std::unique_ptr<ucx_transport>> open(ucx_options options);
  ~ucx_transport() override;

  /// What other nodes need to connect here; opaque bytes.
  const std::string& address() const;
  /// Before the first connect(). `failed` is called on the progress thread, at most once a node,
  /// and only takes note. Afterwards nothing comes from that node or goes to it.
  void on_failure(std::function<void(node_id, std::string why)> failed);
  /// Before others send. Large tensors for a rank are fetched to what `room` gives, asked on the
  /// progress thread; undefined: to memory of the options, as all small ones are and those with a
  /// checksum. Memory of a device only where takes_cuda().
  using device_room =
      std::function<at::Tensor(const rank_address& to, at::IntArrayRef shape, at::ScalarType type)>;
  void fetch_to_devices(device_room room);
  /// Whether UCX was built to read and write memory of CUDA devices.
  bool takes_cuda() const;
  /// Errors: no address, an address cut short, UCX sees no way there, connected already.
  status connect(node_id node, const std::string& address);
  /// The control plane knows that a node is gone or hangs: as if UCX had noticed. UCX never notices
  /// a stopped process.
  void give_up(node_id node, std::string why);

  /// Where a remote address lives. Addresses of the own node need no route once they are bound.
  void route(rank_address address, node_id node);
  /// The sink is called on the progress thread, or by the sender if that is in the same process.
  void bind(rank_address address, message_sink sink) override;
  /// The tensor lies in host memory, unless takes_device_memory(). Bound here, the tensor itself is
  /// handed over; else the address must be routed to a connected node. What is queued is bounded by
  /// the sender's memory slots alone.
  void send(message m) override;
  /// True for addresses that are bound here, and for all if UCX was built for the device.
  bool takes_device_memory(const rank_address& to) const override;
  /// For group.members[own], which lives here. Every other member is routed or lives here too. A
  /// channel is thread-safe; it looks for an arrival for some microseconds before it sleeps, and a
  /// small message that arrives meanwhile is copied straight to its receiver.
  std::unique_ptr<tp_coord::rank_channel> open_channel(const channel_group& group, rank_id own);
  /// At most about close_max. Not from a sink. Received tensors stay valid.
  void close() override;

  ucx_counters counters() const;
  /// One line on what UCX chose for each connected node, for people.
  std::string transports();

 private:
  class core;
  explicit ucx_transport(std::shared_ptr<core> c);

  const std::shared_ptr<core> core_;
};

}  // namespace rrfp::actors
