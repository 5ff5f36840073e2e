/// rrfp.simulate(): the core of the runtime in virtual time, with results as lists of rows.
#pragma once

#include <cstddef>
#include <cstdint>
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
  class recorder final : public simulate::observer {
   public:
    explicit recorder(std::vector<simulate::task_span>& tasks) : tasks_(tasks) {}
    void on_task(const simulate::task_span& t) override { tasks_.push_back(t); }

   private:
    std::vector<simulate::task_span>& tasks_;
  };

  const auto& policies = policies::registry();
  const auto& known = study::schema();
  const auto j = path ? job::load_job(*path, policies, settings, job::job_use::simulate, known)
                      : job::parse_job("", "settings", policies, settings, job::job_use::simulate,
                                       known);
  if (!j) return j.failure();
  std::vector<simulated_run> runs;
  for (const auto& one : job::variants(*j)) {
    const auto dispatch = plan::make_dispatch_plan(one, policies);
    if (!dispatch) return dispatch.failure();
    const auto costs = plan::expected_costs(one);
    if (!costs) return costs.failure();
    simulated_run run{one.name, {}, {}};
    recorder watcher{run.tasks};
    auto report = simulate::run(plan::simulation_of(*dispatch, *costs, steps), *costs, &watcher);
    if (!report) return within(one.source, report.failure());
    run.report = *std::move(report);
    runs.push_back(std::move(run));
  }
  return runs;
}

/// What pandas.DataFrame takes: a list of dicts for each of "steps", "stages" and "tasks".
inline py::dict rows_of(const std::vector<simulated_run>& runs) {
  py::list steps, stages, tasks;
  for (const auto& run : runs) {
    for (std::size_t i = 0; i < run.report.steps.size(); ++i) {
      py::dict row;
      row["run"] = run.name;
      row["step"] = i + 1;
      row["ms"] = milliseconds(run.report.steps[i].makespan);
      row["lower_bound_ms"] = milliseconds(run.report.steps[i].lower_bound);
      steps.append(std::move(row));
    }
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
    for (const auto& t : run.tasks) {
      py::dict row;
      row["run"] = run.name;
      row["step"] = t.step.value() + 1;
      row["stage"] = t.stage.value();
      row["kind"] = std::string{name(t.what.what.kind)};
      row["microbatch"] = t.what.what.mb.value();
      row["chunk"] = t.what.what.chunk.value();
      row["begin_ms"] = milliseconds(t.begin);
      row["end_ms"] = milliseconds(t.end);
      tasks.append(std::move(row));
    }
  }
  py::dict all;
  all["steps"] = std::move(steps);
  all["stages"] = std::move(stages);
  all["tasks"] = std::move(tasks);
  return all;
}

}  // namespace rrfp::python
