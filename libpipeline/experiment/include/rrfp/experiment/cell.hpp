/// One measurement of an experiment: everything it depends on, and what came of it.
///
/// A cell is whole: two cells of equal description give the same outcome in the simulator,
/// whichever experiment they stand in. The seed is that of the weather and of the images; runs of
/// the same workload, weather and seed are paired: they meet the same images, task times and
/// delays.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <rrfp/experiment/experiment.hpp>

namespace rrfp::experiment {

struct cell {
  workload_entry workload;
  run_options run;
  weather_entry weather;
  std::uint64_t seed = 1;
  std::uint64_t steps = 1;
  engine_kind engine = engine_kind::simulator;
  /// Of the wall clock.
  double time_scale = 1;
};

/// The cell of a number below e.cells().
cell cell_at(const experiment& e, std::size_t number, engine_kind engine);

/// One line of key=value: what the outcome depends on and nothing else; names and the paper's
/// figures are left out.
std::string description_of(const cell& c);

/// Times are modelled ones, whatever the time scale of the wall clock was. Memory is that of the
/// fullest device; bytes are 0 where the workload has [cost] alone.
struct outcome {
  /// Of each step, the slowest replica and the exchange of gradients included.
  std::vector<double> step_ms;
  /// Share of all devices' time in which no task ran; of it, in a send that was not received yet.
  double idle = 0;
  double blocked = 0;
  /// Wall clock: of the mean step, while a device was free and its stage waited for nothing, on the
  /// stage with most of it: the time that the runtime itself took.
  double launch_gap_ms = 0;
  /// Microbatches held at once by the stage that held most.
  std::uint32_t slots_peak = 0;
  /// Activations at their peak, and with weights, gradients and optimizer state.
  std::uint64_t activation_bytes_peak = 0;
  std::uint64_t held_bytes_peak = 0;

  double mean_ms() const;
};

/// Runs cells, from any thread.
class engine {
 public:
  virtual ~engine() = default;
  virtual engine_kind kind() const = 0;
  /// Errors: what cannot be known before: a schedule that comes to a stand.
  virtual result<outcome> run(const cell& c) const = 0;
};

std::unique_ptr<engine> make_simulator_engine();

/// What one engine made of all cells of an experiment, in the order of the cells.
struct engine_outcomes {
  engine_kind engine = engine_kind::simulator;
  std::vector<outcome> outcomes;
};

}  // namespace rrfp::experiment
