#include <rrfp/experiment/cell.hpp>

#include <numeric>

#include <rrfp/base/check.hpp>
#include <rrfp/job/value.hpp>

#include "checksum.hpp"
#include "keys.hpp"

namespace rrfp::experiment {

namespace {

/// Raise this whenever an unchanged description leads to a different outcome.
constexpr int description_version = 2;

/// " key=value" for each key except names and the paper's figures.
template <class Root>
std::string settings_of(const job::key_table<Root>& table, const Root& root) {
  std::string text;
  for (const auto& k : table.keys)
    if (k.get && k.path != "name" && k.section() != "paper" && k.path != "paper")
      text += " " + k.path + "=" + job::to_toml(k.get(root));
  return text;
}

}  // namespace

cell cell_at(const experiment& e, std::size_t number, engine_kind engine) {
  RRFP_CHECK(number < e.cells(), "the number must be below e.cells()");
  const auto next = [&](std::size_t size) {
    const auto at = number % size;
    number /= size;
    return at;
  };
  cell c;
  c.seed = e.seeds[next(e.seeds.size())];
  c.run = e.runs[next(e.runs.size())];
  c.weather = e.weathers[next(e.weathers.size())];
  c.workload = e.workloads[number];
  c.steps = e.steps;
  c.engine = engine;
  if (engine == engine_kind::wall_clock) c.time_scale = e.time_scale;
  return c;
}

std::string description_of(const cell& c) {
  const auto& r = c.run;
  const run_draft run{run_matrix_of(r)};
  const weather_draft weather{{c.weather.name}, c.weather.conditions.jitter, c.weather.conditions};
  const auto table = r.table.empty() ? std::string{} : " table=" + checksum(r.table);
  return "v" + std::to_string(description_version) + " engine=" + std::string{name(c.engine)} +
         (c.engine == engine_kind::wall_clock ? " time_scale=" + job::to_toml({c.time_scale})
                                              : "") +
         " steps=" + std::to_string(c.steps) + " seed=" + std::to_string(c.seed) + "; workload" +
         settings_of(workload_keys(), c.workload) + "; run" + settings_of(run_keys(), run) + table +
         "; weather" + settings_of(weather_keys(), weather);
}

double outcome::mean_ms() const {
  return std::accumulate(step_ms.begin(), step_ms.end(), 0.0) / static_cast<double>(step_ms.size());
}

}  // namespace rrfp::experiment
