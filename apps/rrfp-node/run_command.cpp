#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fmt/format.h>

#include <rrfp/actors/job_session.hpp>

#include "commands.hpp"
#include "exit_code.hpp"
#include "interrupt_watch.hpp"
#include "progress.hpp"
#include "results.hpp"

namespace rrfp::apps {

namespace {

int refuse(const std::string& message) {
  fmt::print(stderr, "rrfp-node: {}\n", message);
  return exit_bad_input;
}

/// One run of the job as the outputs need it.
struct prepared_run {
  job::job what;
  std::unique_ptr<actors::session> session;
  std::unique_ptr<progress> shown;
  std::unique_ptr<actors::trace_recorder> trace;
};

/// Sets up the run; nothing has started yet.
result<prepared_run> prepare(const job::job& j, std::shared_ptr<const compute::batch_source> data,
                             json_log& log, bool traced) {
  auto setup = actors::make_session_setup(j, std::move(data));
  if (!setup) return setup.failure();
  prepared_run run{j, nullptr, nullptr, nullptr};
  run.shown = std::make_unique<progress>(stdout, j.run.progress, j.name, j.train.steps);
  if (traced) run.trace = std::make_unique<actors::trace_recorder>();
  setup->trace = run.trace.get();
  setup->on_step = [&log, j, shown = run.shown.get()](const actors::step_summary& s) {
    shown->step(s);
    log.step(j, s);
  };
  auto session = actors::session::open(std::move(*setup));
  if (!session) return session.failure();
  run.session = std::move(*session);
  return run;
}

int exit_code_of(const actors::run_result& r) {
  switch (r.how) {
    case actors::ending::done: return exit_done;
    case actors::ending::interrupted: return exit_interrupted;
    case actors::ending::failed: return exit_own_fault;
  }
  return exit_own_fault;
}

/// The result of all runs side by side; a difference that may not be is the product's own fault.
int conclude(const std::vector<finished_run>& runs) {
  fmt::print("\n{}", table_of(runs));
  for (const auto& r : runs) {
    const auto& first = runs[0];
    if (&r == &runs[0] || !must_agree(first.run, r.run)) continue;
    if (r.summary.weights_xxh64 == first.summary.weights_xxh64 &&
        r.summary.losses_xxh64 == first.summary.losses_xxh64) {
      fmt::print("{} and {}: losses and weights are equal to the last bit\n", first.run.name,
                 r.run.name);
    } else {
      fmt::print(stderr, "rrfp-node: {} and {} must agree to the last bit and do not\n",
                 first.run.name, r.run.name);
      return exit_own_fault;
    }
  }
  return exit_done;
}

/// Whether `path` can be written, found out before hours of training.
status writable(const std::string& option, const std::string& path) {
  if (path.empty()) return success();
  const auto beside = path + ".tmp";
  std::FILE* const file = std::fopen(beside.c_str(), "w");
  if (file == nullptr)
    return error{fmt::format("{} {}: cannot create: {}", option, path, std::strerror(errno))};
  std::fclose(file);
  std::remove(beside.c_str());
  return success();
}

}  // namespace

int run_command(const command_options& options) {
  interrupt_watch interrupts;
  const auto loaded = job::load_job(options.job, options.settings);
  if (!loaded) return refuse(loaded.message());
  for (const auto& note : loaded->notes) fmt::print(stderr, "rrfp-node: {}\n", note);
  const auto jobs = job::variants(*loaded);
  if (auto can = writable("--trace", options.trace); !can) return refuse(can.message());
  auto data = actors::open_data(jobs[0]);
  if (!data) return refuse(data.message());
  // Every run is tried for validity before the first one starts.
  for (const auto& j : jobs)
    if (auto setup = actors::make_session_setup(j, *data); !setup) return refuse(setup.message());
  auto log = json_log::open(options.json);
  if (!log) return refuse(log.message());

  std::vector<finished_run> finished;
  std::vector<std::unique_ptr<actors::trace_recorder>> traces;
  std::vector<actors::titled_trace> titled;
  int code = exit_done;
  for (const auto& j : jobs) {
    auto source = actors::open_data(j);
    if (!source) return refuse(source.message());
    auto run = prepare(j, std::move(*source), **log, !options.trace.empty());
    if (!run) return refuse(run.message());
    fmt::print("{}: {} {}, {} stages, {} microbatches, {} steps\n", j.name,
               name(j.dispatch.mode), j.dispatch.policy, j.pipeline.stages,
               j.pipeline.microbatches, j.train.steps);
    std::fflush(stdout);
    interrupts.on_interrupt([session = run->session.get()] { session->interrupt(); });
    const auto result = run->session->run();
    interrupts.on_interrupt(nullptr);
    run->shown->finish();
    (*log)->summary(j, result);
    titled.push_back({j.name, run->trace.get()});
    traces.push_back(std::move(run->trace));
    code = exit_code_of(result);
    if (result.how == actors::ending::failed)
      fmt::print(stderr, "rrfp-node: {}: {}\n", j.name, result.message);
    if (result.how == actors::ending::interrupted)
      fmt::print("{}: interrupted after {} steps\n", j.name, result.summary.steps);
    if (code != exit_done) break;
    finished.push_back({j, result.summary});
  }

  if (code == exit_done) code = conclude(finished);
  if (!options.trace.empty()) {
    if (auto written = actors::write_chrome_json(options.trace, titled); !written) {
      fmt::print(stderr, "rrfp-node: --trace {}\n", written.message());
      if (code == exit_done) code = exit_own_fault;
    } else {
      fmt::print("trace: {} (open it in ui.perfetto.dev)\n", options.trace);
    }
  }
  if (auto closed = (*log)->close(); !closed) {
    fmt::print(stderr, "rrfp-node: {}\n", closed.message());
    if (code == exit_done) code = exit_own_fault;
  }
  return code;
}

}  // namespace rrfp::apps
