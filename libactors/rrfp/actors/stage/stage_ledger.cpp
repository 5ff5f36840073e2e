#include "stage_ledger.hpp"

#include <fmt/format.h>

#include <rrfp/base/step_name.hpp>
#include <rrfp/base/units.hpp>

namespace rrfp::actors {

namespace {

std::string text_of(const action& a) {
  if (const auto* l = std::get_if<launch>(&a)) {
    auto text =
        fmt::format("launch {} {}: {}", l->seq.value(), to_string(l->what), rrfp::name(l->why.why));
    if (l->why.skipped > 0) text += fmt::format(", {} ranked before it", l->why.skipped);
    return text;
  }
  const auto& w = std::get<wait>(a);
  if (w.why == wait_cause::complete) return "wait: the step is complete";
  return fmt::format("wait ({}) for {}", rrfp::name(w.why), to_string(w.head));
}

}  // namespace

stage_ledger::stage_ledger(const stage_config& config)
    : shape_(config.shape), ranks_(config.ranks) {
  begin(step_id{0}, shape_.microbatches);
}

void stage_ledger::begin(step_id step, std::uint32_t microbatches) {
  step_ = step;
  shape_.microbatches = microbatches;
  inputs_.assign(std::size_t{2} * shape_.chunks * shape_.microbatches, {});
  decided_at_.clear();
}

std::optional<std::int64_t> stage_ledger::arrive(const input_arrived& input, std::int64_t now) {
  const bool forward = input.kind == task_kind::forward;
  auto& one = inputs_[2 * shape_.index(input.mb, input.chunk) + (forward ? 1 : 0)];
  if (one.ranks++ == 0) one.first = now;
  if (one.ranks != ranks_) return std::nullopt;
  return now - one.first;
}

void stage_ledger::decide(const action& a, std::int64_t now) {
  if (const auto* l = std::get_if<launch>(&a)) {
    if (decided_at_.empty()) first_seq_ = l->seq;
    decided_at_.push_back(now);
  }
  decisions_[decided_++ % decisions_max] = {now, step_, a};
}

std::optional<std::int64_t> stage_ledger::decided_at(launch_seq seq) const {
  const auto at = seq.value() - first_seq_.value();
  if (at >= decided_at_.size()) return std::nullopt;
  return decided_at_[at];
}

std::vector<std::string> stage_ledger::decisions() const {
  std::vector<std::string> lines;
  const auto first = decided_ > decisions_max ? decided_ - decisions_max : 0;
  for (auto i = first; i < decided_; ++i) {
    const auto& d = decisions_[i % decisions_max];
    lines.push_back(
        fmt::format("{:.6f} s {} {}", seconds(d.at), to_string(d.step), text_of(d.chosen)));
  }
  return lines;
}

}  // namespace rrfp::actors
