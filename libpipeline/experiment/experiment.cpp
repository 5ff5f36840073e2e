#include <rrfp/experiment/experiment.hpp>

#include <algorithm>

#include <rrfp/base/check.hpp>
#include <rrfp/base/units.hpp>

namespace rrfp::experiment {

std::string_view name(run_mode mode) {
  switch (mode) {
    case run_mode::blocking: return "blocking";
    case run_mode::in_order: return "in-order";
    case run_mode::ready: return "ready";
  }
  return "?";
}

std::string_view name(engine_kind kind) {
  switch (kind) {
    case engine_kind::simulator: return "simulator";
    case engine_kind::wall_clock: return "wall clock";
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

workload::machine machine_of(const machine_options& o) {
  workload::machine m;
  m.each = {"", o.tflops * 1e12, o.memory_gb_s * 1e9,
            static_cast<std::uint64_t>(o.memory_gib * gibibyte)};
  m.group = o.group;
  m.within = {o.within_gb_s * 1e9, o.within_us * 1e-6};
  m.between = {o.between_gb_s * 1e9, o.between_us * 1e-6};
  m.efficiency = o.efficiency;
  return m;
}

std::size_t experiment::run_index(std::string_view wanted) const {
  const auto at =
      std::find_if(runs.begin(), runs.end(), [&](const auto& r) { return r.name == wanted; });
  RRFP_CHECK(at != runs.end(), "the name must be that of a run");
  return static_cast<std::size_t>(at - runs.begin());
}

}  // namespace rrfp::experiment
