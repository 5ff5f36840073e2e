#include "experiment.hpp"

#include <algorithm>

#include <rrfp/base/check.hpp>

namespace rrfp::experiment {

std::string_view mode_of(const job::job& j) {
  return study::blocks_messages(j) ? "blocking" : name(j.dispatch.mode);
}

std::string_view name(engine_kind kind) {
  switch (kind) {
    case engine_kind::simulator: return "simulator";
    case engine_kind::wall_clock: return "wall clock";
    case engine_kind::processes: return "processes";
  }
  return "?";
}

std::vector<engine_kind> engines_of(std::string_view word) {
  if (word == "simulator") return {engine_kind::simulator};
  if (word == "wall-clock") return {engine_kind::wall_clock};
  if (word == "both") return {engine_kind::simulator, engine_kind::wall_clock};
  RRFP_CHECK(word == "processes", "the word must be one of engine_words");
  return {engine_kind::processes};
}

std::string_view name(fault_kind kind) {
  switch (kind) {
    case fault_kind::none: return "none";
    case fault_kind::kill: return "kill";
    case fault_kind::stop: return "stop";
  }
  return "?";
}

std::string_view name(hint_quality quality) {
  switch (quality) {
    case hint_quality::own: return "own";
    case hint_quality::reversed: return "reversed";
    case hint_quality::shuffled: return "shuffled";
    case hint_quality::calm: return "calm";
    case hint_quality::stale: return "stale";
  }
  return "?";
}

double figure_of(const paper_figures& p, paper_column column) {
  switch (column) {
    case paper_column::none: return 0;
    case paper_column::zb: return p.zb;
    case paper_column::bf: return p.bf;
    case paper_column::bfw: return p.bfw;
  }
  return 0;
}

bool is_cell_key(std::string_view key) {
  for (const auto* section : {"pipeline.", "dispatch.", "jitter.", "cost.", "machine.", "images.",
                              "texts.", "experts.", "recovery."})
    if (key.starts_with(section)) return true;
  return key == "train.steps" || key == "device.kind" || key == "device.time_scale";
}

std::size_t experiment::run_index(std::string_view wanted) const {
  const auto at =
      std::find_if(runs.begin(), runs.end(), [&](const auto& r) { return r.name == wanted; });
  RRFP_CHECK(at != runs.end(), "the name must be that of a run");
  return static_cast<std::size_t>(at - runs.begin());
}

}  // namespace rrfp::experiment
