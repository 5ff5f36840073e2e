/// The unit of work: (kind, microbatch, chunk) on one stage.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <rrfp/base/ids.hpp>

namespace rrfp {

/// F, B (input gradient only), W (weight gradient only), BW (both: fused backward).
enum class task_kind : std::uint8_t { forward, backward, weight, backward_weight };

inline constexpr int task_kinds = 4;

/// "F", "B", "W" or "BW".
std::string_view name(task_kind kind);
/// The inverse of name(); nothing for any other text.
std::optional<task_kind> task_kind_of(std::string_view name);

/// Whether the kind computes an input gradient (and therefore needs an output gradient): B or BW.
constexpr bool is_backward(task_kind kind) {
  return kind == task_kind::backward || kind == task_kind::backward_weight;
}
/// Whether the kind computes weight gradients: W or BW.
constexpr bool has_weight(task_kind kind) {
  return kind == task_kind::weight || kind == task_kind::backward_weight;
}

/// F: 0; B and BW, of which a microbatch and chunk have one: 1; W: 2.
constexpr std::uint32_t task_row(task_kind kind) {
  return is_backward(kind) ? 1 : kind == task_kind::weight ? 2 : 0;
}

struct task {
  task_kind kind = task_kind::forward;
  microbatch_id mb;
  chunk_id chunk;

  auto operator<=>(const task&) const = default;
};

/// "F3" on chunk 0, "F3.1" on chunk 1.
std::string to_string(const task& t);
/// The inverse of to_string(); nothing for any other text.
std::optional<task> task_of(std::string_view text);

}  // namespace rrfp
