/// The parts that a page is put together from. Texts come in as they are and go out escaped.
#pragma once

#include <string>
#include <string_view>

#include <rrfp/report/breakdown.hpp>
#include <rrfp/report/critical_path.hpp>
#include <rrfp/report/page.hpp>

namespace rrfp::report {

/// A run and what was found out about it.
struct examined_run {
  const timeline* line = nullptr;
  std::vector<breakdown> by_stage;  ///< replica by replica
  breakdown total;
  std::vector<std::vector<held>> held_by_stage;
  critical_path path;
  /// Until when tasks are drawn; the end, if all are.
  nanoseconds shown_until = 0;

  std::int64_t slots_peak(std::size_t stage) const;
  std::int64_t bytes_peak(std::size_t stage) const;
  /// "stage 3", or "replica 1 stage 3" where there are several.
  std::string stage_name(std::size_t stage) const;
};

/// What a cause means, in a sentence.
std::string_view meaning(standstill s);

/// What the script draws, as JSON that may stand in a <script>.
std::string data_of(const std::vector<examined_run>& runs);

/// A card a run: duration, ratio, bubble, memory.
std::string cards_of(const std::vector<examined_run>& runs);
/// Every number beside that of the other runs, with ratios.
std::string comparison_of(const std::vector<examined_run>& runs);
/// Bars and tables of each stage's time; bars of all runs have one scale.
std::string stages_of(const std::vector<examined_run>& runs);
std::string paths_of(const std::vector<examined_run>& runs);
/// Colours of kinds and causes.
std::string legend();
/// The words of the page.
std::string glossary();

}  // namespace rrfp::report
