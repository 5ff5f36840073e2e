#include "training.hpp"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <optional>

#include <fmt/format.h>

#include <rrfp/actors/job_cluster.hpp>
#include <rrfp/actors/job_session.hpp>
#include <rrfp/plan/node_places.hpp>

#include "../write_file.hpp"
#include "checkpoints.hpp"
#include "exit_code.hpp"
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

/// Nodes that read different files would train on a mixture of them.
status agree_on_data(const job::job& j, const data::source* opened, const node_seat& seat) {
  if (opened == nullptr || seat.members == nullptr) return success();
  const std::chrono::milliseconds limit{
      static_cast<std::int64_t>(j.transport.join_timeout_s * 1e3)};
  const auto all = seat.members->all_gather(data::fingerprint_text(*opened), limit);
  if (!all) return all.failure();
  if (auto same = data::check_same_data(*all); !same)
    return job::blame(j, data::key_of(j.data), same.message());
  return success();
}

/// Sets up the run; nothing has started yet.
result<prepared_run> prepare(const job::job& j, std::uint32_t number, json_log& log,
                             const training_options& options, const node_seat& seat) {
  auto data = actors::open_data(j);
  if (!data) return data.failure();
  if (auto same = agree_on_data(j, data->get(), seat); !same) return same.failure();
  prepared_run run{j, *data ? (*data)->report() : std::string{}, nullptr, nullptr, nullptr, {}};
  auto setup = actors::make_session_setup(j, std::move(*data));
  if (!setup) return setup.failure();
  if (auto ready = prepare_checkpoints(j, seat, *setup); !ready) return ready.failure();
  const auto first = setup->resume ? setup->resume->what.step : 0;
  run.shown = std::make_unique<progress>(stdout, j.run.progress, j.name, first, j.train.steps);
  if (!options.trace.empty()) run.trace = std::make_unique<actors::trace_recorder>();
  setup->trace = run.trace.get();
  if (seat.leads())
    setup->on_step = [&log, j, shown = run.shown.get()](const actors::step_summary& s) {
      shown->step(s);
      log.step(j, s);
    };
  setup->on_checkpoint = [&log, j, shown = run.shown.get()](const actors::checkpoint_report& r) {
    if (r.failure.empty())
      shown->note(line_of(r));
    else
      fmt::print(stderr, "rrfp-node: {}: {}\n", j.name, line_of(r));
    log.checkpoint(j, r);
  };
  setup->name = j.name;
  setup->board = options.board;
  const auto node = seat.members == nullptr ? node_id{0} : seat.members->node();
  setup->on_report = [folder = options.reports, node](const std::string& report) {
    leave_report(folder, node, report);
  };
  std::optional<actors::cluster> where;
  if (seat.members != nullptr) {
    auto places =
        plan::node_places::make(j, static_cast<std::uint32_t>(seat.members->members().size()));
    if (!places) return places.failure();
    where = actors::cluster{seat.members, std::move(*places), j.transport, seat.job_token, number};
    if (seat.leads())
      setup->on_connected = [](const std::string& line) { fmt::print("{}\n", line); };
  }
  if (setup->resume && seat.leads()) {
    run.notes.push_back(fmt::format("{}: {}", j.name, line_of(*setup->resume)));
    log.resume(j, *setup->resume);
  }
  auto session = actors::session::open(std::move(*setup), std::move(where));
  if (seat.members != nullptr) {
    const auto mine = session ? success() : status{session.failure()};
    if (auto all = actors::agree_to_start(*seat.members, mine); !all)
      return error{seat.launched && !seat.leads() ? std::string{} : all.message()};
    if (auto all = (*session)->check_restored(); !all)
      return error{seat.launched && !seat.leads() ? std::string{} : all.message()};
  }
  if (!session) return session.failure();
  run.session = std::move(*session);
  return run;
}

std::string headline(const job::job& j) {
  const auto& p = j.pipeline;
  auto text = fmt::format("{}: {} {}, {} stages", j.name, name(j.dispatch.mode), j.dispatch.policy,
                          p.stages);
  if (p.tp > 1) text += fmt::format(" of {} ranks", p.tp);
  if (p.replicas > 1) text += fmt::format(", {} replicas", p.replicas);
  return text + fmt::format(", {} microbatches, {} steps", p.microbatches, j.train.steps);
}

int exit_code_of(const actors::run_result& r) {
  switch (r.how) {
    case actors::ending::done: return exit_done;
    case actors::ending::interrupted: return exit_interrupted;
    case actors::ending::bad_input: return exit_bad_input;
    case actors::ending::failed: return exit_own_fault;
    case actors::ending::node_lost: return exit_node_lost;
  }
  return exit_own_fault;
}

/// The result of all runs side by side; a difference that may not be is the product's own fault.
int conclude(const std::vector<finished_run>& runs) {
  fmt::print("\n{}", table_of(runs));
  for (const auto& r : runs) {
    const auto& first = runs[0];
    if (&r == &runs[0] || !must_agree(first.run, r.run)) continue;
    // Of runs that went on from different steps, one has losses that the other did not see, and the
    // learning rate may have been changed between them.
    if (r.summary.first_step != first.summary.first_step) continue;
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
  if (auto can = replaceable(path); !can) return error{option + " " + can.message()};
  const auto beside = path + ".tmp";
  std::FILE* const file = std::fopen(beside.c_str(), "w");
  if (file == nullptr)
    return error{fmt::format("{} {}: cannot create: {}", option, path, std::strerror(errno))};
  std::fclose(file);
  std::remove(beside.c_str());
  return success();
}

}  // namespace

status check_training(const std::vector<job::job>& runs, const training_options& options,
                      std::uint32_t nodes) {
  if (auto can = writable("--trace", options.trace); !can) return can;
  for (const auto& j : runs)
    if (auto there = actors::check_device(j); !there) return there;
  for (const auto& j : runs) {
    auto data = actors::open_data(j);
    if (!data) return data.failure();
    auto setup = actors::make_session_setup(j, std::move(*data));
    if (!setup) return setup.failure();
    // Their bytes are looked through when the run starts; that takes its time.
    if (setup->checkpoint)
      if (auto may = actors::choose_resume(j, *setup->checkpoint, checkpoint::scrutiny::sizes);
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
  if (!log) return refuse(log.message());
  std::vector<finished_run> finished;
  std::vector<std::unique_ptr<actors::trace_recorder>> traces;
  std::vector<actors::titled_trace> titled;
  int code = exit_done;
  bool unsaved = false;
  bool trace_whole = true;
  std::string told_of_data;
  for (const auto& j : runs) {
    auto run = prepare(j, static_cast<std::uint32_t>(titled.size()), **log, options, seat);
    if (!run) {
      const auto lost = seat.members == nullptr ? std::string{} : seat.members->loss();
      if (lost.empty()) return run.message().empty() ? exit_bad_input : refuse(run.message());
      if (seat.tells(lost)) fmt::print(stderr, "rrfp-node: {}: {}\n", j.name, lost);
      return exit_node_lost;
    }
    if (seat.leads() && run->data_report != told_of_data) {
      told_of_data = run->data_report;
      fmt::print("data: {}\n", told_of_data);
    }
    if (seat.leads()) fmt::print("{}\n", headline(j));
    for (const auto& note : run->notes) fmt::print("{}\n", note);
    std::fflush(stdout);
    interrupts.on_interrupt([session = run->session.get(), &interrupts, &j, &seat] {
      if (!j.checkpoint.dir.empty() && seat.leads() && interrupts.count() == 1)
        fmt::print(stderr,
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
    if (!result.trace_lacks.empty()) {
      trace_whole = false;
      fmt::print(stderr, "rrfp-node: {}: --trace {} has {}\n", j.name, options.trace,
                 result.trace_lacks);
    }
    titled.push_back({j.name, run->trace.get()});
    traces.push_back(std::move(run->trace));
    code = exit_code_of(result);
    const bool told =
        result.how == actors::ending::failed || result.how == actors::ending::node_lost;
    if (told && seat.tells(result.message))
      fmt::print(stderr, "rrfp-node: {}: {}\n", j.name, result.message);
    if (result.how == actors::ending::interrupted && seat.leads())
      fmt::print("{}: interrupted after {} steps\n", j.name,
                 result.summary.first_step + result.summary.steps);
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
