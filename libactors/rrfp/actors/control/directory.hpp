/// The actors of a run by address, on whichever node they are. Posting to an actor_ref puts the
/// message into the mailbox of an actor of this node, or sends it to the node that hosts
/// the actor.
///
/// On the wire it is the address (u8 what, u32 stage, rank and replica), the u8 code of the
/// message, and its fields as in rrfp/base/bytes.hpp, a vector as a u32 count and its items. The
/// transport brings the messages of a node in order, once, and only from nodes of the run.
#pragma once

#include <functional>
#include <map>
#include <shared_mutex>
#include <string>
#include <string_view>

#include <rrfp/base/codec.hpp>
#include <rrfp/base/result.hpp>
#include <rrfp/core/placement.hpp>
#include <rrfp/transport/transport.hpp>

#include "caf_compat.hpp"

namespace rrfp::actors {

enum class actor_kind : std::uint8_t { job, node, supervisor, rank };

struct actor_address {
  actor_kind what = actor_kind::job;
  rank_address at{};  ///< of a supervisor: rank 0; of a job or node: unused
  auto operator<=>(const actor_address&) const = default;
};

auto fields(auto f, actor_address& x) { return f(x.what, x.at.stage, x.at.rank, x.at.replica); }

constexpr actor_address supervisor_of(replica_id replica, stage_id stage) {
  return {actor_kind::supervisor, {stage, rank_id{0}, replica}};
}

/// What the messages of a run may name: every id is below its number here.
struct message_ranges {
  pipeline_shape shape = {};
  std::uint32_t ranks = 1;
  std::uint32_t replicas = 1;
  std::uint32_t nodes = 1;
  bool saves = false;   ///< its ranks write checkpoints
  bool copies = false;  ///< its ranks copy their state for recovery
  node_id leader{0};    ///< where the job is
};

class directory;

/// Refers to an actor on any node. Valid as long as its directory.
class actor_ref {
 public:
  actor_ref() = default;
  actor_ref(caf::actor here) : here_(std::move(here)) {}  // NOLINT: an actor is its own reference
  actor_ref(const directory& through, node_id node, actor_address to)
      : through_(&through), node_(node), to_(to) {}

  /// Null: the actor is on another node.
  const caf::actor& here() const { return here_; }
  /// The start of a message to an actor on another node.
  encoder begin_message() const;
  void send(encoder message) const;

 private:
  caf::actor here_;
  const directory* through_ = nullptr;
  node_id node_;
  actor_address to_;
};

/// Thread-safe.
class directory {
 public:
  using send_function = std::function<void(node_id, std::string)>;

  /// All actors are on this node.
  directory() = default;
  /// `node_of`: of a rank. `send`: as ucx_transport::send_actor_message().
  directory(node_id here, std::function<node_id(const rank_address&)> node_of, send_function send,
            const message_ranges& run)
      : here_(here), node_of_(std::move(node_of)), send_(std::move(send)), run_(run) {}

  void bind(const actor_address& address, caf::actor a);
  /// An actor of this node must be bound.
  actor_ref find(const actor_address& address) const;
  actor_ref node(node_id n) const;

  /// Passes a message on. Error: it does not decode, does not fit the run, or its actor is not
  /// here.
  status deliver(std::string_view message) const;
  /// Forgets all actors; drops messages from now on.
  void close();

 private:
  friend class actor_ref;

  const node_id here_{0};
  const std::function<node_id(const rank_address&)> node_of_;
  const send_function send_;
  const message_ranges run_{};
  mutable std::shared_mutex mutex_;
  std::map<actor_address, caf::actor> actors_;
  bool closed_ = false;
};

}  // namespace rrfp::actors
