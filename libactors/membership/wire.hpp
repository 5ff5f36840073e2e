/// The messages between the nodes of a job, as WIRE.md describes them.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <rrfp/actors/membership.hpp>

#include "bytes.hpp"
#include "secret.hpp"

namespace rrfp::actors::control {

inline constexpr std::uint32_t magic = 0x70667272;  // "rrfp"
inline constexpr std::uint16_t wire_version = 2;
/// Size limits of a frame without its length, during the handshake and after it.
inline constexpr std::size_t open_frame_bytes_max = 4096;
inline constexpr std::size_t sealed_frame_bytes_max = 128 * 1024;
/// Size limit of one piece of an exchange; a heartbeat waits for at most one piece.
inline constexpr std::size_t piece_bytes_max = 64 * 1024;
inline constexpr std::size_t name_bytes_max = 256;
inline constexpr std::size_t reason_bytes_max = 2048;

enum class frame_type : std::uint8_t {
  hello = 1,
  challenge = 2,
  claim = 3,
  accept = 4,
  refuse = 5,
  introduce = 16,
  member = 17,
  start = 18,
  give_up = 19,
  ping = 32,
  pong = 33,
  lost = 34,
  departed = 35,
  goodbye = 36,
  piece = 48,
  deposit = 49,
};

/// The values on which all nodes of a job must agree.
struct job_identity {
  std::string version;
  std::string job_id;
  std::uint64_t job_hash = 0;
  std::uint32_t reserved = 0;  ///< always 0
  std::uint32_t nodes = 0;

  static void fields(auto& a, auto& m) {
    a.text(m.version, name_bytes_max);
    a.text(m.job_id, name_bytes_max);
    a(m.job_hash);
    a(m.reserved);
    a(m.nodes);
  }
};

struct hello {
  static constexpr auto type = frame_type::hello;
  std::uint32_t mark = magic;
  std::uint16_t wire = wire_version;
  nonce random{};

  static void fields(auto& a, auto& m) {
    a(m.mark);
    a(m.wire);
    a(m.random);
  }
};

struct challenge {
  static constexpr auto type = frame_type::challenge;
  nonce random{};

  static void fields(auto& a, auto& m) { a(m.random); }
};

struct claim {
  static constexpr auto type = frame_type::claim;
  job_identity job;
  std::uint32_t node = 0;
  digest proof{};

  static void fields(auto& a, auto& m) {
    job_identity::fields(a, m.job);
    a(m.node);
    a(m.proof);
  }
};

struct accept {
  static constexpr auto type = frame_type::accept;
  digest proof{};

  static void fields(auto& a, auto& m) { a(m.proof); }
};

struct refuse {
  static constexpr auto type = frame_type::refuse;
  std::string reason;
  /// 1: only the node number is taken, and a later attempt may succeed.
  std::uint8_t for_now = 0;

  static void fields(auto& a, auto& m) {
    a.text(m.reason, reason_bytes_max);
    a(m.for_now);
  }
};

struct introduce {
  static constexpr auto type = frame_type::introduce;
  std::string description;
  std::string card;

  static void fields(auto& a, auto& m) {
    a.text(m.description, description_bytes_max);
    a.text(m.card, card_bytes_max);
  }
};

struct roster_entry {
  static constexpr auto type = frame_type::member;
  std::uint32_t node = 0;
  std::string host;
  std::string description;
  std::string card;

  static void fields(auto& a, auto& m) {
    a(m.node);
    a.text(m.host, name_bytes_max);
    a.text(m.description, description_bytes_max);
    a.text(m.card, card_bytes_max);
  }
};

struct start {
  static constexpr auto type = frame_type::start;
  static void fields(auto&, auto&) {}
};

struct give_up {
  static constexpr auto type = frame_type::give_up;
  std::string reason;

  static void fields(auto& a, auto& m) { a.text(m.reason, reason_bytes_max); }
};

struct ping {
  static constexpr auto type = frame_type::ping;
  std::int64_t sent_ns = 0;
  std::string status;

  static void fields(auto& a, auto& m) {
    a(m.sent_ns);
    a.text(m.status, status_bytes_max);
  }
};

struct pong {
  static constexpr auto type = frame_type::pong;
  std::int64_t ping_sent_ns = 0;  ///< on the clock of the sender of the ping
  std::int64_t here_ns = 0;       ///< on the clock of the sender of the pong

  static void fields(auto& a, auto& m) {
    a(m.ping_sent_ns);
    a(m.here_ns);
  }
};

struct lost {
  static constexpr auto type = frame_type::lost;
  std::uint32_t node = 0;
  std::string why;

  static void fields(auto& a, auto& m) {
    a(m.node);
    a.text(m.why, reason_bytes_max);
  }
};

struct departed {
  static constexpr auto type = frame_type::departed;
  std::uint32_t node = 0;

  static void fields(auto& a, auto& m) { a(m.node); }
};

struct goodbye {
  static constexpr auto type = frame_type::goodbye;
  static void fields(auto&, auto&) {}
};

/// A part of the bytes that `node` contributes to exchange `round`; pieces are sent in order.
struct piece {
  static constexpr auto type = frame_type::piece;
  std::uint64_t round = 0;
  std::uint32_t node = 0;
  std::uint64_t bytes_total = 0;
  std::string bytes;

  static void fields(auto& a, auto& m) {
    a(m.round);
    a(m.node);
    a(m.bytes_total);
    a.text(m.bytes, piece_bytes_max);
  }
};

/// The same for a gather: node 0 keeps it and does not pass it on.
struct deposit : piece {
  static constexpr auto type = frame_type::deposit;
};

}  // namespace rrfp::actors::control
