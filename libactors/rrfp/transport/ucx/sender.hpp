/// Sends messages as the core decides: writes their headers, passes them to UCX and keeps their
/// memory until UCX has released it. Used only by the thread that drives UCX
/// (progress_thread.hpp).
#pragma once

#include <chrono>
#include <queue>

#include "node_state.hpp"
#include "peer_table.hpp"
#include "wire_format.hpp"

namespace rrfp::actors::ucx {

/// Active message numbers.
enum class am : unsigned { tensor = 1, bytes = 2, disconnect = 3, actor_message = 4 };

/// A tensor queued for the progress thread; contiguous, in memory that UCX can read.
struct tensor_send {
  node_id to;
  tensor_header header;
  tensor_buffer tensor;
};

struct bytes_send {
  node_id to;
  bytes_header header;
  slab data;
};

struct actor_message_send {
  node_id to;
  std::string data;
};

class sender {
 public:
  using clock = std::chrono::steady_clock;

  explicit sender(node_state& node) : node_(node) {}
  sender(const sender&) = delete;
  sender& operator=(const sender&) = delete;

  void send(tensor_send s);
  void send(bytes_send s);
  void send(actor_message_send s);
  void send_disconnect(node_id to, bool is_answer, chosen_link by);

  /// Sends the messages that a fault has delayed until now. True if there was one.
  bool send_due();
  /// When the next delayed message is due; time_point::max() if there is none.
  clock::time_point next_due() const;
  /// Drops the delayed messages.
  void drop_held() { held_ = {}; }
  /// Number of messages whose memory UCX still uses.
  std::size_t pending() const { return pending_; }

 private:
  /// The memory that UCX reads while it sends one message.
  struct outgoing {
    sender* owner = nullptr;
    am kind = am::tensor;
    node_id to;
    header_buffer header;
    std::size_t header_bytes = 0;
    tensor_buffer tensor;
    slab bytes;
    std::string message;
    const void* data = nullptr;
    std::size_t data_bytes = 0;
  };

  struct held {
    clock::time_point due;
    std::uint64_t number;
    tensor_send message;

    bool operator<(const held& other) const {
      return std::tie(other.due, other.number) < std::tie(due, number);  // the earliest on top
    }
  };

  void send_numbered(tensor_send s);
  std::unique_ptr<outgoing> take(am kind, node_id to);
  void hand_over(std::unique_ptr<outgoing> o, chosen_link by);
  void done(std::unique_ptr<outgoing> o, ucs_status_t how);
  static void on_sent(void* request, ucs_status_t how, void* arg);

  node_state& node_;
  std::priority_queue<held> held_;
  std::uint64_t held_count_ = 0;
  std::size_t pending_ = 0;
  std::unique_ptr<outgoing> spare_;  ///< reused, because most messages are sent before the next one
};

}  // namespace rrfp::actors::ucx
