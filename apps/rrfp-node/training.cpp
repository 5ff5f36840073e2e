#include "training.hpp"

#include <optional>
#include <utility>

#include <fmt/format.h>

#include <rrfp/base/exit_code.hpp>

#include <rrfp/actors/job_checkpoint.hpp>
#include <rrfp/actors/job_cluster.hpp>
#include <rrfp/actors/job_session.hpp>
#include <rrfp/plan/node_places.hpp>
#include <rrfp/policies/registry.hpp>

#include "../common/console.hpp"
#include "../common/output_file.hpp"
#include "checkpoints.hpp"
#include "endings.hpp"
#include "progress.hpp"
#include "report_file.hpp"
#include "results.hpp"

namespace rrfp::apps {

namespace {

/// A run that is ready to start, with its outputs.
struct prepared_run {
  std::unique_ptr<actors::session> session;
  std::unique_ptr<progress> display;
  std::unique_ptr<actors::trace_recorder> trace;
  std::vector<std::string> notes;  ///< printed before the run starts
};

/// Nodes that read different files would train on a mixture of them.
status agree_on_data(const checked_run& run, const status& mine, const node_context& context) {
  if (context.members == nullptr) return mine;
  const auto& [training, held_out] = run.data;
  std::string own;
  for (const auto* source : {training.get(), held_out.get()})
    if (source != nullptr) own += data::fingerprint_text(*source);
  const auto fingerprints =
      actors::agree(*context.members, mine ? result<std::string>{own} : mine.failure());
  if (!fingerprints) return fingerprints.failure();
  if (fingerprints->front().empty()) return success();  // the job has no data
  const auto same = data::check_same_data(*fingerprints);
  return same ? same : job::blame(run.options, data::key_of(run.options.data), same.message());
}

/// Sets up the run without starting it. An error is the same on all nodes.
result<prepared_run> prepare(const job::job& j, actors::session_setup setup, std::uint32_t number,
                             json_log& log, const training_options& options,
                             const node_context& context) {
  const auto notes = actors::agree_on_resume(j, setup, context.members);
  if (!notes) return notes.failure();
  for (const auto& line : *notes) print_error("rrfp-node: {}\n", line);
  prepared_run run;
  const auto first = setup.resume ? setup.resume->contents.step : 0;
  run.display = std::make_unique<progress>(j.run.progress, j.name, first, j.train.steps);
  if (!options.trace.empty()) run.trace = std::make_unique<actors::trace_recorder>();
  setup.trace = run.trace.get();
  if (context.leads())
    setup.on_step = [&log, j, display = run.display.get()](const actors::step_summary& s) {
      display->step(s);
      log.step(j, s);
    };
  setup.on_evaluation = [&log, j,
                         display = run.display.get()](const actors::evaluation_summary& e) {
    display->evaluation(e);
    log.evaluation(j, e);
  };
  setup.on_checkpoint = [&log, j, display = run.display.get()](const actors::checkpoint_report& r) {
    if (r.failure.empty())
      display->note(line_of(r));
    else
      print_error("rrfp-node: {}: {}\n", j.name, line_of(r));
    log.checkpoint(j, r);
  };
  setup.name = j.name;
  setup.board = options.board;
  const auto node = context.members == nullptr ? node_id{0} : context.members->node();
  setup.on_report = [folder = options.reports, node](const std::string& report) {
    write_hang_report(folder, node, report);
  };
  if (context.members != nullptr && context.leads())
    setup.on_connected = [](const std::string& line) { print("{}\n", line); };
  if (setup.resume && context.leads()) {
    run.notes.push_back(fmt::format("{}: {}", j.name, line_of(*setup.resume)));
    log.resume(j, *setup.resume);
  }
  auto session = actors::open_session(j, std::move(setup), context, number);
  if (!session) return session.failure();
  run.session = std::move(*session);
  return run;
}

/// Reports why a run failed, on one of the nodes of a launcher. Returns the run's exit code.
int report_end(const std::string& prefix, const actors::run_result& r,
               const node_context& context) {
  if (r.how != actors::ending::done && context.reports(r.how))
    print_error("rrfp-node: {}{}\n", prefix, cause_of(r, context.leads()));
  return exit_code_of(r.how);
}

std::string headline(const job::job& j) {
  const auto& p = j.pipeline;
  auto text = fmt::format("{}: {} {}, {} stages", j.name, name(j.dispatch.mode), j.dispatch.policy,
                          p.stages);
  if (p.tp > 1) text += fmt::format(" of {} ranks", p.tp);
  if (p.replicas > 1) text += fmt::format(", {} replicas", p.replicas);
  return text + fmt::format(", {} microbatches, {} steps", p.microbatches, j.train.steps);
}

/// Prints the results of all runs side by side. Different bits where equal ones are required are an
/// internal error.
int compare_runs(const std::vector<finished_run>& runs) {
  print("\n{}", table_of(runs));
  for (const auto& r : runs) {
    const auto& first = runs[0];
    if (&r == &runs[0] || !must_agree(first.run, r.run)) continue;
    // Runs that resumed after different steps are not comparable: one has losses that the other
    // lacks, and the learning rate may have changed between them.
    if (r.summary.first_step != first.summary.first_step) continue;
    if (r.summary.weights_xxh64 == first.summary.weights_xxh64 &&
        r.summary.losses_xxh64 == first.summary.losses_xxh64 &&
        r.summary.eval_losses_xxh64 == first.summary.eval_losses_xxh64) {
      print("{} and {}: losses and weights are equal to the last bit\n", first.run.name,
            r.run.name);
    } else {
      print_error(
          "rrfp-node: internal error: losses or weights of {} and {} differ; expected equal bits\n",
          first.run.name, r.run.name);
      return exit_failed;
    }
  }
  return exit_done;
}

}  // namespace

result<std::vector<checked_run>> check_training(const std::vector<job::job>& runs,
                                                const training_options& options,
                                                std::uint32_t nodes) {
  if (auto can = check_output("--trace", options.trace); !can) return can.failure();
  for (const auto& j : runs)
    if (auto found = actors::check_device(j); !found) return found.failure();
  std::vector<checked_run> checked;
  actors::data_opener opener;
  for (const auto& j : runs) {
    auto data = opener.open(j);
    if (!data) return data.failure();
    auto setup = actors::make_session_setup(j, policies::registry(), *data);
    if (!setup) return setup.failure();
    // Checksums take long; they are verified when the run starts.
    if (setup->checkpoint)
      if (auto may = actors::choose_resume(j, *setup->checkpoint, checkpoint::verification::sizes);
          !may)
        return may.failure();
    if (auto places = plan::node_places::make(j, nodes); !places) return places.failure();
    checked.push_back({j, std::move(*data), std::move(*setup)});
  }
  return checked;
}

int train(std::vector<checked_run> runs, const training_options& options,
          interrupt_watch& interrupts, const node_context& context) {
  const auto log = json_log::open(context.leads() ? options.json : std::string{});
  std::vector<finished_run> finished;
  std::vector<std::unique_ptr<actors::trace_recorder>> traces;
  std::vector<actors::titled_trace> titled;
  int code = exit_done;
  bool unsaved = false;
  bool trace_complete = true;
  std::string printed_report;
  for (auto& checked : runs) {
    const auto& j = checked.options;
    const auto same = agree_on_data(checked, log ? success() : status{log.failure()}, context);
    auto run = same ? prepare(j, std::move(checked.setup),
                              static_cast<std::uint32_t>(titled.size()), **log, options, context)
                    : result<prepared_run>{same.failure()};
    if (!run) {
      actors::run_result ended;
      ended.how = end_of(run.failure().kind);
      ended.message = run.message();
      code = report_end("", ended, context);
      if (!log) return code;
      break;
    }
    const auto data = std::exchange(checked.data, {}).training;
    if (const auto report = data ? data->report() : std::string{};
        context.leads() && report != printed_report) {
      printed_report = report;
      print("data: {}\n", printed_report);
    }
    if (context.leads()) print("{}\n", headline(j));
    for (const auto& note : run->notes) print("{}\n", note);
    interrupts.on_interrupt([session = run->session.get(), &interrupts, &j, &context] {
      if (!j.checkpoint.dir.empty() && context.leads() && interrupts.count() == 1)
        print_error(
            "rrfp-node: {}: interrupted: finishing the step and saving it; "
            "interrupt again to end at once\n",
            j.name);
      session->interrupt();
    });
    interrupts.on_report(
        [session = run->session.get()] { session->report("asked for by SIGUSR1"); });
    const auto result = run->session->run();
    interrupts.on_report(nullptr);
    interrupts.on_interrupt(nullptr);
    run->display->finish();
    (*log)->summary(j, result);
    if (!result.summary.choices.empty()) print("{}: {}\n", j.name, result.summary.choices);
    if (!result.trace_gaps.empty()) {
      trace_complete = false;
      print_error("rrfp-node: {}: --trace {} has {}\n", j.name, options.trace, result.trace_gaps);
    }
    titled.push_back({j.name, run->trace.get()});
    traces.push_back(std::move(run->trace));
    code = report_end(j.name + ": ", result, context);
    if (code != exit_done) break;
    unsaved |= result.summary.last_checkpoint_failed;
    finished.push_back({j, result.summary});
  }
  if (!context.leads()) return code;

  if (code == exit_done) code = compare_runs(finished);
  // Each failure was reported when it happened. Training is complete, but an output is lost.
  if (code == exit_done && (unsaved || !trace_complete)) code = exit_failed;
  if (!options.trace.empty()) {
    if (auto written = actors::write_chrome_json(options.trace, titled); !written) {
      print_error("rrfp-node: --trace {}\n", written.message());
      if (code == exit_done) code = exit_failed;
    } else {
      print("trace: {} (open it in ui.perfetto.dev)\n", options.trace);
    }
  }
  if (auto closed = (*log)->close(); !closed) {
    print_error("rrfp-node: {}\n", closed.message());
    if (code == exit_done) code = exit_failed;
  }
  return code;
}

}  // namespace rrfp::apps
