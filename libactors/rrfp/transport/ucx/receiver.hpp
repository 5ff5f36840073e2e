/// Receives messages as the core decides: copies small data at once and fetches large data when it
/// is due. Used only by the progress thread; on_message and on_disconnect run inside
/// ucp_worker_progress and must not make progress themselves.
#pragma once

#include "peer_table.hpp"
#include "sender.hpp"
#include "wire_format.hpp"

namespace rrfp::actors::ucx {

class receiver {
 public:
  receiver(node_state& node, worker& w, sender& out);
  receiver(const receiver&) = delete;
  receiver& operator=(const receiver&) = delete;

  /// Begins the fetches that the limit allows. True if it began one.
  bool begin_fetches();

  /// Drops every message from now on, except disconnect messages.
  void close();

 private:
  struct fetch {
    receiver* owner;
    any_header header;
    slab into;                ///< host memory, or
    tensor_buffer on_device;  ///< memory of a rank's device
  };

  template <class Header>
  static ucs_status_t on_message(void* arg, const void* header, std::size_t header_bytes,
                                 void* data, std::size_t bytes, const ucp_am_recv_param_t* how);
  static ucs_status_t on_disconnect(void* arg, const void* header, std::size_t header_bytes,
                                    void* data, std::size_t bytes, const ucp_am_recv_param_t* how);
  static void on_fetched(void* request, ucs_status_t how, std::size_t bytes, void* arg);

  // Data that came with its header.
  void take(const tensor_header& h, std::span<const std::byte> data);
  void take(const bytes_header& h, std::span<const std::byte> data);
  void take(const actor_message_header& h, std::span<const std::byte> data);
  /// Undefined: fetch to host memory.
  tensor_buffer allocate_on_device(const any_header& h) const;
  void begin_fetch(fetch_order order);
  void end_fetch(std::unique_ptr<fetch> f, ucs_status_t how);
  delivery deliver(const tensor_header& h, slab data);
  delivery deliver(const bytes_header& h, slab data);
  /// Passes intact data to its mailbox, or takes it as the reason to close that. `holder`: the slab
  /// that holds the data, or empty.
  delivery put(const bytes_header& h, std::span<const std::byte> data, slab holder = {});

  node_state& node_;
  worker& worker_;
  sender& out_;
};

}  // namespace rrfp::actors::ucx
