/// The messages of the handshake, as WIRE.md describes them. Those that follow it are in
/// rrfp/membership_core/messages.hpp.
#pragma once

#include <cstdint>
#include <string>

#include <rrfp/membership_core/messages.hpp>

#include "bytes.hpp"
#include "secret.hpp"

namespace rrfp::actors::control {

using namespace membership_core;

inline constexpr std::uint32_t magic = 0x70667272;  // "rrfp"
inline constexpr std::uint16_t wire_version = 2;
/// Size limits of a frame without its length, during the handshake and after it.
inline constexpr std::size_t open_frame_bytes_max = 4096;
inline constexpr std::size_t sealed_frame_bytes_max = 128 * 1024;

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
  static constexpr std::uint8_t type = 1;
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
  static constexpr std::uint8_t type = 2;
  nonce random{};

  static void fields(auto& a, auto& m) { a(m.random); }
};

struct claim {
  static constexpr std::uint8_t type = 3;
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
  static constexpr std::uint8_t type = 4;
  digest proof{};

  static void fields(auto& a, auto& m) { a(m.proof); }
};

struct refuse {
  static constexpr std::uint8_t type = 5;
  std::string reason;
  /// 1: only the node number is taken, and a later attempt may succeed.
  std::uint8_t for_now = 0;

  static void fields(auto& a, auto& m) {
    a.text(m.reason, reason_bytes_max);
    a(m.for_now);
  }
};

}  // namespace rrfp::actors::control
