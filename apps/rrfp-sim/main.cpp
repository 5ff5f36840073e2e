#include <CLI/CLI.hpp>

#include <optional>

#include <fmt/format.h>

#include <rrfp/policies/registry.hpp>
#include <rrfp/policies/table_csv.hpp>
#include <rrfp/report/trace.hpp>
#include <rrfp/simulate/duration_table.hpp>
#include <rrfp/simulate/simulator.hpp>
#include <rrfp/study/options.hpp>

#include "../common/checks.hpp"
#include "../common/console.hpp"
#include "../common/output_file.hpp"
#include "../common/program.hpp"
#include "../common/trace_options.hpp"
#include "from_trace.hpp"
#include "loss_options.hpp"
#include "simulation_report.hpp"

namespace {

using namespace rrfp;

struct options {
  std::string job;
  std::vector<std::string> settings;
  std::string durations;
  std::string write_durations;
  std::string write_schedule;
  std::string json;
  std::uint64_t steps = 1;
  bool gaps = false;
  std::vector<std::string> traces;
  foreign::read_options log;
  double backward_share = 0.5;
  apps::loss_options losses;
  std::string chart;
};

/// The durations of a table, with the microbatches of every step renumbered in the order of
/// admission.
class admitted_costs final : public simulate::cost_model {
 public:
  admitted_costs(const simulate::duration_table& loaded, const pipeline_shape& shape,
                 admission order, std::uint64_t steps)
      : loaded_(loaded) {
    for (std::uint64_t step = 0; step < steps; ++step) {
      std::vector<double> cost(shape.microbatches);
      for (std::uint32_t mb = 0; mb < shape.microbatches; ++mb)
        for (std::uint32_t v = 0; v < shape.virtual_stages(); ++v) {
          const auto at = shape.at(virtual_stage_id{v});
          const task forward{task_kind::forward, microbatch_id{mb}, at.chunk};
          cost[mb] +=
              static_cast<double>(loaded.duration_of(step_id{step}, at.stage, forward).value_or(0));
        }
      order_.push_back(admission_order(order, cost));
    }
  }

  simulate::nanoseconds compute(step_id step, stage_id stage, const task& t) const override {
    return loaded_.compute(step, stage, as_loaded(step, t));
  }
  simulate::nanoseconds link(step_id step, virtual_stage_id to, const task& t) const override {
    return loaded_.link(step, to, as_loaded(step, t));
  }
  status covers(const simulate::plan& plan) const override {
    return loaded_.covers(plan, [this](step_id step, task t) { return as_loaded(step, t); });
  }

 private:
  task as_loaded(step_id step, task t) const {
    t.mb = microbatch_id{order_[step.value()][t.mb.value()]};
    return t;
  }

  const simulate::duration_table& loaded_;
  std::vector<std::vector<std::uint32_t>> order_;
};

/// Forwards the run to every observer that the options requested.
class observers final : public simulate::observer {
 public:
  void add(simulate::observer* o) { list_.push_back(o); }
  void on_event(stage_id s, simulate::nanoseconds at, const event& e) override {
    for (auto* o : list_) o->on_event(s, at, e);
  }
  void on_task(const simulate::task_span& t) override {
    for (auto* o : list_) o->on_task(t);
  }
  void on_idle(const simulate::idle_span& i) override {
    for (auto* o : list_) o->on_idle(i);
  }

 private:
  std::vector<simulate::observer*> list_;
};

status simulate_one(const options& wanted, const job::job& j, std::string& json) {
  const auto simulation = job::simulation_of(j, policies::registry(), wanted.steps);
  if (!simulation) return simulation.failure();
  const auto& shape = simulation->shape;
  const simulate::cost_model* costs = &simulation->costs;
  auto table = result<simulate::duration_table>{simulate::duration_table{shape}};
  std::optional<admitted_costs> admitted;
  if (!wanted.durations.empty()) {
    table = simulate::duration_table::read(wanted.durations, shape);
    if (!table) return table.failure();
    costs = &admitted.emplace(*table, shape, j.dispatch.admit, wanted.steps);
    if (auto covered = costs->covers(*simulation); !covered)
      return within(wanted.durations, covered.failure());
  }

  observers watchers;
  apps::gap_list gaps;
  simulate::duration_recorder durations{shape};
  if (wanted.gaps) watchers.add(&gaps);
  if (!wanted.write_durations.empty()) watchers.add(&durations);
  const auto ran = simulate::run(*simulation, *costs, &watchers);
  if (!ran) return within(j.source, ran.failure());

  apps::print("{}: {}{}", j.name, apps::table_of(*ran, *simulation), apps::text_of(gaps));
  json += apps::json_of(*ran, *simulation, j.name) + "\n";
  if (auto written =
          apps::write_output("--write-durations", wanted.write_durations, durations.table().text());
      !written)
    return written;
  if (wanted.write_schedule.empty()) return success();
  std::vector<sequence> order;
  for (const auto& stage : ran->stages) order.push_back(stage.order);
  return apps::write_output("--write-schedule", wanted.write_schedule,
                            policies::write_csv(order, shape));
}

status forecast_from(const options& wanted) {
  if (auto can =
          apps::check_outputs(wanted.traces, {{"--json", wanted.json}, {"--chart", wanted.chart}});
      !can)
    return can;
  const auto made = apps::forecasts_from(wanted.traces, wanted.log, wanted.backward_share);
  if (!made) return made.failure();
  if (!wanted.chart.empty() && made->charts.size() != 1)
    return error{fmt::format("--chart needs one run, got {}", made->charts.size())};
  apps::print("{}", made->table);
  if (!wanted.chart.empty())
    if (auto written = apps::write_output("--chart", wanted.chart, made->charts.front()); !written)
      return written;
  return apps::write_output("--json", wanted.json, made->json);
}

status simulate_losses(const options& wanted, const job::job& j, std::string& json) {
  const auto made = apps::losses_of(j, wanted.losses, wanted.steps);
  if (!made) return made.failure();
  apps::print("{}", apps::table_of(*made));
  json += apps::json_of(*made) + "\n";
  if (wanted.chart.empty()) return success();
  return apps::write_output("--chart", wanted.chart, apps::chart_of(*made));
}

status simulate_all(const options& wanted) {
  if (!wanted.traces.empty()) return forecast_from(wanted);
  if (wanted.job.empty()) return error{"expected a job, or --from TRACE..."};
  if (!wanted.chart.empty() && wanted.losses.mtbf_hours.empty())
    return error{"--chart needs --losses or --from"};

  if (auto can = apps::check_outputs({wanted.job}, {{"--write-durations", wanted.write_durations},
                                                    {"--write-schedule", wanted.write_schedule},
                                                    {"--json", wanted.json},
                                                    {"--chart", wanted.chart}});
      !can)
    return can;
  const auto loaded = job::load_job(wanted.job, policies::registry(), wanted.settings,
                                    job::job_use::simulate, study::schema());
  if (!loaded) return loaded.failure();
  for (const auto& note : loaded->notes) apps::complain("{}", note);
  const auto jobs = job::variants(*loaded);
  if (jobs.size() > 1 && !(wanted.write_durations.empty() && wanted.write_schedule.empty()))
    return error{"--write-durations and --write-schedule need a job without [[compare]]"};
  if (jobs.size() > 1 && !wanted.chart.empty())
    return error{"--chart needs a job without [[compare]]"};
  std::string json;
  for (const auto& j : jobs)
    if (auto done = wanted.losses.mtbf_hours.empty() ? simulate_one(wanted, j, json)
                                                     : simulate_losses(wanted, j, json);
        !done)
      return done;
  return apps::write_output("--json", wanted.json, json);
}

/// The options of --losses.
void add_losses(CLI::App& app, options& wanted) {
  auto* losses = apps::add_loss_options(app, wanted.losses);
  app.add_option("--chart", wanted.chart,
                 "With --losses or --from: write the useful time, or the\n"
                 "steps, as a chart (SVG)");
  for (const auto* other :
       {"--from", "--durations", "--write-durations", "--write-schedule", "--gaps"})
    losses->excludes(other);
}

int run(int argc, char** argv) {
  CLI::App app{
      "Simulates a job in virtual time, with the scheduling code of the runtime, or\n"
      "other schedules on the times of a recorded run"};
  app.set_version_flag("--version", "rrfp-sim " RRFP_VERSION);
  app.footer(
      "Exit codes: 0 done, 1 internal error or an output that could not be written,\n"
      "2 bad input.");
  options wanted;
  app.add_option("job", wanted.job,
                 "The job, a TOML file; only [pipeline], [dispatch],\n"
                 "[cost], [machine], [images] and [jitter] are used;\n"
                 "with --losses also [train], [transport],\n"
                 "[checkpoint] and [recovery]");
  app.add_option("--from", wanted.traces,
                 "In place of a job: traces of a run that rrfp-report\n"
                 "reads; replays it and compares schedules")
      ->expected(1, static_cast<int>(report::traced_stages_max))
      ->excludes("job");
  apps::add_trace_options(app, wanted.log);
  app.add_option("--backward-share", wanted.backward_share,
                 "With --from, if the run did not split backward: the\n"
                 "share that counts as B")
      ->check(apps::between(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--set", wanted.settings, "Override a key: section.key=value; may be repeated")
      ->take_all()
      ->allow_extra_args(false);
  app.add_option("--steps", wanted.steps, "Steps to simulate")
      ->check(apps::between(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--durations", wanted.durations,
                 "CSV file with the columns step,stage,chunk,mb,kind,ms:\n"
                 "all durations, in place of [cost] and [jitter]");
  app.add_option("--write-durations", wanted.write_durations,
                 "Write the simulated durations as such a CSV file");
  app.add_option("--write-schedule", wanted.write_schedule,
                 "Write the simulated order as CSV in the format of\n"
                 "torch.distributed.pipelining");
  app.add_option("--json", wanted.json, "Write the report, one line of JSON per run");
  app.add_flag("--gaps", wanted.gaps, "Print every idle interval and its cause");
  add_losses(app, wanted);
  for (const auto* of_job :
       {"--set", "--steps", "--durations", "--write-durations", "--write-schedule", "--gaps"})
    app.get_option("--from")->excludes(of_job);
  if (const auto over = apps::parse_arguments(app, argc, argv)) return *over;
  const auto done = simulate_all(wanted);
  return done ? exit_done : apps::end_with(done.failure());
}

}  // namespace

int main(int argc, char** argv) { rrfp::apps::run_program("rrfp-sim", argc, argv, &run); }
