/// The parts of the page. Functions take plain text and escape it.
#pragma once

#include <string>
#include <string_view>

#include <rrfp/report/breakdown.hpp>
#include <rrfp/report/critical_path.hpp>
#include <rrfp/report/page.hpp>

namespace rrfp::report {

/// A run with its analysis.
struct examined_run {
  const timeline* line = nullptr;
  std::vector<breakdown> by_stage;  ///< replica by replica
  breakdown total;
  run_figures figures;
  std::vector<std::vector<held>> held_by_stage;
  critical_path path;
  /// The end of the drawn part; the end of the window if all tasks are drawn.
  nanoseconds shown_until = 0;

  std::int64_t peak_of(std::int64_t held::*what, std::size_t stage) const;
  /// `stage`: as in `by_stage`.
  std::string name_of(std::size_t stage) const {
    const auto& first = line->lanes[stage * line->run->ranks];
    return stage_name(*line->run, first.replica, first.stage);
  }
};

inline double share(nanoseconds part, nanoseconds whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

/// The meaning of a cause, as a sentence.
std::string_view meaning(idle_cause s);

/// The data that the script draws, as JSON that is safe inside a <script>.
std::string data_of(const std::vector<examined_run>& runs);

/// One card per run: duration, ratio, bubble, memory.
std::string cards_of(const std::vector<examined_run>& runs);
/// Losses of nodes and stragglers; empty if there were none.
std::string incidents_of(const std::vector<examined_run>& runs);
/// The numbers of all runs side by side, with ratios.
std::string comparison_of(const std::vector<examined_run>& runs);
/// Bars and tables of each stage's time; the bars of all runs share one scale.
std::string stages_of(const std::vector<examined_run>& runs);
std::string paths_of(const std::vector<examined_run>& runs);
/// The colours of kinds and causes.
std::string legend();
/// The terms of the page.
std::string glossary();

}  // namespace rrfp::report
