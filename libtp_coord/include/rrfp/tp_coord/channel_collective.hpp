/// Collectives over messages.
///
/// Each call begins with one message from every rank to every other: the fingerprint, followed by
/// the data if it is small. Then everybody has everything and sums it in the order of the ranks. A
/// large all-reduce sends fingerprints alone first; rank r then collects and sums part r of the
/// buffer, and gives the sum to all others (reduce-scatter and all-gather).
#pragma once

#include <chrono>
#include <memory>

#include <rrfp/tp_coord/collective.hpp>
#include <rrfp/tp_coord/rank_channel.hpp>

namespace rrfp::tp_coord {

struct channel_options {
  /// How long a rank waits for the others in one call.
  std::chrono::milliseconds limit{30'000};
  /// Up to how many bytes the data goes with the fingerprint. The same on every rank.
  std::size_t direct_bytes_max = 16 * 1024;
};

std::unique_ptr<collective> make_channel_collective(std::shared_ptr<rank_channel> channel,
                                                    const channel_options& options = {});

}  // namespace rrfp::tp_coord
