#include "training.hpp"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <rrfp/actors/job_checkpoint.hpp>
#include <rrfp/actors/job_cluster.hpp>
#include <rrfp/actors/job_session.hpp>
#include <rrfp/actors/recovery.hpp>
#include <rrfp/plan/node_places.hpp>
#include <rrfp/policies/registry.hpp>

#include "../common/console.hpp"
#include "../common/output_file.hpp"
#include "checkpoints.hpp"
#include "endings.hpp"
#include "framework.hpp"
#include "report_file.hpp"
#include "results.hpp"

namespace rrfp::apps {

namespace {

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
  const auto framework = make_framework();
  for (const auto& j : runs)
    if (auto found = framework->check_device(j); !found) return found.failure();
  std::vector<checked_run> checked;
  for (const auto& j : runs) {
    auto model = framework->open(j);
    if (!model) return model.failure();
    auto setup = actors::make_session_setup(j, policies::registry(), model->get());
    if (!setup) return setup.failure();
    // Checksums take long; they are verified when the run starts.
    if (setup->checkpoint)
      if (auto may = actors::choose_resume(j, *setup->checkpoint, checkpoint::verification::sizes);
          !may)
        return may.failure();
    if (auto places = plan::node_places::make(j, nodes); !places) return places.failure();
    checked.push_back({j, std::move(*model), std::move(*setup)});
  }
  return checked;
}

/// A run that is ready to start, with its outputs.
struct training::prepared_run {
  std::unique_ptr<actors::session> session;
  std::unique_ptr<progress> display;
  std::unique_ptr<actors::trace_recorder> trace;
  std::vector<std::string> notes;  ///< printed before the run starts
};

training::training(std::vector<checked_run> runs, training_options options,
                   interrupt_watch& interrupts)
    : runs_(std::move(runs)), options_(std::move(options)), interrupts_(interrupts) {}

training::~training() = default;

bool training::may_recover() const {
  return card_.totals.restarts < runs_.front().options.recovery.max_restarts;
}

result<actors::run_start> training::agree(const node_context& context) {
  card_.held = copies_->held();
  card_.record = copies_->record();
  if (lost_at_)
    card_.held_s =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - *lost_at_).count();
  std::vector<actors::run_offer> offers;
  for (const auto& run : runs_)
    offers.push_back(
        {run.options, run.setup, run.model ? run.model->fingerprint() : std::string{}});
  return actors::agree_on_start(context.members, offers, card_);
}

void training::set_callbacks(actors::session_setup& setup, const job::job& j, progress& display,
                             bool leads) {
  setup.on_step = [this, &j, &display, leads](const actors::step_summary& s) {
    if (s.purpose == compute::step_purpose::training) card_.steps = s.step;
    if (!leads) return;
    display.step(s);
    log_->step(j, s);
  };
  setup.on_evaluation = [this, &j, &display](const actors::evaluation_summary& e) {
    display.evaluation(e);
    log_->evaluation(j, e);
  };
  setup.on_checkpoint = [this, &j, &display](const actors::checkpoint_report& r) {
    if (r.failure.empty())
      display.note(line_of(r));
    else
      print_error("rrfp-node: {}: {}\n", j.name, line_of(r));
    log_->checkpoint(j, r);
  };
  setup.on_copy_failed = [&j](const std::string& why) {
    print_error("rrfp-node: {}: no copies for recovery of this step: {}\n", j.name, why);
  };
  setup.on_straggler = [this, &j, &display](const actors::straggler_report& r) {
    display.note(fmt::format("{}: {}", j.name, line_of(r)));
    log_->straggler(j, r);
  };
}

std::string training::note_recovery(const recovery_point& from, const job::job& j,
                                    std::uint64_t first, bool resumes) {
  const auto repeated = from.steps - std::min(from.steps, first);
  card_.totals = from.totals;
  card_.totals.repeated_steps += repeated;
  card_.totals.held_s += from.held_s;
  recoveries_.push_back({from.lost, first, from.has_copies(), repeated, from.held_s});
  return fmt::format("{}: {} after step {} ({} steps repeated), {:.1f} s after the loss", j.name,
                     from.has_copies() || resumes ? "resumed" : "restarted", first, repeated,
                     from.held_s);
}

result<training::prepared_run> training::prepare(const checked_run& checked,
                                                 const node_context& context,
                                                 actors::run_start start) {
  const auto& j = checked.options;
  const auto& from = start.from;
  auto& setup = start.setup;
  if (may_recover() || !from.lost.empty())
    setup.recovery = actors::recovery_setup{j.recovery.every, copies_, from};
  // Nodes that were all lost at once do not know of a loss.
  const bool continues =
      !from.lost.empty() || (setup.resume.has_value() && j.recovery.max_restarts > 0);
  if (const auto logged = open_log(context, continues); !logged) setup.ready = logged;
  for (const auto& line : start.notes) print_error("rrfp-node: {}\n", line);
  prepared_run run;
  const auto first = setup.first_step();
  run.display = std::make_unique<progress>(j, first);
  if (!options_.trace.empty()) run.trace = std::make_unique<actors::trace_recorder>();
  setup.trace = run.trace.get();
  set_callbacks(setup, j, *run.display, context.leads());
  setup.name = j.name;
  setup.board = options_.board;
  const auto node = context.members == nullptr ? node_id{0} : context.members->node();
  setup.on_report = [folder = options_.reports, node](const std::string& report) {
    write_hang_report(folder, node, report);
  };
  if (context.members != nullptr && context.leads() && from.lost.empty())
    setup.on_connected = [](const std::string& line) { print("{}\n", line); };
  if (!from.lost.empty()) {
    const auto line = note_recovery(from, j, first, setup.resume.has_value());
    if (context.leads()) {
      run.notes.push_back(line);
      log_->recovery(j, from, card_.totals, first);
    }
  }
  card_.began_after = from.began_after ? *from.began_after : first;
  if (run.trace != nullptr)
    for (const auto& r : recoveries_) run.trace->add(r);
  setup.losses = card_.totals;
  if (setup.resume && context.leads()) {
    run.notes.push_back(fmt::format("{}: {}", j.name, line_of(*setup.resume)));
    log_->resume(j, *setup.resume);
  }
  auto session = actors::open_session(j, std::move(setup), context,
                                      static_cast<std::uint32_t>(finished_.size()));
  if (!session) return session.failure();
  run.session = std::move(*session);
  return run;
}

int training::go_on(node_context context) {
  int code = exit_done;
  for (bool joined = true; joined || finished_.size() < runs_.size(); joined = false) {
    auto start = agree(context);
    if (!start) {
      code = fail(start.failure(), context);
      break;
    }
    context.start = start->start;
    if (joined && context.members != nullptr && context.leads() && start->from.lost.empty())
      for (const auto& node : context.members->members())
        print("node {} at {}: {}\n", node.node.value(), node.host, node.description);
    take_over(start->from, context);
    if (!start->from.has_copies()) copies_->clear();
    card_.lost.clear();
    if (finished_.size() == runs_.size()) break;
    auto& run = runs_[finished_.size()];
    code = train(run, context, *std::move(start));
    if (code != exit_done) break;
    run = {run.options, {}, {}};  // frees data and model
  }
  if (goes_on_elsewhere(code, context)) return code;
  return context.leads() && !std::exchange(written_, true) ? write_outputs(code) : code;
}

void training::take_over(const recovery_point& from, const node_context& context) {
  for (auto n = finished_.size(); n < from.finished.size(); ++n) {
    actors::run_result done;
    done.how = actors::ending::done;
    if (auto summary = actors::summary_of(from.finished[n])) done.summary = *summary;
    const auto& j = runs_[n].options;
    // Node 0 may have been lost before it wrote this line; twice is better than never.
    if (open_log(context, true)) log_->summary(j, done);
    finished_.push_back({j, std::move(done.summary)});
    finish_run(from.finished[n]);
  }
}

void training::finish_run(run_record summary) {
  card_.finish_run(std::move(summary));
  recoveries_.clear();
  copies_->clear();
}

status training::open_log(const node_context& context, bool continues) {
  if (log_ != nullptr) return success();
  auto opened = json_log::open(context.leads() ? options_.json : std::string{}, continues);
  if (!opened) return opened.failure();
  log_ = std::move(*opened);
  return success();
}

int training::lose(const std::string& why, const node_context& context) {
  return fail({why, error_kind::node_lost}, context);
}

int training::end_with(const actors::run_result& r, const std::string& prefix,
                       const node_context& context) {
  is_handed_over_ = r.drained.has_value();
  if (r.drained && *r.drained == context.members->node()) {
    if (!context.launched)
      print_error("rrfp-node: {}drained after {} steps: another process may take its place\n",
                  prefix, card_.steps);
    return exit_drained;
  }
  if (context.is_fenced()) {
    print_error("rrfp-node: {}{}; it ends, because another process may have its place\n", prefix,
                r.message);
    return exit_node_lost;
  }
  if (r.how == actors::ending::node_lost && context.members != nullptr && may_recover()) {
    if (card_.lost.empty()) lost_at_ = std::chrono::steady_clock::now();
    card_.lost = r.message;
    ++card_.totals.restarts;
    const auto& recovery = runs_.front().options.recovery;
    if (context.reports(r))
      print_error("rrfp-node: {}{}; waiting up to {:g} s for all nodes (restart {} of {})\n",
                  prefix, r.message, recovery.hold_s, card_.totals.restarts, recovery.max_restarts);
    return exit_node_lost;
  }
  if (r.how != actors::ending::done && context.reports(r))
    print_error("rrfp-node: {}{}\n", prefix, cause_of(r, context.leads()));
  return exit_code_of(r.how);
}

int training::fail(const error& why, const node_context& context) {
  actors::run_result ended;
  ended.how = end_of(why.kind);
  ended.message = why.message;
  return end_with(ended, "", context);
}

int training::train(const checked_run& checked, const node_context& context,
                    actors::run_start start) {
  const auto& j = checked.options;
  const bool is_new = start.from.lost.empty();
  auto run = prepare(checked, context, std::move(start));
  if (!run) return fail(run.failure(), context);
  if (const auto report = checked.model ? checked.model->report() : std::string{};
      context.leads() && report != printed_report_) {
    printed_report_ = report;
    print("data: {}\n", printed_report_);
  }
  if (context.leads() && is_new) print("{}\n", headline(j));
  for (const auto& note : run->notes) print("{}\n", note);
  interrupts_.on_interrupt([this, session = run->session.get(), &j, &context] {
    // The second signal: the others lose this node.
    if (interrupts_.is_draining()) std::_Exit(exit_interrupted);
    if (!j.checkpoint.dir.empty() && context.leads() && interrupts_.count() == 1)
      print_error(
          "rrfp-node: {}: interrupted: finishing the step and saving it; "
          "interrupt again to end at once\n",
          j.name);
    session->interrupt();
  });
  // A process that has just started knows only now how many losses there were.
  if (!may_recover()) {
    interrupts_.let_drain(false);
    interrupts_.give_up_drain();
  }
  interrupts_.on_drain([session = run->session.get(), &j, &context] {
    print_error(
        "rrfp-node: {}: node {} drains: it leaves the job after a step, unless all nodes are told "
        "to end; a second signal ends it at once\n",
        j.name, context.members->node().value());
    session->drain();
  });
  interrupts_.on_report(
      [session = run->session.get()] { session->report("requested by SIGUSR1"); });
  const auto result = run->session->run();
  interrupts_.on_report(nullptr);
  interrupts_.on_drain(nullptr);
  interrupts_.on_interrupt(nullptr);
  run->display->finish();
  const auto code = end_with(result, j.name + ": ", context);
  if (goes_on_elsewhere(code, context)) return code;
  log_->summary(j, result);
  if (!result.trace_gaps.empty()) {
    trace_complete_ = false;
    print_error("rrfp-node: {}: --trace {} has {}\n", j.name, options_.trace, result.trace_gaps);
  }
  titled_.push_back({j.name, run->trace.get()});
  traces_.push_back(std::move(run->trace));
  if (code != exit_done) return code;
  unsaved_ |= result.summary.last_checkpoint_failed;
  finished_.push_back({j, result.summary});
  finish_run(actors::to_record(result.summary));
  return code;
}

int training::write_outputs(int code) {
  if (code == exit_done) code = compare_runs(finished_);
  // Each failure was reported when it happened. Training is complete, but an output is lost.
  if (code == exit_done && (unsaved_ || !trace_complete_)) code = exit_failed;
  if (!options_.trace.empty()) {
    if (auto written = actors::write_chrome_json(options_.trace, titled_); !written) {
      print_error("rrfp-node: --trace {}\n", written.message());
      if (code == exit_done) code = exit_failed;
    } else {
      print("trace: {} (open it in ui.perfetto.dev)\n", options_.trace);
    }
  }
  if (log_ == nullptr) return code;
  if (auto closed = log_->close(); !closed) {
    print_error("rrfp-node: {}\n", closed.message());
    if (code == exit_done) code = exit_failed;
  }
  return code;
}

}  // namespace rrfp::apps
