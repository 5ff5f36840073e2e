#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <optional>

#include <fmt/format.h>

#include <rrfp/experiment/experiment.hpp>
#include <rrfp/experiment/store.hpp>
#include <rrfp/experiment/tables.hpp>

#include "../rrfp-node/exit_code.hpp"
#include "progress.hpp"

namespace {

using namespace rrfp;

struct options {
  std::string experiment;
  std::string out;
  std::optional<std::size_t> cell;
  bool keys = false;
};

int refuse(const std::string& message) {
  fmt::print(stderr, "rrfp-jitter: {}\n", message);
  return apps::exit_bad_input;
}

std::string in_cell(std::size_t number, const experiment::cell& c, const std::string& message) {
  return fmt::format("cell {} ({}, {} weather, {}, seed {}): {}", number, c.workload.is.name,
                     c.weather.name, c.run.name, c.seed, message);
}

/// One cell alone, whatever is in any folder.
int run_cell(const experiment::experiment& e, std::size_t number) {
  if (number >= e.cells())
    return refuse(fmt::format("--cell: expected a number below {}, got {}", e.cells(), number));
  const auto c = experiment::cell_at(e, number);
  const auto ran = experiment::make_engine(c.engine)->run(c);
  if (!ran) return refuse(e.source + ": " + in_cell(number, c, ran.message()));
  fmt::print("{}\n", experiment::cell_json(c, *ran));
  return apps::exit_done;
}

/// Runs what the store does not have yet.
result<std::vector<experiment::outcome>> run_cells(const experiment::experiment& e,
                                                   experiment::store& done) {
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < e.cells(); ++i)
    if (done.find(description_of(cell_at(e, i))) == nullptr) missing.push_back(i);
  if (missing.size() < e.cells())
    fmt::print(stderr, "{} of {} cells were done before\n", e.cells() - missing.size(), e.cells());

  const auto engine = experiment::make_engine(e.engine);
  apps::progress progress{missing.size()};
  for (const auto i : missing) {
    const auto c = cell_at(e, i);
    const auto ran = engine->run(c);
    if (!ran) return error{e.source + ": " + in_cell(i, c, ran.message())};
    if (auto kept = done.add(description_of(c), *ran); !kept) return kept.failure();
    progress.cell_done();
  }
  progress.finish();

  std::vector<experiment::outcome> all;
  for (std::size_t i = 0; i < e.cells(); ++i)
    all.push_back(*done.find(description_of(cell_at(e, i))));
  return all;
}

int run_all(const experiment::experiment& e, const std::string& folder) {
  auto done = experiment::store::open(folder);
  if (!done) return refuse("--out: " + done.message());
  for (const auto& note : done->notes()) fmt::print(stderr, "rrfp-jitter: {}\n", note);
  const auto outcomes = run_cells(e, *done);
  if (!outcomes) return refuse(outcomes.message());
  fmt::print("{}: {} cells on the {}, {} seeds of {} steps\n{}{}{}", e.name, e.cells(),
             name(e.engine), e.seeds.size(), e.steps, results_table(e, *outcomes),
             ablation_table(e, *outcomes), paper_table(e, *outcomes));
  const std::filesystem::path path{folder};
  if (auto w = experiment::write_whole(path / "results.json", results_json(e, *outcomes)); !w)
    return refuse("--out: " + w.message());
  if (auto w = experiment::write_whole(path / "results.csv", results_csv(e, *outcomes)); !w)
    return refuse("--out: " + w.message());
  return apps::exit_done;
}

int run(int argc, char** argv) {
  CLI::App app{"What readiness gains: workloads x runs x weather x seeds"};
  app.set_version_flag("--version", "rrfp-jitter " RRFP_VERSION);
  options wanted;
  app.add_option("experiment", wanted.experiment, "The experiment, a TOML file");
  app.add_option("--out", wanted.out,
                 "Folder of the results; cells that it holds already are not run again");
  app.add_option("--cell", wanted.cell, "Run this cell alone and print it as JSON");
  app.add_flag("--keys", wanted.keys, "Print all keys of an experiment file");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? apps::exit_done : apps::exit_bad_input;
  }
  if (wanted.keys) {
    fmt::print("{}", experiment::experiment_reference());
    return apps::exit_done;
  }
  if (wanted.experiment.empty()) return refuse("expected an experiment file");
  if (wanted.out.empty() && !wanted.cell) return refuse("expected --out FOLDER or --cell N");
  const auto e = experiment::load_experiment(wanted.experiment);
  if (!e) return refuse(e.message());
  return wanted.cell ? run_cell(*e, *wanted.cell) : run_all(*e, wanted.out);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rrfp-jitter: %s\n", e.what());
    return rrfp::apps::exit_own_fault;
  }
}
