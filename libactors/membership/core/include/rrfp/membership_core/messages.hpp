/// What the nodes of a job say to each other once a connection has proved which node is at its end,
/// and the limits of it. The core sees messages; `type` and `fields`, the order on the wire, serve
/// the shell (WIRE.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>

namespace rrfp::membership_core {

/// Limits of a job's control plane.
inline constexpr std::uint32_t nodes_max = 4096;
inline constexpr std::size_t card_bytes_max = 64 * 1024;
inline constexpr std::size_t description_bytes_max = 1024;
inline constexpr std::size_t status_bytes_max = 256;
/// Size limit of the contribution of one node to one exchange.
inline constexpr std::size_t gather_bytes_max = 64 * 1024 * 1024;
/// Size limit of one piece of an exchange; a heartbeat waits for at most one piece.
inline constexpr std::size_t piece_bytes_max = 64 * 1024;
inline constexpr std::size_t name_bytes_max = 256;
inline constexpr std::size_t reason_bytes_max = 2048;

struct introduce {
  static constexpr std::uint8_t type = 16;
  std::string description;
  std::string card;

  static void fields(auto& a, auto& m) {
    a.text(m.description, description_bytes_max);
    a.text(m.card, card_bytes_max);
  }
};

struct roster_entry {
  static constexpr std::uint8_t type = 17;
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
  static constexpr std::uint8_t type = 18;
  static void fields(auto&, auto&) {}
};

struct give_up {
  static constexpr std::uint8_t type = 19;
  std::string reason;

  static void fields(auto& a, auto& m) { a.text(m.reason, reason_bytes_max); }
};

struct ping {
  static constexpr std::uint8_t type = 32;
  std::int64_t sent_ns = 0;
  std::string status;

  static void fields(auto& a, auto& m) {
    a(m.sent_ns);
    a.text(m.status, status_bytes_max);
  }
};

struct pong {
  static constexpr std::uint8_t type = 33;
  std::int64_t ping_sent_ns = 0;  ///< on the clock of the sender of the ping
  std::int64_t here_ns = 0;       ///< on the clock of the sender of the pong

  static void fields(auto& a, auto& m) {
    a(m.ping_sent_ns);
    a(m.here_ns);
  }
};

struct lost {
  static constexpr std::uint8_t type = 34;
  std::uint32_t node = 0;
  std::string why;

  static void fields(auto& a, auto& m) {
    a(m.node);
    a.text(m.why, reason_bytes_max);
  }
};

struct departed {
  static constexpr std::uint8_t type = 35;
  std::uint32_t node = 0;

  static void fields(auto& a, auto& m) { a(m.node); }
};

struct goodbye {
  static constexpr std::uint8_t type = 36;
  static void fields(auto&, auto&) {}
};

/// A part of the bytes that `node` contributes to exchange `round`; pieces are sent in order.
struct piece {
  static constexpr std::uint8_t type = 48;
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
  static constexpr std::uint8_t type = 49;
};

/// A message that is none of these, or not within its limits.
struct malformed {
  static constexpr std::uint8_t type = 0;
  static void fields(auto&, auto&) {}
};

using any_message = std::variant<malformed, introduce, roster_entry, start, give_up, ping, pong,
                                 lost, departed, goodbye, piece, deposit>;

}  // namespace rrfp::membership_core
