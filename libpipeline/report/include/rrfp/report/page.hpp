/// The report as a page: one HTML file with style, script and data in it, which asks nothing of any
/// network. All tables stand in it as HTML; the script draws the timelines over one time axis, with
/// zoom, pan and what is known of each task and gap under the pointer.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <rrfp/report/timeline.hpp>

namespace rrfp::report {

/// What a timeline may hold, in tasks of all runs together; the script stays quick up to here.
inline constexpr std::size_t shown_tasks_max = 100'000;

struct page_content {
  std::string title;
  /// Under the title, a line each: where the runs come from, what was left out.
  std::vector<std::string> notes;
  /// At least one; ratios are to the first.
  std::vector<timeline> runs;
  /// The step that is seen at first; nothing: all of them.
  std::optional<step_id> opens_on = std::nullopt;
};

/// Numbers count all of the timelines; of a run with more than its share of `tasks_max` tasks the
/// earliest are drawn, and the page says so.
std::string html_of(const page_content& content, std::size_t tasks_max = shown_tasks_max);

}  // namespace rrfp::report
