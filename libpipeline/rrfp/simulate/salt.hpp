/// The purpose of a draw. Draws with different salts are independent.
#pragma once

#include <cstdint>

#include <rrfp/core/task.hpp>
#include <rrfp/simulate/keyed_random.hpp>

namespace rrfp::weather {

enum class salt : std::uint64_t {
  compute = 1,
  link = 2,
  spread = 3,
  pause = 4,
  loss = 5,
  shape = 7
};

constexpr std::uint64_t pack(std::uint32_t high, std::uint32_t low) {
  return std::uint64_t{high} << 32 | low;
}

/// Those for the message that carries the input of `t` to a rank of virtual stage `to`, which
/// implies the chunk. How the policy splits backward must not matter.
inline keyed_random message_draws(std::uint64_t seed, salt purpose, step_id step,
                                  virtual_stage_id to, rank_id rank, const task& t) {
  return {seed, static_cast<std::uint64_t>(purpose), step.value(),
          pack(to.value(), is_backward(t.kind) ? 1 : 0), pack(rank.value(), t.mb.value())};
}

}  // namespace rrfp::weather
