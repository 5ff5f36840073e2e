/// rrfp.simulate(): the core of the runtime in virtual time, with results as lists of rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/stl.h>
#include <rrfp/base/units.hpp>
#include <rrfp/job/job.hpp>
#include <rrfp/job/plan.hpp>
#include <rrfp/policies/registry.hpp>
#include <rrfp/simulate/simulator.hpp>
#include <rrfp/study/options.hpp>

#include "gil.hpp"

namespace rrfp::python {

struct simulated_run {
  std::string name;
  simulate::report report;
  std::vector<simulate::task_span> tasks;
};

/// The job of a file, or that of the settings alone; each of its variants.
inline result<std::vector<simulated_run>> simulate_job(const std::optional<std::string>& path,
                                                       const std::vector<std::string>& settings,
                                                       std::uint64_t steps) {
  struct recorder final : simulate::observer {
    void on_task(const simulate::task_span& t) override {
      tasks.push_back(t);
      if (tasks.size() % 65536 != 0) return;
      try {
        check_signals();
      } catch (...) {
        interrupt = std::current_exception();
        throw;
      }
    }
    std::vector<simulate::task_span> tasks;
    std::exception_ptr interrupt;  // of the program
  };

  const auto& policies = policies::registry();
  const auto& known = study::schema();
  const auto j = path ? job::load_job(*path, policies, settings, job::job_use::simulate, known)
                      : job::parse_job("", "settings", policies, settings, job::job_use::simulate,
                                       known);
  if (!j) return j.failure();
  std::vector<simulated_run> runs;
  for (const auto& one : job::variants(*j)) {
    const auto simulation = job::simulation_of(one, policies, steps);
    if (!simulation) return simulation.failure();
    recorder watcher;
    auto report = simulate::run(*simulation, simulation->costs, &watcher);
    if (watcher.interrupt) std::rethrow_exception(watcher.interrupt);
    if (!report) return within(one.source, report.failure());
    runs.push_back({one.name, *std::move(report), std::move(watcher.tasks)});
  }
  return runs;
}

/// What pandas.DataFrame takes: a list of dicts for each of "steps", "stages" and "tasks".
inline py::dict rows_of(const std::vector<simulated_run>& runs) {
  py::list steps, stages, tasks;
  for (const auto& run : runs) {
    for (std::size_t i = 0; i < run.report.steps.size(); ++i)
      steps.append(py::dict("run"_a = run.name,
                            "step"_a = i + 1,
                            "ms"_a = milliseconds(run.report.steps[i].makespan),
                            "lower_bound_ms"_a = milliseconds(run.report.steps[i].lower_bound)));
    for (std::size_t s = 0; s < run.report.stages.size(); ++s) {
      const auto& stage = run.report.stages[s];
      py::dict row;
      row["run"] = run.name;
      row["stage"] = s;
      row["busy_ms"] = milliseconds(stage.busy);
      row["head_ms"] = milliseconds(stage.head);
      row["tail_ms"] = milliseconds(stage.tail);
      for (const auto cause : {wait_cause::input, wait_cause::in_order, wait_cause::memory,
                               wait_cause::ranks})
        row[py::str{"idle_" + std::string{name(cause)} + "_ms"}] =
            milliseconds(stage.idle_by_cause[static_cast<std::size_t>(cause)]);
      row["peak_slots"] = stage.memory.slots_peak;
      stages.append(std::move(row));
    }
    for (const auto& t : run.tasks)
      tasks.append(py::dict("run"_a = run.name,
                            "step"_a = t.step.value() + 1,
                            "stage"_a = t.stage.value(),
                            "kind"_a = std::string{name(t.what.what.kind)},
                            "microbatch"_a = t.what.what.mb.value(),
                            "chunk"_a = t.what.what.chunk.value(),
                            "begin_ms"_a = milliseconds(t.begin),
                            "end_ms"_a = milliseconds(t.end)));
  }
  return py::dict("steps"_a = std::move(steps),
                  "stages"_a = std::move(stages),
                  "tasks"_a = std::move(tasks));
}

}  // namespace rrfp::python
