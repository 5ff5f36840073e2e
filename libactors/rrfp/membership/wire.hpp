/// The messages that decide who may join, as WIRE.md describes them, and the decision. Those that
/// follow are in rrfp/core/membership_messages.hpp.
#pragma once

#include <cstdint>
#include <string>

#include <rrfp/base/codec.hpp>
#include <rrfp/base/ids.hpp>
#include <rrfp/core/membership_events.hpp>

namespace rrfp::actors::control {

using namespace membership_core;

inline constexpr std::uint16_t wire_version = 9;
/// Size limits of a frame without its length, before the leader has accepted the claim and after
/// it.
inline constexpr std::size_t early_frame_bytes_max = 4096;
inline constexpr std::size_t frame_bytes_max = 128 * 1024;

/// The values on which all nodes of a job must agree.
struct job_identity {
  std::string version;
  std::string job_id;
  std::uint64_t job_hash = 0;
  std::uint32_t nodes = 0;
  std::string vector_instructions{};

  friend auto fields(auto f, job_identity& x) {
    return f(at_most(x.version, name_bytes_max), at_most(x.job_id, name_bytes_max), x.job_hash,
             x.nodes, at_most(x.vector_instructions, name_bytes_max));
  }
};

struct claim {
  static constexpr std::uint8_t type = 3;
  std::uint16_t wire = wire_version;
  job_identity job;
  std::uint32_t node = 0;
  std::uint64_t process = 0;
  std::uint8_t again = 0;

  friend auto fields(auto f, claim& x) { return f(x.wire, x.job, x.node, x.process, x.again); }
};

struct accept {
  static constexpr std::uint8_t type = 4;
  friend auto fields(auto f, accept&) { return f(); }
};

struct refuse {
  static constexpr std::uint8_t type = 5;
  std::string reason;
  /// 1: only the node number is taken, and a later attempt may succeed. 2: this process was lost,
  /// and another one takes its place.
  std::uint8_t for_now = 0;

  friend auto fields(auto f, refuse& x) {
    return f(at_most(x.reason, reason_bytes_max), x.for_now);
  }
};

struct frame {
  std::uint8_t type = 0;
  std::string payload;
};

/// What the first frame of the other side, which has the key, is for the core: proven or refused.
/// On the leader, the claim of a node.
event::any judge_claim(connection_id from, const job_identity& job, const frame& f);
/// On a node, the answer of the leader.
event::any judge_answer(connection_id from, node_id leader, const frame& f);

}  // namespace rrfp::actors::control
