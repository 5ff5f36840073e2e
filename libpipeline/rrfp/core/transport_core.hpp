/// Decides about the messages between nodes: which node may be sent to, which message is dropped,
/// which announced one is fetched and when, and what is counted.
///
///   a node      connected --failed--> failed      broken connection, invalid message, give_up()
///               connected --left----> left        it sent a disconnect message
///   a message   arrived -> drop | deliver | keep; kept -> fetched -> drop | deliver; -> delivered
///
/// Only the first end of a node is reported; after it nothing is sent to the node. Data that is
/// announced stays at its sender until the limit on fetched bytes allows the fetch; fetches begin
/// in order of arrival.
///
/// Pure: equal calls give equal answers. No call fails, whatever arrives in whatever order. The
/// progress thread drives it; docs/driving-the-core.md has the driver's duties.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <rrfp/base/result.hpp>
#include <rrfp/core/ordered_inbox.hpp>
#include <rrfp/core/sequence_window.hpp>
#include <rrfp/core/transport_frames.hpp>

namespace rrfp::messaging {

struct transport_core_options {
  node_id node;
  std::uint64_t job_token = 0;
  std::uint32_t epoch = 0;
  std::uint64_t eager_bytes_max = 0;     ///< larger messages are announced
  std::uint64_t message_bytes_max = 0;   ///< a larger message is a failure of the other node
  std::uint64_t inflight_bytes_max = 0;  ///< being fetched at the same time
  std::uint64_t actor_message_bytes_max =
      0;  ///< as message_bytes_max, for actor messages, which are not fetched
};

struct transport_counts {
  std::uint64_t sent = 0;  ///< tensors, channel messages and actor messages handed to the library
  std::uint64_t sent_bytes = 0;
  std::uint64_t received = 0;  ///< the same, delivered
  std::uint64_t received_bytes = 0;
  std::uint64_t dropped_duplicate = 0;
  std::uint64_t dropped_stale = 0;        ///< of another job or epoch
  std::uint64_t dropped_invalid = 0;      ///< header does not decode
  std::uint64_t dropped_unreachable = 0;  ///< to a node that failed or left
  std::uint64_t announced = 0;            ///< currently waiting to be fetched
  std::uint64_t inflight_bytes = 0;       ///< currently being fetched
  std::uint64_t inflight_bytes_peak = 0;

  std::uint64_t dropped_others() const {
    return dropped_stale + dropped_invalid + dropped_unreachable;
  }
};

/// What to do with a message.
enum class disposition : std::uint8_t {
  drop,
  deliver,
  keep,  ///< its data, at the sender, until next_fetch() returns it
};

/// Over which connection a message goes; null: it is dropped.
struct chosen_link {
  void* link = nullptr;
  bool is_announced = false;
};

using any_header = std::variant<tensor_header, bytes_header>;

struct fetch_order {
  any_header header;
  void* descriptor = nullptr;  ///< as passed to arrived()
  bool is_stale = false;       ///< drop it; nothing is fetched
};

/// What settle() found: a connection to close, a node whose end is to be reported, or both.
struct node_end {
  node_id node;
  void* broken_link = nullptr;  ///< to be closed; null: none
  bool is_new = false;          ///< report it
  bool has_failed = false;
  std::string why;
};

/// Not thread-safe. A link is the driver's name of a connection.
class transport_core {
 public:
  explicit transport_core(transport_core_options options) : options_(options) {}

  // ---- nodes

  /// Error: the node is connected, or has ended.
  status may_connect(node_id node) const;
  void connected(node_id node, void* link);
  void fail(node_id node, const std::string& why);
  /// The node has failed, and its connection must be closed, even if the node had left.
  void broke(node_id node, const std::string& why);
  std::vector<node_id> connected() const;
  /// Whether settle() would return anything.
  bool has_ends() const { return has_ends_; }
  /// Each end of a node once, and each link that must be closed once, in the order of the nodes.
  std::vector<node_end> settle();
  /// All links, which the core then no longer uses.
  std::vector<void*> close_links();

  // ---- sending

  /// Writes the identity of this node and the next number into the header of a tensor, numbered per
  /// edge, or of an actor message, numbered per destination node. False: the message is too large,
  /// and the receiver is treated as failed.
  template <class Header>
  bool number(node_id to, Header& h);
  template <class Header>
  void stamp(Header& h) const {
    h.job_token = options_.job_token;
    h.epoch = options_.epoch;
    h.from_node = options_.node;
  }
  /// `Header`: of a tensor, of bytes or of an actor message, which is never announced. A node that
  /// was never connected has failed from then on.
  template <class Header>
  chosen_link link_for(node_id to, const Header& h);
  chosen_link link_to(node_id to);

  // ---- receiving

  /// A header did not decode.
  void arrived_undecodable();
  /// `Header`: of a tensor, of bytes or of an actor message. `bytes`: the size of the data that was
  /// sent. `descriptor`: not null if the data is announced.
  template <class Header>
  disposition arrived(const Header& h, std::uint64_t bytes, void* descriptor);
  /// Takes an intact actor message that is to be delivered. Returns the messages that can be
  /// delivered in order now, possibly none.
  std::vector<std::string> in_order(const actor_message_header& h, std::string bytes);
  /// How to answer the disconnect message, if it must be answered.
  chosen_link arrived(const disconnect_header& h);
  /// The next announced message, if the limit allows its fetch.
  std::optional<fetch_order> next_fetch();
  /// Call it once for each fetch_order that is not stale. `failure`: empty if the data is there.
  disposition fetched(const any_header& h, const std::string& failure = {});
  /// `why`: of a garbled actor message; may be empty.
  template <class Header>
  void delivered(const Header& h, delivery how, const std::string& why = {});

  // ---- the end

  /// From now on drops all messages but disconnect messages. Returns the descriptors of those
  /// announced.
  std::vector<void*> close();
  /// Whether each connected node has answered the disconnect message of this one.
  bool all_answered() const;

  std::size_t fetching() const { return fetching_; }
  const transport_counts& counts() const { return counts_; }

 private:
  enum class peer_state : std::uint8_t { connected, failed, left };
  using edge = std::pair<rank_address, rank_address>;

  struct peer {
    void* link = nullptr;
    peer_state state = peer_state::connected;
    std::string why;
    bool is_unreported = false;
    bool is_broken = false;
  };
  struct announcement {
    any_header header;
    void* descriptor;
  };

  /// The first end of a node counts.
  void end(node_id node, peer_state how, std::string why);
  bool has_failed(node_id node) const;
  template <class Header>
  bool is_current(const Header& h) const;
  template <class Header>
  bool is_fresh(const Header& h);
  struct limit {
    const char* name;
    std::uint64_t bytes_max;
  };
  template <class Header>
  limit limit_of(const Header& h) const;

  const transport_core_options options_;
  std::map<node_id, peer> peers_;
  bool has_ends_ = false;
  std::set<node_id> answered_;
  std::map<edge, std::uint64_t> sequences_;
  std::map<edge, sequence_window> windows_;
  std::map<node_id, std::uint64_t> actor_messages_sent_;
  std::map<node_id, ordered_inbox> inboxes_;
  std::deque<announcement> announced_;
  std::size_t fetching_ = 0;
  bool closed_ = false;
  transport_counts counts_;
};

}  // namespace rrfp::messaging
