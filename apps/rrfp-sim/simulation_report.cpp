#include "simulation_report.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <rrfp/base/step_name.hpp>
#include <rrfp/base/units.hpp>

namespace rrfp::apps {

namespace {

double idle_ms(const simulate::stage_report& stage, wait_cause c) {
  return milliseconds(stage.idle_by_cause[static_cast<std::size_t>(c)]);
}

/// What the ranks of each stage waited for each other; empty if they never did.
std::string ranks_table_of(const simulate::report& r) {
  std::string text;
  for (std::size_t s = 0; s < r.stages.size(); ++s) {
    const auto& stage = r.stages[s];
    const auto for_ranks = milliseconds(stage.behind) + idle_ms(stage, wait_cause::ranks);
    if (for_ranks == 0) continue;
    if (text.empty()) text = fmt::format("{:>5}  {:>12}\n", "stage", "for ranks ms");
    text += fmt::format("{:>5}  {:>12.3f}\n", s, for_ranks);
  }
  return text;
}

}  // namespace

std::string table_of(const simulate::report& r, const job::dispatch_plan& dispatch) {
  const auto busiest = std::ranges::max_element(r.stages, {}, &simulate::stage_report::busy);
  auto text = fmt::format(
      "{} {}: makespan {:.3f} ms, bubble {:.1f} %, busiest stage {}\n"
      "  lower bound {:.3f} ms ({:.1f} % above), {} events; in ms, idle for an input, the order, "
      "memory\n",
      name(dispatch.rule.mode), dispatch.policies->name(), milliseconds(r.makespan),
      r.bubble_fraction * 100, busiest - r.stages.begin(), milliseconds(r.lower_bound),
      r.lower_bound > 0
          ? (static_cast<double>(r.makespan) / static_cast<double>(r.lower_bound) - 1) * 100
          : 0.0,
      r.events);
  text += fmt::format("{:>5}{:>9}{:>9}{:>9}{:>9}{:>9}{:>8}{:>8}{:>6}{:>8}\n", "stage", "busy",
                      "idle", "input", "order", "memory", "head", "tail", "slots", "MiB");
  for (std::size_t s = 0; s < r.stages.size(); ++s) {
    const auto& stage = r.stages[s];
    text += fmt::format(
        "{:>5}{:>9.1f}{:>9.1f}{:>9.1f}{:>9.1f}{:>9.1f}{:>8.1f}{:>8.1f}{:>6}{:>8.1f}\n", s,
        milliseconds(stage.busy), milliseconds(stage.idle), idle_ms(stage, wait_cause::input),
        idle_ms(stage, wait_cause::in_order), idle_ms(stage, wait_cause::memory),
        milliseconds(stage.head), milliseconds(stage.tail), stage.memory.slots_peak,
        mebibytes(stage.memory.bytes_peak));
  }
  return text + ranks_table_of(r);
}

std::string text_of(const gap_list& gaps) {
  std::string text;
  for (const auto& g : gaps.gaps()) {
    text += fmt::format("{} stage {}  {:.3f} to {:.3f} ms  {}", to_string(g.step), g.stage.value(),
                        milliseconds(g.begin), milliseconds(g.end), name(g.why.why));
    if (g.why.why != wait_cause::complete) text += " " + to_string(g.why.head);
    text += "\n";
  }
  if (gaps.dropped() != 0) text += fmt::format("and {} more gaps\n", gaps.dropped());
  return text;
}

std::string json_of(const simulate::report& r, const job::dispatch_plan& dispatch,
                    const std::string& run) {
  using json = nlohmann::ordered_json;
  json stages = json::array();
  for (const auto& stage : r.stages) {
    json idle;
    for (const auto c : all_wait_causes) idle[std::string(name(c))] = idle_ms(stage, c);
    stages.push_back({{"busy_ms", milliseconds(stage.busy)},
                      {"idle_ms", milliseconds(stage.idle)},
                      {"idle_by_cause_ms", idle},
                      {"behind_ms", milliseconds(stage.behind)},
                      {"head_ms", milliseconds(stage.head)},
                      {"tail_ms", milliseconds(stage.tail)},
                      {"peak_slots", stage.memory.slots_peak},
                      {"peak_activations", stage.memory.activations_peak},
                      {"peak_bytes", stage.memory.bytes_peak}});
  }
  json steps = json::array();
  for (const auto& step : r.steps)
    steps.push_back({{"makespan_ms", milliseconds(step.makespan)},
                     {"lower_bound_ms", milliseconds(step.lower_bound)}});
  return json{{"run", run},
              {"mode", name(dispatch.rule.mode)},
              {"policy", dispatch.policies->name()},
              {"makespan_ms", milliseconds(r.makespan)},
              {"lower_bound_ms", milliseconds(r.lower_bound)},
              {"bubble_fraction", r.bubble_fraction},
              {"events", r.events},
              {"steps", steps},
              {"stages", stages}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace rrfp::apps
