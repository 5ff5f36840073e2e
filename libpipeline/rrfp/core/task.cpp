#include <rrfp/core/task.hpp>

#include <charconv>

#include <rrfp/core/event.hpp>
#include <rrfp/core/stage_core.hpp>

namespace rrfp {

std::string_view name(task_kind kind) {
  switch (kind) {
    case task_kind::forward: return "F";
    case task_kind::backward: return "B";
    case task_kind::weight: return "W";
    case task_kind::backward_weight: return "BW";
  }
  return "?";
}

std::optional<task_kind> task_kind_of(std::string_view text) {
  for (int i = 0; i < task_kinds; ++i)
    if (const auto kind = static_cast<task_kind>(i); name(kind) == text) return kind;
  return std::nullopt;
}

std::string to_string(const task& t) {
  std::string text{name(t.kind)};
  text += std::to_string(t.mb.value());
  if (t.chunk.value() != 0) text += "." + std::to_string(t.chunk.value());
  return text;
}

std::optional<task> task_of(std::string_view text) {
  const auto digits = text.find_first_of("0123456789");
  if (digits == std::string_view::npos) return std::nullopt;
  const auto kind = task_kind_of(text.substr(0, digits));
  if (!kind) return std::nullopt;
  const char* const end = text.data() + text.size();
  std::uint32_t mb = 0;
  std::uint32_t chunk = 0;
  const auto* const after = std::from_chars(text.data() + digits, end, mb).ptr;
  if (after != end) std::from_chars(after + 1, end, chunk);
  const task t{*kind, microbatch_id{mb}, chunk_id{chunk}};
  // Each task has exactly one text form: neither "F03", "F3.0" nor "F3,1".
  return to_string(t) == text ? std::optional{t} : std::nullopt;
}

std::string_view name(forward_pass p) {
  switch (p) {
    case forward_pass::once: return "once";
    case forward_pass::early: return "early";
    case forward_pass::again: return "again";
  }
  return "?";
}

std::string_view name(choice c) {
  switch (c) {
    case choice::hint_head: return "hint_head";
    case choice::skipped_not_ready: return "skipped_not_ready";
    case choice::memory_bound: return "memory_bound";
    case choice::only_choice: return "only_choice";
  }
  return "?";
}

std::string_view name(wait_cause c) {
  switch (c) {
    case wait_cause::input: return "input";
    case wait_cause::in_order: return "in_order";
    case wait_cause::memory: return "memory";
    case wait_cause::ranks: return "ranks";
    case wait_cause::complete: return "complete";
  }
  return "?";
}

std::string_view name(dispatch_mode mode) {
  switch (mode) {
    case dispatch_mode::in_order: return "in-order";
    case dispatch_mode::ready: return "ready";
  }
  return "?";
}

}  // namespace rrfp
