#include "experiment.hpp"

#include <algorithm>
#include <array>

#include <rrfp/base/check.hpp>

namespace rrfp::experiment {

std::string_view mode_of(const job::job& j) {
  return study::blocks_messages(j) ? "blocking" : name(j.dispatch.mode);
}

std::vector<engine_kind> engines_of(std::string_view word) {
  if (word == "simulator") return {engine_kind::simulator};
  if (word == "wall-clock") return {engine_kind::wall_clock};
  if (word == "both") return {engine_kind::simulator, engine_kind::wall_clock};
  RRFP_CHECK(word == "processes", "the word must be one of engine_words");
  return {engine_kind::processes};
}

double figure_of(const paper_figures& p, paper_column column) {
  return std::array{0.0, p.zb, p.bf, p.bfw}[static_cast<std::size_t>(column)];
}

bool is_cell_key(std::string_view key) {
  for (const auto* section : {"pipeline.", "dispatch.", "jitter.", "cost.", "machine.", "images.",
                              "texts.", "experts.", "recovery."})
    if (key.starts_with(section)) return true;
  return key == "train.steps" || key == "device.kind" || key == "device.time_scale";
}

std::size_t experiment::run_index(std::string_view wanted) const {
  const auto at = std::ranges::find(runs, wanted, &run_entry::name);
  RRFP_CHECK(at != runs.end(), "the name must be that of a run");
  return static_cast<std::size_t>(at - runs.begin());
}

}  // namespace rrfp::experiment
