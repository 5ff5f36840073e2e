/// The network between the nodes: which way is cut or slow, and the control connections, which are
/// like those of TCP: in order and reliable, so a cut delays their bytes, and only a reset or the
/// end of a process loses any. The tensors and mail of a session travel in data_network.hpp.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include <rrfp/core/membership_messages.hpp>

#include "world.hpp"

namespace rrfp::cluster {

/// Delays between two nodes, and the ways that are cut.
class ways {
 public:
  explicit ways(const world& w);

  void cut(std::uint32_t from, std::uint32_t to, nanoseconds until);
  void slow(std::uint32_t from, std::uint32_t to, nanoseconds until);
  /// When what is sent now leaves; later than now while the way is cut.
  nanoseconds opens(std::uint32_t from, std::uint32_t to) const;
  nanoseconds draw_delay(std::uint32_t from, std::uint32_t to);
  /// The machine of the node is down, or up again: what is sent there has no answer.
  void set_dark(std::uint32_t node, bool dark) { dark_[node] = dark; }
  bool is_dark(std::uint32_t node) const { return dark_[node]; }

 private:
  struct way {
    nanoseconds cut_until = 0;
    nanoseconds slow_until = 0;
  };
  way& at(std::uint32_t from, std::uint32_t to) { return ways_[from * nodes_ + to]; }
  const way& at(std::uint32_t from, std::uint32_t to) const { return ways_[from * nodes_ + to]; }

  const world& world_;
  const std::uint32_t nodes_;
  std::vector<way> ways_;
  std::vector<bool> dark_;  ///< by node
  random_source random_;
};

// ---- control connections

/// What a node says first; the leader accepts or refuses it.
struct claim {
  std::uint32_t version = 0;
  std::uint64_t key = 0;
  std::uint32_t node = 0;
  membership_core::process_id process{};
  bool again = false;
};
struct accepted {};
struct refused {
  std::string reason;
  bool for_now = false;
  bool lost = false;
};
using frame = std::variant<claim, accepted, refused, membership_core::any_message>;

/// One side of a connection.
class control_end {
 public:
  std::deque<std::shared_ptr<const frame>> inbox;
  bool has_ended = false;  ///< nothing more will come
  bool is_closed = false;  ///< by this side
  std::function<void()> on_arrival;
  std::uint32_t node = 0;
};

class control_connection : public std::enable_shared_from_this<control_connection> {
 public:
  control_connection(world& w, ways& through, std::uint32_t from, std::uint32_t to);

  /// Side 0 has connected, side 1 was connected to.
  control_end& end(int side) { return ends_[side]; }
  /// `urgent` frames overtake the others; those travel one after the other.
  void send(int side, frame f, bool urgent);
  /// After what was sent.
  void close(int side);
  /// Both sides see the end at once; what travels is lost.
  void reset();

 private:
  struct direction {
    nanoseconds last = 0;  ///< arrival of what was sent last
    std::deque<std::shared_ptr<const frame>> bulk;
    bool pumps = false;
    bool closes = false;
  };

  void travel(int to, std::shared_ptr<const frame> f);
  void pump(int from);
  void finish(int from);
  nanoseconds arrival(int from);
  void notify(int side);

  world& world_;
  ways& ways_;
  control_end ends_[2];
  direction directions_[2];  ///< by the sending side
  bool was_reset_ = false;
};

/// Where the nodes meet: a listening socket, of node 0 or of its successor, and who waits for it to
/// accept.
class rendezvous {
 public:
  /// `stays_open`: the launcher keeps the socket, so it listens whoever runs.
  rendezvous(world& w, ways& through, std::uint32_t node, bool stays_open)
      : world_(w), ways_(through), node_(node), stays_open_(stays_open) {}

  /// Of the node's process; replaced by the next one.
  void listen(std::function<void()> on_connection);
  void stop_listening();
  bool is_listened_to() const { return on_connection_ != nullptr; }
  /// The next connection that waits, if any.
  std::shared_ptr<control_connection> accept();

  /// Null: nobody listens, which the other machine refuses if it is up, or the way is cut for too
  /// long.
  using connected = std::function<void(std::shared_ptr<control_connection>, bool is_refused)>;
  void connect(std::uint32_t from, connected done);
  /// Whether what is sent there is answered within `limit`.
  bool is_reached(std::uint32_t from, nanoseconds limit) const;

 private:
  world& world_;
  ways& ways_;
  const std::uint32_t node_;
  const bool stays_open_;
  std::function<void()> on_connection_;
  std::deque<std::shared_ptr<control_connection>> backlog_;
};

}  // namespace rrfp::cluster
