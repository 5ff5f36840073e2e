/// Collectives over messages.
///
/// Each call begins with one message from every rank to every other: the fingerprint, followed by
/// the data if it is small. Each rank then has all data and sums it in rank order. A large
/// all-reduce first exchanges only fingerprints; rank r then receives part r of every buffer, sums
/// it, and sends the sum to all others (reduce-scatter and all-gather).
#pragma once

#include <chrono>
#include <memory>

#include <rrfp/tp_coord/collective.hpp>
#include <rrfp/tp_coord/rank_channel.hpp>

namespace rrfp::tp_coord {

struct channel_options {
  /// Maximum time that a rank waits for the others in one call.
  std::chrono::milliseconds limit{30'000};
  /// Data up to this size is sent together with the fingerprint. Must be equal on all ranks.
  std::size_t direct_bytes_max = 16 * 1024;
};

std::unique_ptr<collective> make_channel_collective(std::shared_ptr<rank_channel> channel,
                                                    const channel_options& options = {});

}  // namespace rrfp::tp_coord
