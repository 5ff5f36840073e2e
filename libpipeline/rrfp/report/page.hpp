/// The report as one HTML file that contains its style, script and data and loads nothing from a
/// network. All tables are HTML. The script draws the timelines on one time axis, with zoom, pan,
/// and a tooltip for each task and gap.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <rrfp/report/timeline.hpp>

namespace rrfp::report {

/// Maximum number of drawn tasks over all runs; the script is fast up to this number.
inline constexpr std::size_t shown_tasks_max = 100'000;

struct page_content {
  std::string title;
  /// Lines below the title: where the runs come from, what was skipped.
  std::vector<std::string> notes;
  /// At least one; ratios are relative to the first.
  std::vector<timeline> runs;
  /// The step that the page shows first; empty: all steps.
  std::optional<step_id> opens_on = std::nullopt;
};

struct step_range {
  step_id first;
  step_id last;
};

/// The page of these runs: of each the steps of `range`, or the last ones that fit, which a note
/// says. It opens on `step`, or on the typical one of those that all runs show if that is none of
/// them. Error: a run has no step of `range`.
result<page_content> page_of(std::string title, const std::vector<traced_run>& runs,
                             std::vector<std::string> notes, const std::optional<step_range>& range,
                             const std::optional<step_id>& step,
                             std::size_t tasks_max = shown_tasks_max);

/// The numbers cover all tasks. If a run has more than its share of `tasks_max` tasks, the page
/// draws only the earliest ones and says so.
std::string html_of(const page_content& content, std::size_t tasks_max = shown_tasks_max);

}  // namespace rrfp::report
