#include "training.hpp"

#include <optional>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include <rrfp/actors/job_cluster.hpp>
#include <rrfp/actors/job_session.hpp>
#include <rrfp/plan/node_places.hpp>

#include "../common/console.hpp"
#include "../common/output_file.hpp"
#include "checkpoints.hpp"
#include "endings.hpp"
#include "progress.hpp"
#include "refuse.hpp"
#include "report_file.hpp"
#include "results.hpp"

namespace rrfp::apps {

namespace {

/// One run of the job as the outputs need it.
struct prepared_run {
  job::job what;
  /// What was read and left out of the data; empty: nothing to say.
  std::string data_report;
  std::unique_ptr<actors::session> session;
  std::unique_ptr<progress> shown;
  std::unique_ptr<actors::trace_recorder> trace;
  std::vector<std::string> notes;  ///< to be told before it starts
};

using actors::end_cause;
using prepared = std::variant<prepared_run, end_cause>;

/// What of the run depends on files of this machine.
struct opened_input {
  actors::session_setup setup;
  std::string data_report;
  std::string data_fingerprint;
};

result<opened_input> open_input(const job::job& j) {
  auto data = actors::open_data(j);
  if (!data) return data.failure();
  opened_input input;
  if (*data) {
    input.data_report = (*data)->report();
    input.data_fingerprint = data::fingerprint_text(**data);
  }
  auto setup = actors::make_session_setup(j, std::move(*data));
  if (!setup) return setup.failure();
  input.setup = std::move(*setup);
  return input;
}

/// Nodes that read different files would train on a mixture of them.
std::optional<end_cause> agree_on_input(const job::job& j, const result<opened_input>& mine,
                                        const node_seat& seat) {
  if (seat.members == nullptr) {
    if (mine) return std::nullopt;
    return end_cause{actors::ending::bad_input, mine.message()};
  }
  const auto all = actors::agree(
      *seat.members, mine ? result<std::string>{mine->data_fingerprint} : mine.failure());
  if (const auto* cause = std::get_if<end_cause>(&all)) return *cause;
  const auto& fingerprints = std::get<0>(all);
  if (fingerprints[0].empty()) return std::nullopt;  // there is no data
  if (auto same = data::check_same_data(fingerprints); !same)
    return end_cause{actors::ending::bad_input,
                     job::blame(j, data::key_of(j.data), same.message()).message};
  return std::nullopt;
}

/// Sets up the run; nothing has started yet. The end is the same on all nodes.
prepared prepare(const job::job& j, std::uint32_t number,
                 const result<std::unique_ptr<json_log>>& opened_log,
                 const training_options& options, const node_seat& seat) {
  auto input = opened_log ? open_input(j) : opened_log.failure();
  if (auto cause = agree_on_input(j, input, seat)) return *std::move(cause);
  auto& log = **opened_log;
  prepared_run run{j, std::move(input->data_report), nullptr, nullptr, nullptr, {}};
  auto& setup = input->setup;
  if (auto cause = prepare_checkpoints(j, seat, setup)) return *std::move(cause);
  const auto first = setup.resume ? setup.resume->contents.step : 0;
  run.shown = std::make_unique<progress>(j.run.progress, j.name, first, j.train.steps);
  if (!options.trace.empty()) run.trace = std::make_unique<actors::trace_recorder>();
  setup.trace = run.trace.get();
  if (seat.leads())
    setup.on_step = [&log, j, shown = run.shown.get()](const actors::step_summary& s) {
      shown->step(s);
      log.step(j, s);
    };
  setup.on_checkpoint = [&log, j, shown = run.shown.get()](const actors::checkpoint_report& r) {
    if (r.failure.empty())
      shown->note(line_of(r));
    else
      print_error("rrfp-node: {}: {}\n", j.name, line_of(r));
    log.checkpoint(j, r);
  };
  setup.name = j.name;
  setup.board = options.board;
  const auto node = seat.members == nullptr ? node_id{0} : seat.members->node();
  setup.on_report = [folder = options.reports, node](const std::string& report) {
    leave_report(folder, node, report);
  };
  std::optional<actors::cluster> where;
  if (seat.members != nullptr) {
    auto places =
        plan::node_places::make(j, static_cast<std::uint32_t>(seat.members->members().size()));
    if (!places)
      return end_cause{actors::ending::bad_input, misplaced(j, places.message()).message};
    where = actors::cluster{seat.members, std::move(*places), j.transport, seat.job_token, number};
    if (seat.leads()) setup.on_connected = [](const std::string& line) { print("{}\n", line); };
  }
  if (setup.resume && seat.leads()) {
    run.notes.push_back(fmt::format("{}: {}", j.name, line_of(*setup.resume)));
    log.resume(j, *setup.resume);
  }
  auto session = actors::session::open(std::move(setup), std::move(where));
  if (seat.members != nullptr) {
    const auto all = actors::agree(
        *seat.members, session ? result<std::string>{std::string{}} : session.failure());
    if (const auto* cause = std::get_if<end_cause>(&all)) return *cause;
    if (auto restored = (*session)->check_restored(); !restored)
      return end_cause{seat.members->loss().empty() ? actors::ending::bad_input
                                                    : actors::ending::node_lost,
                       restored.message()};
  } else if (!session) {
    return end_cause{actors::ending::bad_input, session.message()};
  }
  run.session = std::move(*session);
  return run;
}

/// Every run that does not end well is told here, by one of the nodes that one command started.
/// Returns its exit code.
int tell_cause(const std::string& who, const actors::run_result& r, const node_seat& seat) {
  if (r.how != actors::ending::done && seat.tells(r.how, r.message))
    print_error("rrfp-node: {}{}\n", who, cause_of(r, seat.leads()));
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

/// The result of all runs side by side; a difference that may not be is the product's own fault.
int conclude(const std::vector<finished_run>& runs) {
  print("\n{}", table_of(runs));
  for (const auto& r : runs) {
    const auto& first = runs[0];
    if (&r == &runs[0] || !must_agree(first.run, r.run)) continue;
    // Of runs that went on from different steps, one has losses that the other did not see, and the
    // learning rate may have been changed between them.
    if (r.summary.first_step != first.summary.first_step) continue;
    if (r.summary.weights_xxh64 == first.summary.weights_xxh64 &&
        r.summary.losses_xxh64 == first.summary.losses_xxh64) {
      print("{} and {}: losses and weights are equal to the last bit\n", first.run.name,
            r.run.name);
    } else {
      print_error("rrfp-node: {} and {} must agree to the last bit and do not\n", first.run.name,
                  r.run.name);
      return exit_own_fault;
    }
  }
  return exit_done;
}

}  // namespace

status check_training(const std::vector<job::job>& runs, const training_options& options,
                      std::uint32_t nodes) {
  if (auto can = check_output("--trace", options.trace); !can) return can;
  for (const auto& j : runs)
    if (auto there = actors::check_device(j); !there) return there;
  for (const auto& j : runs) {
    auto data = actors::open_data(j);
    if (!data) return data.failure();
    auto setup = actors::make_session_setup(j, std::move(*data));
    if (!setup) return setup.failure();
    // Their bytes are looked through when the run starts; that takes its time.
    if (setup->checkpoint)
      if (auto may = actors::choose_resume(j, *setup->checkpoint, checkpoint::verification::sizes);
          !may)
        return may.failure();
    if (auto places = plan::node_places::make(j, nodes); !places)
      return misplaced(j, places.message());
  }
  return success();
}

int train(const std::vector<job::job>& runs, const training_options& options,
          interrupt_watch& interrupts, const node_seat& seat) {
  auto log = json_log::open(seat.leads() ? options.json : std::string{});
  std::vector<finished_run> finished;
  std::vector<std::unique_ptr<actors::trace_recorder>> traces;
  std::vector<actors::titled_trace> titled;
  int code = exit_done;
  bool unsaved = false;
  bool trace_whole = true;
  std::string told_of_data;
  for (const auto& j : runs) {
    auto made = prepare(j, static_cast<std::uint32_t>(titled.size()), log, options, seat);
    if (const auto* cause = std::get_if<end_cause>(&made)) {
      actors::run_result nothing;
      nothing.how = cause->how;
      nothing.message = cause->message;
      return tell_cause("", nothing, seat);
    }
    auto* const run = &std::get<prepared_run>(made);
    if (seat.leads() && run->data_report != told_of_data) {
      told_of_data = run->data_report;
      print("data: {}\n", told_of_data);
    }
    if (seat.leads()) print("{}\n", headline(j));
    for (const auto& note : run->notes) print("{}\n", note);
    interrupts.on_interrupt([session = run->session.get(), &interrupts, &j, &seat] {
      if (!j.checkpoint.dir.empty() && seat.leads() && interrupts.count() == 1)
        print_error(
            "rrfp-node: {}: interrupted: saves what is not saved yet and ends; a second "
            "interrupt ends it at once\n",
            j.name);
      session->interrupt();
    });
    interrupts.on_report(
        [session = run->session.get()] { session->report("asked for by SIGUSR1"); });
    const auto result = run->session->run();
    interrupts.on_report(nullptr);
    interrupts.on_interrupt(nullptr);
    run->shown->finish();
    (*log)->summary(j, result);
    if (!result.trace_gaps.empty()) {
      trace_whole = false;
      print_error("rrfp-node: {}: --trace {} has {}\n", j.name, options.trace, result.trace_gaps);
    }
    titled.push_back({j.name, run->trace.get()});
    traces.push_back(std::move(run->trace));
    code = tell_cause(j.name + ": ", result, seat);
    if (code != exit_done) break;
    unsaved |= result.summary.last_checkpoint_failed;
    finished.push_back({j, result.summary});
  }
  if (!seat.leads()) return code;

  if (code == exit_done) code = conclude(finished);
  // Each was told when it failed. The training is done, and its last state is lost.
  if (code == exit_done && (unsaved || !trace_whole)) code = exit_own_fault;
  if (!options.trace.empty()) {
    if (auto written = actors::write_chrome_json(options.trace, titled); !written) {
      print_error("rrfp-node: --trace {}\n", written.message());
      if (code == exit_done) code = exit_own_fault;
    } else {
      print("trace: {} (open it in ui.perfetto.dev)\n", options.trace);
    }
  }
  if (auto closed = (*log)->close(); !closed) {
    print_error("rrfp-node: {}\n", closed.message());
    if (code == exit_done) code = exit_own_fault;
  }
  return code;
}

}  // namespace rrfp::apps
