#include <algorithm>
#include <map>

#include <fmt/format.h>

#include <rrfp/report/page.hpp>

namespace rrfp::report {

namespace {

/// The last steps of the run with at most `tasks_max` tasks together, but at least one step.
step_range last_steps(const traced_run& run, std::size_t tasks_max) {
  std::map<step_id, std::size_t> tasks;
  for (const auto& t : run.tasks) ++tasks[t.step];
  auto from = std::prev(tasks.end());
  for (auto sum = from->second; from != tasks.begin(); --from) {
    sum += std::prev(from)->second;
    if (sum > tasks_max) break;
  }
  return {from->first, tasks.rbegin()->first};
}

std::string note_of(const traced_run& run, const timeline& line, bool is_chosen) {
  const auto all = steps_of(run);
  auto note = fmt::format("{}: {} stages, {} microbatches, {} tasks; steps {} to {}", run.title,
                          run.shape.stages, run.shape.microbatches, run.tasks.size(),
                          line.steps.front().step.value(), line.steps.back().step.value());
  if (line.steps.size() == all.size()) return note;
  note += fmt::format(" of the trace's {} to {}", all.front().value(), all.back().value());
  return is_chosen ? note : note + ", the last ones that fit; rrfp-report --steps shows others";
}

}  // namespace

result<page_content> page_of(std::string title, const std::vector<traced_run>& runs,
                             std::vector<std::string> notes, const std::optional<step_range>& range,
                             const std::optional<step_id>& step, std::size_t tasks_max) {
  page_content page{std::move(title), std::move(notes), {}, step};
  step_range shown{step_id{0}, step_id{~std::uint64_t{0}}};
  for (const auto& run : runs) {
    const auto [first, last] = range ? *range : last_steps(run, tasks_max / runs.size());
    auto line = make_timeline(run, first, last);
    if (!line) return line.failure();
    page.notes.push_back(note_of(run, *line, range.has_value()));
    shown.first = std::max(shown.first, line->steps.front().step);
    shown.last = std::min(shown.last, line->steps.back().step);
    page.runs.push_back(*std::move(line));
  }
  if (step && (*step < shown.first || *step > shown.last))
    page.opens_on = typical_step(runs, shown.first, shown.last);
  return page;
}

}  // namespace rrfp::report
