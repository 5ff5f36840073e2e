#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <rrfp/io/atomic_file.hpp>

#include "../common/checks.hpp"
#include "../common/console.hpp"
#include "../common/program.hpp"
#include "../rrfp-node/interrupt_watch.hpp"
#include "../rrfp-sim/loss_options.hpp"
#include "agreement.hpp"
#include "experiment.hpp"
#include "losses_of_runs.hpp"
#include "page.hpp"
#include "run_cells.hpp"
#include "store.hpp"
#include "tables.hpp"

namespace {

using namespace rrfp;

struct options {
  std::string experiment;
  std::string out;
  std::optional<std::size_t> cell;
  std::size_t jobs = 4;
  std::string engine;
  std::optional<double> time_scale;
  bool keys = false;
  apps::loss_options losses;
};

/// Runs one cell, whatever the results folder holds: prints one line per engine.
int print_cell(const experiment::experiment& e, std::size_t number) {
  if (number >= e.cells())
    return apps::end_with(
        {fmt::format("--cell: expected a number below {}, got {}", e.cells(), number)});
  for (const auto engine : e.engines) {
    const auto c = experiment::cell_at(e, number, engine);
    const auto ran = apps::run_cell(c);
    if (!ran)
      return apps::end_with(within(e.source + ": " + apps::title_of(c, number), ran.failure()));
    apps::print("{}\n", experiment::cell_json(c, *ran));
  }
  return exit_done;
}

std::string machine() {
  std::ifstream cpus{"/proc/cpuinfo"};
  for (std::string line; std::getline(cpus, line);)
    if (line.starts_with("model name") && line.find(": ") != std::string::npos)
      return fmt::format("{} cores, {}", std::thread::hardware_concurrency(),
                         line.substr(line.find(": ") + 2));
  return fmt::format("{} cores", std::thread::hardware_concurrency());
}

void print_tables(const experiment::experiment& e, const experiment::engine_outcomes& main) {
  const bool is_real_time = main.engine != experiment::engine_kind::simulator;
  const bool has_nodes = main.engine == experiment::engine_kind::processes;
  apps::print(
      "{}: {} cells on {}{}, {} seeds of {} steps\n{}{}{}{}{}{}", e.name, e.cells(),
      has_nodes ? fmt::format("{} nodes", e.nodes) : fmt::format("the {}", name(main.engine)),
      is_real_time ? fmt::format(" (time scale {})", e.time_scale) : "", e.seeds.size(), e.steps,
      results_table(e, main.outcomes), ablation_table(e, main.outcomes),
      weather_table(e, main.outcomes), spread_table(e, main.outcomes),
      ranks_table(e, main.outcomes), paper_table(e, main.outcomes));
  if (is_real_time) apps::print("{}", breakdown_table(e, main.outcomes));
}

/// Prints the tables of every engine, and how well the first one agrees with the last.
void print_tables(const experiment::experiment& e,
                  const std::vector<experiment::engine_outcomes>& all) {
  for (const auto& made : all) {
    if (&made != &all.front()) apps::print("\n");
    print_tables(e, made);
  }
  if (all.size() > 1)
    apps::print("{}", agreement_table(e, all.front().outcomes, all.back().outcomes));
}

/// The first interrupt lets running cells finish; the second one ends the program at once.
void handle_interrupts(apps::interrupt_watch& watch) {
  watch.on_interrupt([interrupted = false]() mutable {
    if (std::exchange(interrupted, true)) std::_Exit(exit_interrupted);
    apps::print_error(
        "\nrrfp-jitter: finishing the running cells; interrupt again to stop at once\n");
  });
}

int run_all(const experiment::experiment& e, const options& wanted, apps::interrupt_watch& watch) {
  handle_interrupts(watch);
  const auto begun = std::chrono::steady_clock::now();
  auto done = experiment::store::open(wanted.out);
  if (!done) return apps::end_with(within("--out", done.failure()));
  for (const auto& note : done->notes()) apps::complain("{}", note);
  const auto all =
      apps::run_cells(e, *done, {wanted.jobs, [&watch] { return watch.interrupted(); }});
  if (!all) return apps::end_with(all.failure());
  if (all->size() < e.engines.size() || all->back().outcomes.size() < e.cells()) {
    apps::complain("interrupted; run the same command to resume");
    return exit_interrupted;
  }
  print_tables(e, *all);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
  apps::print("\nmachine: {}; took {:.0f} s\n", machine(), took.count());
  const std::filesystem::path path{wanted.out};
  const std::pair<const char*, std::string> outputs[] = {
      {"results.json", results_json(e, *all)},
      {"results.csv", results_csv(e, *all)},
      {"summary.csv", summary_csv(e, *all)},
      {"figure.svg", figure_svg(e, all->back())},
      {"report.html", report_page(e, *all, machine())}};
  for (const auto& [name, text] : outputs)
    if (auto w = io::write_atomically(path / name, text); !w)
      return apps::end_with(within("--out", w.failure()));
  return exit_done;
}

int print_losses(const experiment::experiment& e, const options& wanted) {
  const auto made = apps::losses_of_all(e, wanted.losses);
  if (!made) return apps::end_with(made.failure());
  apps::print("{}", made->tables);
  if (wanted.out.empty()) return exit_done;
  std::error_code failed;
  std::filesystem::create_directories(wanted.out, failed);
  const auto path = std::filesystem::path{wanted.out} / "losses.jsonl";
  if (auto w = io::write_atomically(path, made->json); !w)
    return apps::end_with(within("--out", w.failure()));
  return exit_done;
}

int run(int argc, char** argv) {
  CLI::App app{
      "Runs an experiment: each workload with each run (policy, mode and limits) under\neach "
      "weather (jitter and faults) and seed, and compares the runs"};
  app.set_version_flag("--version", "rrfp-jitter " RRFP_VERSION);
  app.footer(
      "Exit codes: 0 done, 1 internal error or an output that could not be written,\n"
      "2 bad input, 130 interrupted.");
  options wanted;
  app.add_option("experiment", wanted.experiment, "The experiment, a TOML file");
  app.add_option("--out", wanted.out,
                 "The folder for the results; cells that it already\n"
                 "holds are not run again");
  app.add_option("--cell", wanted.cell,
                 "Run only the cell of this number (from 0) and print\nit as JSON")
      ->check(apps::between(std::size_t{0}, std::size_t{1} << 32));
  app.add_option("--engine", wanted.engine,
                 "simulator, wall-clock, both or processes; overrides\n"
                 "the file")
      ->check(
          apps::one_of({std::begin(experiment::engine_words), std::end(experiment::engine_words)}));
  app.add_option("--time-scale", wanted.time_scale,
                 "Emulated devices: factor on all times; overrides the\nfile")
      ->check(apps::between(1e-3, 1e3));
  app.add_option("--jobs", wanted.jobs, "Number of concurrent cells on the wall clock")
      ->check(apps::between(1, 64))
      ->capture_default_str();
  auto* const losses = apps::add_loss_options(app, wanted.losses);
  for (const auto* const other : {"--cell", "--engine", "--time-scale"}) losses->excludes(other);
  app.add_flag("--keys", wanted.keys, "Print all keys of an experiment file");
  if (const auto over = apps::parse_arguments(app, argc, argv)) return *over;
  if (wanted.keys) {
    apps::print("{}", experiment::experiment_reference());
    return exit_done;
  }
  if (wanted.experiment.empty())
    return apps::end_with({"expected an experiment file, such as apps/experiments/first.toml"});
  const bool asks_for_losses = !wanted.losses.mtbf_hours.empty();
  if (wanted.out.empty() && !wanted.cell && !asks_for_losses)
    return apps::end_with({"expected --out FOLDER, --cell N or --losses HOURS"});
  auto e = experiment::load_experiment(wanted.experiment);
  if (!e) return apps::end_with(e.failure());
  if (asks_for_losses) return print_losses(*e, wanted);
  if (!wanted.engine.empty()) e->engines = experiment::engines_of(wanted.engine);
  e->time_scale = wanted.time_scale.value_or(e->time_scale);
  if (wanted.cell) return print_cell(*e, *wanted.cell);
  apps::interrupt_watch watch;
  return run_all(*e, wanted, watch);
}

}  // namespace

int main(int argc, char** argv) { rrfp::apps::run_program("rrfp-jitter", argc, argv, &run); }
