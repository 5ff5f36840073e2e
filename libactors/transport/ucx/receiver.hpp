/// Receives messages: checks headers, drops duplicates, copies small data at once and fetches large
/// data in order of arrival within `inflight_bytes_max`. Used only by the progress thread;
/// on_tensor, on_bytes and on_farewell run inside ucp_worker_progress and must not make progress
/// themselves.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <variant>

#include "node_state.hpp"
#include "peer_table.hpp"
#include "sender.hpp"
#include "sequence_window.hpp"
#include "wire_format.hpp"

namespace rrfp::actors::ucx {

class receiver {
 public:
  receiver(node_state& node, worker& w, peer_table& peers, sender& out);
  receiver(const receiver&) = delete;
  receiver& operator=(const receiver&) = delete;

  /// From now on `allocate` provides the memory of each large tensor without a checksum.
  void fetch_to_devices(ucx_transport::device_allocator allocate) {
    allocator_ = std::move(allocate);
  }
  /// Begins the fetches that the limit allows. True if it began one.
  bool begin_fetches();
  std::size_t fetching() const { return fetching_; }

  /// From now on drops every message except farewells.
  void close();
  /// Whether the node has answered the farewell of this node.
  bool has_answered(node_id node) const { return answered_.contains(node); }

 private:
  using edge = std::pair<rank_address, rank_address>;
  using any_header = std::variant<tensor_header, bytes_header>;

  /// Data that stays at its sender until the limit allows the fetch.
  struct announcement {
    any_header header;
    void* descriptor;
  };
  struct fetch {
    receiver* owner;
    any_header header;
    slab into;             ///< host memory, or
    at::Tensor on_device;  ///< memory of a rank's device
  };

  static ucs_status_t on_tensor(void* arg, const void* header, std::size_t header_bytes, void* data,
                                std::size_t bytes, const ucp_am_recv_param_t* how);
  static ucs_status_t on_bytes(void* arg, const void* header, std::size_t header_bytes, void* data,
                               std::size_t bytes, const ucp_am_recv_param_t* how);
  static ucs_status_t on_farewell(void* arg, const void* header, std::size_t header_bytes,
                                  void* data, std::size_t bytes, const ucp_am_recv_param_t* how);
  static void on_fetched(void* request, ucs_status_t how, std::size_t bytes, void* arg);

  template <class Header>
  bool is_acceptable(const Header& h, std::size_t bytes);
  bool is_fresh(const tensor_header& h);
  ucs_status_t announce(any_header h, void* descriptor);
  /// Undefined: fetch to host memory.
  at::Tensor allocate_on_device(const any_header& h) const;
  void begin_fetch(announcement a);
  void end_fetch(std::unique_ptr<fetch> f, ucs_status_t how);
  void deliver(const tensor_header& h, slab data);
  void deliver(const tensor_header& h, at::Tensor t);
  void deliver(const bytes_header& h, slab data);
  /// Passes intact data to its mailbox: with `arrive`, or as the reason to close it.
  template <class Arrive>
  void put(const bytes_header& h, std::span<const std::byte> data, Arrive arrive);
  void deliver_small(const bytes_header& h, std::span<const std::byte> data);
  void count_delivered(std::uint64_t bytes);

  node_state& node_;
  worker& worker_;
  peer_table& peers_;
  sender& out_;
  std::map<edge, sequence_window> windows_;
  ucx_transport::device_allocator allocator_;
  std::deque<announcement> announced_;
  std::size_t fetching_ = 0;
  std::set<node_id> answered_;
  bool closed_ = false;
};

}  // namespace rrfp::actors::ucx
