#include "process.hpp"

#include <algorithm>

#include <rrfp/base/codec.hpp>
#include <rrfp/core/connections.hpp>

#include "cluster.hpp"

namespace rrfp::cluster {

namespace {

constexpr nanoseconds join_timeout = 60 * s;
constexpr nanoseconds join_pause = 100 * ms;
constexpr nanoseconds finish_limit = 10 * s;
constexpr nanoseconds outputs_limit = 600 * s;
constexpr nanoseconds leave_limit = 5 * s;

/// The process of an absent node, for the checkers.
constexpr std::uint32_t nobody = ~0U;

constexpr char success_mark = '+';

char mark_of(error_kind kind) { return static_cast<char>('0' + static_cast<int>(kind)); }

/// What a node tells node 0 before a run.
struct node_contribution {
  std::uint32_t process = 0;  ///< for the checkers
  recovery_report recovery;
};
auto fields(auto f, node_contribution& x) { return f(x.process, x.recovery); }

/// What node 0 answers.
struct node_start {
  std::uint64_t token = 0;
  recovery_point from;
  std::optional<std::uint64_t> resume;  ///< the step of a checkpoint
  std::vector<node_id> absent;
};
auto fields(auto f, node_start& x) { return f(x.token, x.from, x.resume, x.absent); }

}  // namespace

process::process(simulation& in, std::uint32_t id, identity who)
    : sim_(in),
      id_(id),
      who_(who),
      // A launcher's nodes are not fenced.
      fence_{membership_core::process_id{in.w.c.restarts == restart_kind::loop ? id + 1 : 0},
             {},
             {},
             false,
             false},
      life_line_(in.w, in.paths, who.node, false),
      random_(in.w.c.seed, mix(6, id)) {}

process::~process() { *lives_ = false; }

std::string process::name() const {
  return "node " + std::to_string(who_.node) + " (process " + std::to_string(id_) + ")";
}

std::optional<std::uint64_t> process::whole_membership() const {
  if (!is_alive() || !member_ || !member_->is_whole()) return std::nullopt;
  return memberships_;
}

world& process::w() const { return sim_.w; }
const scenario& process::c() const { return sim_.w.c; }
nanoseconds process::local_now() const { return sim_.clock_of(who_.node); }

void process::note(const std::string& line) const {
  if (w().traces()) w().note(name() + ": " + line);
}

std::string process::waits_for() const {
  if (suspended_until_ > w().now()) return "the end of its pause";
  if (disk_work_ > 0) return "the disk";
  if (!member_) return "its next attempt to join";
  if (code_when_left_) return "the others, to leave";
  if (!has_joined_) return "its join: " + member_->waiting();
  if (waits_for_outputs_) return "the agreement on the end";
  if (exchanged_) return "an agreement of all nodes";
  if (!session_ || !has_met_) return "the begin of a run";
  if (ended_) return "its session, to close";
  return "the run, after step " + std::to_string(report_.steps);
}

void process::later(nanoseconds after, std::function<void()> work) {
  w().call(after, [this, lives = lives_, work = std::move(work)]() mutable {
    if (!*lives) return;
    const auto wait = suspended_until_ - w().now();
    if (wait > 0) return later(wait, std::move(work));
    work();
  });
}

// ---- from outside

void process::begin() {
  note("starts");
  rest_life_line();
  join();
}

void process::rest_life_line() {
  life_line_.listen([this] {
    later(0, [this] {
      if (member_ && member_->serves_life_line()) return;
      while (const auto one = life_line_.accept()) one->close(1);
    });
  });
}

bool process::is_seen_gone(std::uint32_t from, nanoseconds limit) const {
  if (!life_line_.is_reached(from, limit)) return false;
  if (is_alive()) return suspended_until_ - w().now() > limit;
  return !sim_.paths.is_dark(node());
}

void process::kill(bool silently) {
  if (!is_alive()) return;
  note("is killed");
  was_killed_ = true;
  *lives_ = false;
  life_line_.stop_listening();
  if (session_) session_->vanish();
  if (member_) member_->vanish(silently);
  sim_.on_process_end(*this);
}

void process::suspend(nanoseconds until) { suspended_until_ = std::max(suspended_until_, until); }

void process::reset_control() {
  if (member_) member_->reset_connections();
}

void process::interrupt() {
  if (!is_alive()) return;
  if (is_draining_) return exit(exit_interrupted, "a second signal");
  ++interrupts_;
  note("is interrupted");
  later(random_.between(0, 200 * us), [this] {
    if (!has_joined_) return end_interrupted();
    if (waits_for_outputs_) return member_->interrupt();
    if (has_met_ && !ended_) session_->interrupt(interrupts_ > 1);
  });
}

void process::drain() {
  // At the end it stays for nodes that are lost then, unless it is interrupted.
  if (!is_alive() || waits_for_outputs_ || fence_.is_over) return;
  was_told_to_end_ = true;
  if (c().max_restarts == 0 || !has_joined_) return interrupt();
  note("is told to end");
  if (std::exchange(is_draining_, true)) return exit(exit_interrupted, "a second signal");
  later(random_.between(0, 200 * us), [this] {
    if (has_met_ && !ended_ && is_draining_) session_->drain();
  });
}

void process::give_up_drain() {
  if (std::exchange(is_draining_, false)) ++interrupts_;
}

/// While it joins.
void process::end_interrupted() {
  if (member_) member_->end(name() + " gave up: interrupted while joining");
  exit(exit_interrupted, report_.lost.empty() ? "interrupted before the training began"
                                              : "interrupted after " + report_.lost);
}

void process::ask_report() {
  if (is_alive() && has_met_ && !ended_) session_->ask_report();
}

void process::exit(int code, const std::string& words) {
  if (!is_alive()) return;
  note("ends with " + std::to_string(code) + ": " + words);
  RRFP_EXPECT(code == exit_done || !words.empty(), name() + " does not say why it ends");
  code_ = code;
  last_words_ = words;
  *lives_ = false;
  life_line_.stop_listening();
  if (session_) session_->vanish();
  if (member_) member_->end();
  sim_.on_process_end(*this);
}

// ---- one membership

void process::join() {
  const bool is_new = report_.lost.empty();
  const auto limit = is_new ? join_timeout : c().hold;
  join_until_ = (is_new ? local_now() : *lost_at_) + limit;
  try_to_join(limit);
}

void process::try_to_join(nanoseconds limit) {
  const auto number = ++memberships_;
  has_joined_ = false;
  join_began_ = sim_.w.now();
  if (!is_handed_over_) give_up_drain();
  if (interrupts_ > 0) return end_interrupted();
  member::reports to;
  to.joined = [this] {
    has_joined_ = true;
    later(random_.between(0, 200 * us), [this] { on_joined(); });
  };
  to.join_failed = [this, number](const membership_core::action::join_failed& f) {
    later(0, [this, number, f] {
      if (number != memberships_) return;
      if (f.elsewhere) fence_.choice.note_failed_join();
      give_up_joining(f.why, f.for_now ? error_kind::node_lost : error_kind::bad_input);
    });
  };
  to.exchanged = [this, number](result<texts> got) {
    later(random_.between(0, 200 * us), [this, number, got = std::move(got)] {
      if (number == memberships_ && exchanged_) on_exchanged(got);
    });
  };
  to.left = [this, number] {
    later(0, [this, number] {
      if (number == memberships_ && code_when_left_) end_membership(*code_when_left_);
    });
  };
  const auto& choice = fence_.choice;
  const auto& leader = choice.next();
  member_ = std::make_unique<member>(
      *this, leader ? sim_.process_at(leader->port - 1u).life_line() : sim_.meeting, std::move(to),
      who_.version, who_.key);
  if (leads() && choice.has_others()) limit = std::min(limit, member_->patience());
  member_->begin();
  later(limit, [this, number] {
    if (number != memberships_ || has_joined_) return;
    fence_.choice.note_failed_join();
    give_up_joining("the nodes did not join in time: " + member_->waiting(), error_kind::node_lost);
  });
}

/// Others have told it that the job is over; node 0 tells it to those that come.
void process::end_told() {
  note("is told that the job is over");
  sim_.checks.on_outputs_known();
  report_.lost.clear();
  if (!leads()) return end_membership(exit_done);
  code_when_left_ = exit_done;
  later(c().hold, [this, number = memberships_] {
    if (number == memberships_ && code_when_left_) end_membership(*code_when_left_);
  });
}

void process::give_up_joining(const std::string& why, error_kind kind) {
  if (fence_.is_over) return end_told();
  member_->end(name() + " gave up: " + why);
  give_up_drain();
  if (interrupts_ > 0) return end_interrupted();
  if (c().max_restarts > 0 && kind == error_kind::node_lost && !fence_.is_lost() &&
      local_now() < join_until_) {
    note("joins again: " + why);
    left_.push_back(std::move(member_));
    ++memberships_;
    if (fence_.awake_at) *fence_.awake_at += join_pause;
    return later(join_pause,
                 [this] { try_to_join(std::max(join_until_ - local_now(), join_pause)); });
  }
  exit(exit_code_of(kind), report_.lost.empty() ? why : report_.lost + "; " + why);
}

void process::exchange(std::string bytes, nanoseconds limit,
                       std::function<texts(const texts&)> answer, receiver then, bool last) {
  RRFP_EXPECT(!exchanged_, name() + ": only one exchange may run at a time");
  answer_ = std::move(answer);
  exchanged_ = std::move(then);
  member_->exchange(std::move(bytes), limit, last);
}

void process::on_exchanged(result<texts> got) {
  const auto then = std::exchange(exchanged_, nullptr);
  if (!got) return then(got.failure());
  if (!leads()) return then(got->front());
  const auto answers = answer_(*got);
  member_->answer(answers);
  then(answers.size() == 1 ? answers.front() : answers[node()]);
}

void process::agree(const result<std::string>& mine, answering answer, receiver then) {
  const auto marked = [](const result<std::string>& r) {
    return r ? success_mark + *r : mark_of(r.failure().kind) + r.message();
  };
  const auto unmarked = [](std::string text) -> result<std::string> {
    const char mark = text.empty() ? '\0' : text.front();
    if (!text.empty()) text.erase(0, 1);
    if (mark == success_mark) return text;
    RRFP_EXPECT(mark >= '0' && mark <= '3', "protocol error: a node answered another round");
    return error{std::move(text), static_cast<error_kind>(mark - '0')};
  };
  const auto answers_to = [this, unmarked,
                           answer = std::move(answer)](const texts& got) -> result<texts> {
    texts all;
    for (std::size_t n = 0; n < got.size(); ++n) {
      if (member_->members()[n].is_absent) {
        all.emplace_back();
        continue;
      }
      const auto one = unmarked(got[n]);
      if (!one) {
        if (const auto& lost = member_->loss()) return error{lost->message, error_kind::node_lost};
        return error{"node " + std::to_string(n) + ": " + one.message(), one.failure().kind};
      }
      all.push_back(*one);
    }
    return answer(all);
  };
  exchange(
      marked(mine), join_timeout,
      [answers_to, marked](const texts& got) {
        auto answers = answers_to(got);
        if (!answers) return texts{marked(answers.failure())};
        for (auto& one : *answers) one = marked(one);
        return *answers;
      },
      [unmarked, then = std::move(then)](const result<std::string>& got) {
        then(got ? unmarked(*got) : got);
      });
}

void process::agree(const result<std::string>& mine, receiver then) {
  agree(
      mine, [](const texts&) { return texts(1); }, std::move(then));
}

void process::on_joined() {
  if (interrupts_ > 0) return end_interrupted();
  agree_on_start(true);
}

void process::agree_on_start(bool has_joined) {
  report_.held = copies_.set.held();
  report_.record = copies_.set.record();
  if (lost_at_) report_.held_s = static_cast<double>(local_now() - *lost_at_) / s;
  agree(
      encoded(node_contribution{id_, report_}),
      [this](const texts& reports) { return begin_with(reports); },
      [this, has_joined](const result<std::string>& mine) {
        if (!mine) return finish_run({end_of(mine.failure().kind), mine.message(), {}});
        auto start = decoded<node_start>(*mine);
        RRFP_EXPECT(start, name() + " got a start that does not decode");
        token_ = start->token;
        if (has_joined) sim_.on_joined(*this, join_began_);
        absent_ = std::move(start->absent);
        go_on(std::move(start->from), start->resume);
      });
}

/// On the leader: what each node begins, from the reports of all.
result<process::texts> process::begin_with(const texts& all) {
  std::vector<recovery_report> reports;
  std::vector<std::uint32_t> processes;
  const auto absent = member_->absent();
  for (const auto& bytes : all) {
    auto report = bytes.empty() ? node_contribution{nobody, {}} : decoded<node_contribution>(bytes);
    RRFP_EXPECT(report, name() + " got a report that does not decode");
    processes.push_back(report->process);
    reports.push_back(std::move(report->recovery));
  }
  const std::vector<std::uint32_t> ranks(c().runs, c().stage_ranks());
  const auto point = choose_recovery_point(reports, ranks);
  sim_.checks.on_point(*this, processes, reports, point);
  std::optional<std::uint64_t> resume;
  if (c().saves && !point.has_copies())
    if (const auto newest = sim_.disk.find_newest()) resume = newest->step;
  const auto token = random_.next();
  texts answers;
  const auto places = c().places(absent);
  for (auto& part : parts_of(point, c().nodes, leader(), [&](stage_id stage, rank_id rank) {
         std::vector<node_id> nodes;
         for (std::uint32_t d = 0; d < c().replicas; ++d)
           nodes.push_back(
               places[d * c().stage_ranks() + stage.value() * c().ranks + rank.value()]);
         return nodes;
       }))
    answers.push_back(encoded(node_start{token, std::move(part), resume, absent}));
  return answers;
}

void process::wait_for_outputs() {
  waits_for_outputs_ = true;
  exchange(
      {}, outputs_limit, [](const texts&) { return texts(1); },
      [this](const result<std::string>& agreed) { on_finished(agreed); }, c().max_restarts > 0);
}

void process::on_finished(const result<std::string>& agreed) {
  const auto& lost = member_->loss();
  const bool lasts = c().max_restarts > 0;
  // A node may be lost before node 0 has answered.
  if (lasts && agreed && !fence_.is_over && !lost && interrupts_ == 0)
    return later(1 * ms, [this, agreed, number = memberships_] {
      if (number == memberships_) on_finished(agreed);
    });
  waits_for_outputs_ = false;
  const bool is_over = lasts ? fence_.is_over : agreed && !lost;
  if (is_over && interrupts_ == 0) sim_.checks.on_outputs_known();
  const auto code = !is_over && lost ? lose(lost->message) : exit_done;
  if (code == exit_node_lost) return end_membership(code);
  leave(code, fence_.is_over ? c().hold : leave_limit);
}

void process::leave(int code, nanoseconds limit) {
  code_when_left_ = code;
  member_->leave();
  later(limit, [this, number = memberships_] {
    if (number == memberships_ && code_when_left_) end_membership(*code_when_left_);
  });
}

void process::end_membership(int code) {
  code_when_left_.reset();
  exchanged_ = nullptr;
  member_->end();
  left_.push_back(std::move(member_));
  ++memberships_;
  later(random_.between(0, linger_max), [this, code] {
    if (report_.lost.empty()) return exit(code, last_words_);
    join();
  });
}

// ---- the runs

int process::lose(const std::string& why) { return end_with({job_end::node_lost, why, {}}); }

int process::end_with(const run_end& how) {
  is_handed_over_ = how.drained.has_value();
  if (is_handed_over_ && how.drained->value() == node()) {
    last_words_ = "has left the job";
    return exit_drained;
  }
  if (how.how == job_end::node_lost && !is_handed_over_) sim_.checks.on_loss(*this, how.message);
  if (how.how == job_end::node_lost && !fence_.is_lost() && may_recover()) {
    if (report_.lost.empty()) lost_at_ = local_now();
    report_.lost = how.message;
    RRFP_EXPECT(!how.message.empty(), name() + " lost a node without a reason");
    ++report_.totals.restarts;
    note(how.message + "; waiting for all nodes");
    return exit_node_lost;
  }
  last_words_ = how.how == job_end::interrupted ? "interrupted" : how.message;
  const auto kind = kind_of(how.how);
  return kind ? exit_code_of(*kind) : exit_done;
}

void process::clear_copies() {
  copies_.clear();
  sim_.checks.on_cleared(*this);
}

void process::go_on(recovery_point from, std::optional<std::uint64_t> resume) {
  for (auto n = finished_.size(); n < from.finished.size(); ++n) {
    finished_.push_back(from.finished[n]);
    report_.finish_run(from.finished[n]);
    clear_copies();
  }
  if (!from.has_copies()) clear_copies();
  report_.lost.clear();
  if (finished_.size() == c().runs) return write_outputs();
  session_setup setup;
  setup.run = static_cast<std::uint32_t>(finished_.size());
  setup.token = token_;
  setup.absent = absent_;
  setup.makes_copies = may_recover() || !from.lost.empty();
  setup.from = from;
  setup.first_step = from.has_copies() ? from.record.step : 0;
  status ready = success();
  if (resume) ready = this->resume(setup, *resume);
  if (!from.lost.empty()) {
    report_.totals = from.totals;
    report_.totals.repeated_steps += from.steps - std::min(from.steps, setup.first_step);
  }
  open_session(std::move(setup), ready);
}

void process::write_outputs() {
  if (leads() && !std::exchange(written_, true)) sim_.checks.on_outputs(finished_);
  wait_for_outputs();
}

status process::resume(session_setup& setup, std::uint64_t step) {
  const auto found = sim_.disk.find(step);
  // Another node may not see it.
  if (!found) return error{"the checkpoint is not here"};
  setup.first_step = found->step;
  setup.resumed = found->states;
  setup.history = found->history;
  note("resumes from the checkpoint of step " + std::to_string(found->step));
  return success();
}

void process::open_session(session_setup setup, const status& ready) {
  report_.began_after = setup.from.began_after ? *setup.from.began_after : setup.first_step;
  if (leads() && !setup.from.lost.empty())
    note("goes on after step " + std::to_string(setup.first_step) + " of " +
         std::to_string(setup.from.steps) +
         (absent_.empty() ? "" : ", " + std::to_string(absent_.size()) + " nodes are absent"));
  if (session_) over_.push_back(std::move(session_));
  has_met_ = false;
  ended_.reset();
  session_ = std::make_unique<session>(*this, std::move(setup), [this](run_end how) {
    ended_ = std::move(how);
    if (has_met_) on_run_ended();
  });
  const auto answer = [this, from = session_->setup().from](const texts& numbers) {
    return introduce(numbers, from);
  };
  const std::string padding(c().address_bytes, ' ');
  agree(ready ? std::to_string(session_->number()) + padding : result<std::string>{ready.failure()},
        answer, [this](const result<std::string>& told) {
          if (!told) return close_session({end_of(told.failure().kind), told.message(), {}});
          decoder in{*told};
          std::vector<std::uint32_t> peers;
          in(peers);
          RRFP_EXPECT(in.complete() || c().address_bytes > 0,
                      name() + " got peers that do not decode");
          if (auto made = session_->connect(peers); !made)
            return close_session({job_end::node_lost, made.message(), {}});
          meet();
        });
}

/// Tells each node whom it connects to: node and session by turns.
result<process::texts> process::introduce(const texts& numbers, const recovery_point& from) const {
  const auto node_of = [&](replica_id d, stage_id st, rank_id r) {
    return session_->node_of(d, st, r);
  };
  std::vector<stage_id> path;
  for (std::uint32_t v = 0; v < c().shape.virtual_stages(); ++v)
    path.push_back(c().shape.at(virtual_stage_id{v}).stage);
  messaging::connections all{
      {c().nodes, c().shape.stages, path, c().ranks, c().replicas, node_of, leader()}};
  for (std::uint32_t st = 0; st < c().shape.stages; ++st)
    for (std::uint32_t r = 0; r < c().ranks; ++r)
      if (const auto buddy = session_->buddy_of_rank(stage_id{st}, rank_id{r}))
        all.add(node_of(replica_id{0}, stage_id{st}, rank_id{r}), *buddy);
  for (const auto& [what, source] : from.copies)
    for (std::uint32_t d = 0; d < c().replicas; ++d)
      all.add(node_of(replica_id{d}, what.stage, what.rank), source.node);
  texts told;
  for (std::uint32_t n = 0; n < c().nodes; ++n) {
    std::vector<std::uint32_t> peers;
    for (const auto other : all.of(node_id{n})) {
      if (member_->members()[other.value()].is_absent) continue;
      peers.push_back(other.value());
      peers.push_back(static_cast<std::uint32_t>(std::stoul(numbers[other.value()])));
    }
    encoder out;
    out(peers);
    told.push_back(out.take() + std::string(c().address_bytes * peers.size() / 2, ' '));
  }
  return told;
}

void process::meet() {
  agree({std::string{}}, [this](const result<std::string>& all) {
    if (!all) {
      session_->fail(all.failure());
      return close_session({end_of(all.failure().kind), all.message(), {}});
    }
    later(random_.between(0, 300 * us), [this, number = memberships_] {
      if (number != memberships_) return;
      session_->start();
      member_->on_lost([this](const auto& lost) {
        session_->give_up(lost.node, lost.message);
        session_->lose(lost.message);
      });
      if (leads()) member_->on_node_waits([this](node_id n) { session_->take_in(n); });
      has_met_ = true;
      if (!may_recover()) give_up_drain();
      if (interrupts_ > 0) session_->interrupt(interrupts_ > 1);
      if (is_draining_) session_->drain();
      // The run may end elsewhere before this node knows that all have met.
      if (ended_) on_run_ended();
    });
  });
}

void process::on_run_ended() {
  later(random_.between(1 * us, 100 * us), [this, how = *ended_] {
    member_->on_lost([this](const auto& lost) { session_->give_up(lost.node, lost.message); });
    member_->on_node_waits(nullptr);
    if (how.how == job_end::node_lost && !how.drained) return close_session(how);
    exchange(
        {}, finish_limit, [](const texts&) { return texts(1); },
        [this, how](const auto&) {
          auto known = how;
          const bool can_be_loss = how.how == job_end::done || how.how == job_end::failed;
          if (const auto& lost = member_->loss(); can_be_loss && lost) {
            known.how = job_end::node_lost;
            known.message = lost->message;
          }
          close_session(known);
        });
  });
}

void process::close_session(run_end how) {
  session_->leave([this, how] { finish_run(how); });
}

void process::finish_run(const run_end& how) {
  // The thread that writes checkpoints ends its work first.
  if (disk_work_ > 0) return later(1 * ms, [this, how] { finish_run(how); });
  const auto code = end_with(how);
  if (is_handed_over_) return leave(code, leave_limit);
  if (!report_.lost.empty()) return end_membership(code);
  if (code != exit_done) {
    if (code == exit_node_lost) return end_membership(code);
    return leave(code, leave_limit);
  }
  finished_.push_back(how.summary);
  report_.finish_run(how.summary);
  clear_copies();
  if (finished_.size() == c().runs) return write_outputs();
  agree_on_start(false);
}

}  // namespace rrfp::cluster
