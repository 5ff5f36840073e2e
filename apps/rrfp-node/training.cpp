#include "training.hpp"

#include <cstdlib>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "../common/console.hpp"
#include "../common/program.hpp"
#include "endings.hpp"
#include "report_file.hpp"
#include "results.hpp"

#include <fcntl.h>

namespace rrfp::apps {

namespace {

/// The membership closes its descriptors; the next one needs them again.
int duplicate(int fd) { return fd < 0 ? fd : ::fcntl(fd, F_DUPFD_CLOEXEC, 0); }

int code_of(const actors::job_outcome& o) {
  return o.has_left ? exit_drained : exit_code_of(o.how);
}

std::string headline(const job::job& j) {
  const auto& p = j.pipeline;
  auto text = fmt::format("{}: {} {}, {} stages", j.name, name(j.dispatch.mode), j.dispatch.policy,
                          p.stages);
  if (p.tp > 1) text += fmt::format(" of {} ranks", p.tp);
  if (p.replicas > 1) text += fmt::format(", {} replicas", p.replicas);
  text += j.data.max_tokens != 0
              ? fmt::format(", microbatches of at most {} tokens", j.data.max_tokens)
              : fmt::format(", {} microbatches", p.microbatches);
  return text + fmt::format(", {} steps", j.train.steps);
}

/// Prints the results of all runs side by side. Different bits where equal ones are required are an
/// internal error: false.
bool compare_runs(const std::vector<finished_run>& runs) {
  print("\n{}", table_of(runs));
  for (const auto& r : runs) {
    const auto& first = runs[0];
    if (&r == &runs[0] || !must_agree(first.run, r.run)) continue;
    // Runs that resumed after different steps are not comparable: one has losses that the other
    // lacks, and the learning rate may have changed between them.
    if (r.summary.first_step != first.summary.first_step) {
      print("{} and {}: not compared, because they resumed after different steps\n", first.run.name,
            r.run.name);
      continue;
    }
    if (r.summary.weights_xxh64 == first.summary.weights_xxh64 &&
        r.summary.losses_xxh64 == first.summary.losses_xxh64 &&
        r.summary.eval_losses_xxh64 == first.summary.eval_losses_xxh64) {
      print("{} and {}: losses and weights are equal to the last bit\n", first.run.name,
            r.run.name);
    } else {
      complain("internal error: losses or weights of {} and {} differ; expected equal bits",
               first.run.name, r.run.name);
      return false;
    }
  }
  return true;
}

}  // namespace

training::training(const job::recovery_options& recovery, command_options options,
                   metrics::board& board, interrupt_watch& interrupts, node_seat seat)
    : recovery_(recovery),
      options_(std::move(options)),
      board_(board),
      interrupts_(interrupts),
      seat_(std::move(seat)) {}

training::~training() = default;

// ---- joining

void training::on_joining(std::function<void()> interrupt, bool handed_over) {
  said_ = {};
  interrupts_.let_drain(false);
  // Told to end when another was: this one leaves after that one is replaced.
  if (!handed_over) interrupts_.give_up_drain();
  interrupts_.on_interrupt(std::move(interrupt));
}

actors::membership_options training::options_of_join() {
  actors::membership_options options;
  options.listen_fd = duplicate(seat_.join.rendezvous_fd);
  options.key_fd = duplicate(seat_.join.key_fd);
  options.version = RRFP_VERSION;
  options.description = seat_.description;
  options.on_refused = [](const std::string& why) { complain("{}", why); };
  // The launcher names the lost node.
  if (!seat_.join.launched) options.on_gone_early = options.on_refused;
  return options;
}

void training::on_waiting(const std::string& text) {
  // Of a launcher's nodes, one speaks for all.
  if (text.empty() || (seat_.join.launched && seat_.node != node_id{0})) return;
  constexpr std::chrono::seconds between{3};
  constexpr std::chrono::minutes again{1};
  const auto now = std::chrono::steady_clock::now();
  const auto since_last = now - said_.at;
  if (since_last < between || (text == said_.text && since_last < again)) return;
  said_ = {text, now};
  complain("{}", text);
}

bool training::has_joined(bool well) {
  interrupts_.on_interrupt(nullptr);
  if (!well) interrupts_.give_up_drain();
  if (interrupts_.interrupted()) return false;
  interrupts_.let_drain(well && seat_.nodes > 1);
  return true;
}

void training::on_agreed(const actors::job_node& node, const recovery_point& from) {
  if (!node.leads() || !from.lost.empty()) return;
  for (const auto& m : node.members->members())
    print("node {} at {}: {}\n", m.node.value(), m.host, m.description);
}

int training::end(const job::job& j, const actors::job_outcome& o) {
  if (!o.is_not_joined) return code_of(o);
  if (o.is_late) {
    print("{}: the job is over\n", j.name);
  } else if (o.how != actors::ending::interrupted) {
    complain("{}{}", o.lost.empty() ? "" : o.lost + "; ", o.message);
  } else if (!seat_.join.launched || (seat_.node == node_id{0} && interrupts_.last() == SIGINT)) {
    // A launcher forwards the user's interrupts as SIGINT. With SIGTERM it ends the remaining nodes
    // after a failure, which it reports itself.
    complain("interrupted {}", o.lost.empty() ? "before the training began" : "after " + o.lost);
  }
  if (!o.is_late) end_held_run(o.how);
  return code_of(o);
}

// ---- a run

void training::set_callbacks(actors::session_setup& setup, const job::job& j, bool leads) {
  setup.on_step = [this, &j, leads](const actors::step_summary& s) {
    if (!leads) return;
    if (std::exchange(shares_, s.shares) != s.shares)
      display_->note(fmt::format(
          "{}: the replicas have run {} microbatches since step {}", j.name,
          s.shares.empty() ? "their own" : fmt::to_string(fmt::join(s.shares, ", ")), s.step));
    display_->step(s);
    log_->step(j, s);
  };
  setup.on_evaluation = [this, &j](const actors::evaluation_summary& e) {
    display_->evaluation(e);
    log_->evaluation(j, e);
  };
  setup.on_checkpoint = [this, &j](const actors::checkpoint_report& r) {
    if (r.failure.empty())
      display_->note(line_of(r));
    else
      complain("{}: {}", j.name, line_of(r));
    log_->checkpoint(j, r);
  };
  setup.on_copy_failed = [&j](const std::string& why) {
    complain("{}: no copies for recovery of this step: {}", j.name, why);
  };
  setup.on_straggler = [this, &j](const actors::straggler_report& r) {
    display_->note(fmt::format("{}: {}", j.name, line_of(r)));
    log_->straggler(j, r);
  };
}

void training::log_begin(const actors::begun_run& begun) {
  const auto& j = begun.run.options;
  const auto& start = begun.start;
  notes_.clear();
  if (begun.goes_on()) {
    const auto& r = begun.recoveries.back();
    const bool resumes = r.from_copies || start.setup.resume;
    notes_.push_back(
        fmt::format("{}: {} after step {} ({} steps repeated), {:.1f} s after the loss", j.name,
                    resumes ? "resumed" : "restarted", r.step, r.repeated_steps, r.held_s));
    for (const auto n : start.start.absent)
      notes_.push_back(
          fmt::format("{}: continues without node {}; other nodes compute its ranks until a "
                      "process takes its place",
                      j.name, n.value()));
    log_->recovery(j, r, begun.totals, start.start.absent);
  }
  if (start.setup.resume) {
    notes_.push_back(fmt::format("{}: {}", j.name, line_of(*start.setup.resume)));
    log_->resume(j, *start.setup.resume);
  }
}

status training::prepare(const actors::begun_run& begun, actors::session_setup& setup) {
  const auto& j = begun.run.options;
  const bool leads = begun.node.leads();
  if (auto opened = open_log(begun.node, begun.continues()); !opened) return opened;
  held_.reset();
  for (const auto& line : begun.start.notes) complain("{}", line);
  display_ = std::make_unique<progress>(j, begun.first_step());
  trace_ = options_.trace.empty() ? nullptr : std::make_unique<actors::trace_recorder>();
  if (trace_ != nullptr)
    for (const auto& r : begun.recoveries) trace_->add(r);
  setup.trace = trace_.get();
  set_callbacks(setup, j, leads);
  setup.board = &board_;
  if (options_.program->prepare) options_.program->prepare(j, setup);
  setup.on_report = [folder = options_.reports, node = seat_.node](const std::string& report) {
    write_hang_report(folder, node, report);
  };
  if (begun.node.members != nullptr && leads && !begun.goes_on())
    setup.on_connected = [](const std::string& line) { print("{}\n", line); };
  if (leads) log_begin(begun);
  return success();
}

void training::set_interrupts(const actors::begun_run& begun, actors::session& session) {
  const auto& j = begun.run.options;
  interrupts_.on_interrupt([this, &session, &j, leads = begun.node.leads()] {
    // The second signal: the others lose this node, and a launcher starts it again.
    if (interrupts_.is_draining())
      std::_Exit(seat_.join.launched ? exit_drained : exit_interrupted);
    if (!j.checkpoint.dir.empty() && leads && interrupts_.count() == 1)
      complain(
          "{}: interrupted: finishing the step and saving it; "
          "interrupt again to end at once",
          j.name);
    session.interrupt();
  });
  // A process that has just started knows only now how many losses there were.
  if (!begun.may_recover) {
    interrupts_.let_drain(false);
    interrupts_.give_up_drain();
  }
  interrupts_.on_drain([this, &session, &j] {
    complain(
        "{}: node {} drains: it leaves the job after a step, unless all nodes are told "
        "to end; a second signal ends it at once",
        j.name, seat_.node.value());
    session.drain();
  });
  interrupts_.on_report([&session] { session.report("requested by SIGUSR1"); });
}

actors::run_result training::train(const actors::begun_run& begun, actors::session& session) {
  if (begun.node.leads()) {
    const auto report = begun.run.model ? begun.run.model->report() : std::string{};
    if (report != printed_report_) print("data: {}\n", printed_report_ = report);
    if (!begun.goes_on()) print("{}\n", headline(begun.run.options));
    for (const auto& note : notes_) print("{}\n", note);
  }
  set_interrupts(begun, session);
  auto result = session.run();
  interrupts_.on_report(nullptr);
  interrupts_.on_drain(nullptr);
  interrupts_.on_interrupt(nullptr);
  display_->finish();
  return result;
}

bool training::reports(const actors::run_end& end) const {
  if (!seat_.join.launched || end.node.leads()) return true;
  if (end.result.how != actors::ending::node_lost || seat_.node != node_id{1}) return false;
  const auto lost = end.node.members->loss();
  return end.result.drained == node_id{0} || (lost && lost->node == node_id{0});
}

void training::on_run_end(const actors::run_end& end) {
  const auto& r = end.result;
  const auto* const j = end.run != nullptr ? &end.run->run.options : nullptr;
  const auto prefix = j != nullptr ? j->name + ": " : std::string{};
  switch (end.next) {
    case actors::aftermath::leaves:
      if (seat_.join.launched) return;
      return complain("{}drained after {} steps: another process may take its place", prefix,
                      end.steps);
    case actors::aftermath::fenced:
      return complain("{}{}; it ends, because another process may have its place", prefix,
                      r.message);
    case actors::aftermath::joins_again:
      if (reports(end))
        complain("{}{}; waiting up to {:g} s for all nodes (restart {} of {})", prefix, r.message,
                 recovery_.hold_s, end.totals.restarts, recovery_.max_restarts);
      // It goes on later, or in the process that takes the place of this one: its outputs, too.
      if (j != nullptr && end.node.leads()) held_.emplace(*j, r);
      return;
    case actors::aftermath::over:
      if (r.how != actors::ending::done && reports(end))
        complain("{}{}", prefix, cause_of(r, end.node.leads()));
      if (j != nullptr) add_run(*j, r);
  }
}

void training::add_run(const job::job& j, const actors::run_result& r) {
  log_->summary(j, r);
  if (!r.trace_gaps.empty()) {
    lacks_output_ = true;
    complain("{}: --trace {} has {}", j.name, options_.trace, r.trace_gaps);
  }
  titled_.push_back({j.name, trace_.get()});
  traces_.push_back(std::move(trace_));
  if (r.how != actors::ending::done) return;
  lacks_output_ |= r.summary.last_checkpoint_failed;
  finished_.push_back({j, r.summary});
}

void training::end_held_run(actors::ending how) {
  if (!held_) return;
  auto& [j, r] = *held_;
  r.how = how;
  add_run(j, r);
  write_outputs(how);
}

void training::take_over(const job::job& j, const actors::run_summary& summary,
                         const actors::job_node& node) {
  actors::run_result done;
  done.how = actors::ending::done;
  done.summary = summary;
  // Node 0 may have been lost before it wrote this line; twice is better than never.
  if (open_log(node, true)) log_->summary(j, done);
  finished_.push_back({j, summary});
}

// ---- the outputs

status training::open_log(const actors::job_node& node, bool continues) {
  if (log_ != nullptr && logs_ == node.leads()) return success();
  logs_ = node.leads();
  auto opened = json_log::open(logs_ ? options_.json : std::string{}, continues);
  if (!opened) return opened.failure();
  log_ = std::move(*opened);
  return success();
}

actors::ending training::write_outputs(actors::ending how) {
  using actors::ending;
  const auto miss = [&how] {
    if (how == ending::done) how = ending::failed;
  };
  if (how == ending::done && !compare_runs(finished_)) how = ending::failed;
  // Each failure was reported when it happened. Training is complete, but an output is lost.
  if (lacks_output_) miss();
  if (!options_.trace.empty()) {
    if (auto written = actors::write_chrome_json(options_.trace, titled_); !written) {
      complain("--trace {}", written.message());
      miss();
    } else {
      print("trace: {} (open it in ui.perfetto.dev)\n", options_.trace);
    }
  }
  if (log_ == nullptr) return how;
  if (auto closed = log_->close(); !closed) {
    complain("{}", closed.message());
    miss();
  }
  return how;
}

void training::on_finishing(std::function<void()> interrupt) {
  interrupts_.let_drain(false);
  interrupts_.on_interrupt(std::move(interrupt));
}

/// A kill from here on would look like a loss to whoever starts nodes again, so no time is spent on
/// destructors.
void training::at_the_end(const actors::job_outcome& outcome) { end_program(code_of(outcome)); }

}  // namespace rrfp::apps
