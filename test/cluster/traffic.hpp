/// Messages and their bytes, by what they are for: of all nodes together, and those that node 0
/// sends and gets.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "mail.hpp"
#include "network.hpp"

namespace rrfp::cluster {

enum class purpose : std::uint8_t {
  joining,
  agreements,  ///< of the nodes, when a run begins or goes on
  heartbeats,
  losses,
  steps,
  tensors,
  saves,
  copies,   ///< for recovery
  restore,  ///< of the state after a loss
  ending,   ///< of the run, and goodbye
};
inline constexpr std::size_t purposes = 10;

std::string_view name(purpose p);
purpose purpose_of(const frame& f);
purpose purpose_of(mail_kind kind);
/// On the wire, without TLS and TCP.
std::uint64_t bytes_of(const frame& f);

struct traffic {
  struct sum {
    std::uint64_t messages = 0;
    std::uint64_t bytes = 0;
    void add(std::uint64_t n) {
      ++messages;
      bytes += n;
    }
  };
  struct sums {
    sum all, sent_by_0, received_by_0;
  };

  void count(purpose p, std::uint32_t from, std::uint32_t to, std::uint64_t bytes) {
    auto& of = by_purpose[static_cast<std::size_t>(p)];
    of.all.add(bytes);
    if (from == 0) of.sent_by_0.add(bytes);
    if (to == 0) of.received_by_0.add(bytes);
  }

  std::array<sums, purposes> by_purpose{};
};

}  // namespace rrfp::cluster
