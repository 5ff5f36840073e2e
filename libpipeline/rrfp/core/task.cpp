#include <rrfp/core/task.hpp>

#include <charconv>

#include <rrfp/base/enum_names.hpp>
#include <rrfp/core/event.hpp>
#include <rrfp/core/stage_core.hpp>

namespace rrfp {

std::string_view name(task_kind kind) { return name_in({"F", "B", "W", "BW"}, kind); }

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

std::string_view name(forward_pass p) { return name_in({"once", "early", "again"}, p); }

std::string_view name(choice c) {
  return name_in({"hint_head", "skipped_not_ready", "memory_bound", "only_choice"}, c);
}

std::string_view name(wait_cause c) {
  return name_in({"input", "in_order", "memory", "ranks", "complete"}, c);
}

std::string_view name(dispatch_mode mode) { return name_in({"in-order", "ready"}, mode); }

}  // namespace rrfp
