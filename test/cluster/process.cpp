#include "process.hpp"

#include <algorithm>

#include "cluster.hpp"

namespace rrfp::cluster {

namespace {

constexpr nanoseconds join_timeout = 60 * s;
constexpr nanoseconds join_pause = 100 * ms;
constexpr nanoseconds token_limit = 30 * s;
constexpr nanoseconds finish_limit = 10 * s;
constexpr nanoseconds outputs_limit = 600 * s;
constexpr nanoseconds leave_limit = 5 * s;
/// As long as a membership takes to write what is left and close.
constexpr nanoseconds linger_max = 60 * ms;

constexpr char success_mark = '+';

char mark_of(error_kind kind) { return static_cast<char>('0' + static_cast<int>(kind)); }

}  // namespace

process::process(simulation& in, std::uint32_t id, identity who)
    : sim_(in), id_(id), who_(who), random_(in.w.c.seed, mix(6, id)) {}

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
  join();
}

void process::kill(bool silently) {
  if (!is_alive()) return;
  note("is killed");
  was_killed_ = true;
  *lives_ = false;
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
  ++interrupts_;
  note("is interrupted");
  later(random_.between(0, 200 * us), [this] {
    if (!has_joined_) return end_interrupted();
    if (waits_for_outputs_) return member_->interrupt();
    if (has_met_ && !ended_) session_->interrupt(interrupts_ > 1);
  });
}

/// While it joins.
void process::end_interrupted() {
  if (member_) member_->end(name() + " gave up: interrupted while joining");
  exit(exit_interrupted, card_.lost.empty() ? "interrupted before the training began"
                                            : "interrupted after " + card_.lost);
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
  if (session_) session_->vanish();
  if (member_) member_->end();
  sim_.on_process_end(*this);
}

// ---- one membership

void process::join() {
  const bool is_new = card_.lost.empty();
  const auto limit = is_new ? join_timeout : c().hold;
  join_until_ = (is_new ? local_now() : *lost_at_) + limit;
  try_to_join(limit);
}

void process::try_to_join(nanoseconds limit) {
  const auto number = ++memberships_;
  has_joined_ = false;
  if (interrupts_ > 0) return end_interrupted();
  member::reports to;
  to.joined = [this] {
    has_joined_ = true;
    later(random_.between(0, 200 * us), [this] { on_joined(); });
  };
  to.join_failed = [this, number](const membership_core::action::join_failed& f) {
    later(0, [this, number, f] {
      if (number == memberships_)
        give_up_joining(f.why, f.for_now ? error_kind::node_lost : error_kind::bad_input);
    });
  };
  to.exchanged = [this, number](bytes_of_all all) {
    later(random_.between(0, 200 * us), [this, number, all = std::move(all)] {
      if (number == memberships_ && exchanged_) std::exchange(exchanged_, nullptr)(all);
    });
  };
  to.left = [this, number] {
    later(0, [this, number] {
      if (number == memberships_ && code_when_left_) end_membership(*code_when_left_);
    });
  };
  member_ = std::make_unique<member>(*this, sim_.meeting, std::move(to), who_.version, who_.key);
  member_->begin();
  later(limit, [this, number] {
    if (number == memberships_ && !has_joined_)
      give_up_joining("the nodes did not join in time: " + member_->waiting(),
                      error_kind::node_lost);
  });
}

void process::give_up_joining(const std::string& why, error_kind kind) {
  member_->end(name() + " gave up: " + why);
  if (c().max_restarts > 0 && kind == error_kind::node_lost && local_now() < join_until_) {
    note("joins again: " + why);
    left_.push_back(std::move(member_));
    ++memberships_;
    return later(join_pause,
                 [this] { try_to_join(std::max(join_until_ - local_now(), join_pause)); });
  }
  exit(exit_code_of(kind), card_.lost.empty() ? why : card_.lost + "; " + why);
}

void process::exchange(std::string bytes, nanoseconds limit, bool to_node_0,
                       std::function<void(bytes_of_all)> then) {
  RRFP_EXPECT(!exchanged_, name() + ": only one exchange may run at a time");
  exchanged_ = std::move(then);
  member_->exchange(std::move(bytes), limit, to_node_0);
}

void process::agree(const result<std::string>& mine, std::function<void(bytes_of_all)> then) {
  exchange(mine ? success_mark + *mine : mark_of(mine.failure().kind) + mine.message(),
           join_timeout, false, [this, then = std::move(then)](bytes_of_all all) {
             if (!all) return then(all);
             for (std::size_t n = 0; n < all->size(); ++n) {
               auto& answer = (*all)[n];
               const char mark = answer.empty() ? '\0' : answer.front();
               if (!answer.empty()) answer.erase(0, 1);
               if (mark == success_mark) continue;
               RRFP_EXPECT(mark >= '0' && mark <= '3',
                           "node " + std::to_string(n) + " contributed to another agreement");
               if (const auto& lost = member_->loss())
                 return then(error{lost->message, error_kind::node_lost});
               return then(error{"node " + std::to_string(n) + ": " + answer,
                                 static_cast<error_kind>(mark - '0')});
             }
             then(std::move(all));
           });
}

void process::on_joined() {
  if (interrupts_ > 0) return end_interrupted();
  exchange(std::to_string(random_.next()), token_limit, false, [this](bytes_of_all all) {
    if (!all) return end_membership(lose(all.message()));
    token_ = 0;
    for (const auto& one : *all) token_ = mix(token_, hash_of_bytes(one));
    if (c().max_restarts > 0) return agree_on_point();
    go_on({});
  });
}

void process::agree_on_point() {
  card_.held = copies_.set.held();
  card_.record = copies_.set.record();
  if (lost_at_) card_.held_s = static_cast<double>(local_now() - *lost_at_) / s;
  agree(card_.to_bytes(), [this](bytes_of_all all) {
    if (!all) return end_membership(lose(all.message()));
    std::vector<recovery_card> cards;
    for (const auto& bytes : *all) {
      auto card = recovery_card::from_bytes(bytes);
      RRFP_EXPECT(card.ok(), name() + " got a card that does not decode");
      cards.push_back(*std::move(card));
    }
    const std::vector<std::uint32_t> ranks(c().runs, c().stage_ranks());
    const auto point = choose_recovery_point(cards, ranks);
    sim_.checks.on_point(*this, cards, point);
    go_on(point);
  });
}

void process::wait_for_outputs() {
  waits_for_outputs_ = true;
  exchange({}, outputs_limit, true, [this](const bytes_of_all&) {
    const auto& lost = member_->loss();
    waits_for_outputs_ = false;
    if (!lost && interrupts_ == 0) sim_.checks.on_outputs_known();
    const auto code = lost ? lose(lost->message) : exit_done;
    if (code == exit_node_lost) return end_membership(code);
    code_when_left_ = code;
    member_->leave();
    later(leave_limit, [this, number = memberships_] {
      if (number == memberships_ && code_when_left_) end_membership(*code_when_left_);
    });
  });
}

void process::end_membership(int code) {
  code_when_left_.reset();
  exchanged_ = nullptr;
  member_->end();
  left_.push_back(std::move(member_));
  ++memberships_;
  later(random_.between(0, linger_max), [this, code] {
    if (card_.lost.empty()) return exit(code, last_words_);
    join();
  });
}

// ---- the runs

int process::lose(const std::string& why) { return end_with({job_end::node_lost, why, {}}); }

int process::end_with(const run_end& how) {
  if (how.how == job_end::node_lost) sim_.checks.on_loss(*this, how.message);
  if (how.how == job_end::node_lost && may_recover()) {
    if (card_.lost.empty()) lost_at_ = local_now();
    card_.lost = how.message;
    RRFP_EXPECT(!how.message.empty(), name() + " lost a node without a reason");
    ++card_.totals.restarts;
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

void process::go_on(recovery_point from) {
  for (auto n = finished_.size(); n < from.finished.size(); ++n) {
    finished_.push_back(from.finished[n]);
    card_.finished.push_back(from.finished[n]);
    clear_copies();
  }
  if (!from.has_copies()) clear_copies();
  card_.lost.clear();
  begin_run(std::move(from));
}

void process::begin_run(recovery_point from) {
  if (finished_.size() == c().runs) {
    if (leads() && !std::exchange(written_, true)) sim_.checks.on_outputs(finished_);
    return wait_for_outputs();
  }
  // Of the data.
  agree(std::string{}, [this, from = std::move(from)](const bytes_of_all& all) {
    if (!all) return finish_run({end_of(all.failure().kind), all.message(), {}});
    session_setup setup;
    setup.run = static_cast<std::uint32_t>(finished_.size());
    setup.token = token_;
    setup.makes_copies = may_recover() || !from.lost.empty();
    setup.from = from;
    setup.first_step = from.has_copies() ? from.record.step : 0;
    if (!from.lost.empty()) {
      card_.totals = from.totals;
      card_.totals.repeated_steps += from.steps - std::min(from.steps, setup.first_step);
    }
    if (!c().saves) return open_session(std::move(setup));
    agree_on_resume(std::move(setup));
  });
}

void process::agree_on_resume(session_setup setup) {
  std::string chosen;
  if (leads() && !setup.from.has_copies())
    if (const auto newest = sim_.disk.find_newest()) chosen = std::to_string(newest->step);
  agree(chosen, [this, setup = std::move(setup)](const bytes_of_all& all) mutable {
    if (!all) return finish_run({end_of(all.failure().kind), all.message(), {}});
    const auto& step = all->front();
    if (step.empty()) return open_session(std::move(setup));
    const auto found = sim_.disk.find(std::stoull(step));
    // Another node may not see it.
    agree(found ? result<std::string>{std::string{}}
                : result<std::string>{error{"the checkpoint is not here"}},
          [this, setup = std::move(setup), found](const bytes_of_all& seen) mutable {
            if (!seen) return finish_run({end_of(seen.failure().kind), seen.message(), {}});
            setup.first_step = found->step;
            setup.resumed = found->states;
            note("resumes from the checkpoint of step " + std::to_string(found->step));
            open_session(std::move(setup));
          });
  });
}

void process::open_session(session_setup setup) {
  if (leads() && !setup.from.lost.empty())
    note("goes on after step " + std::to_string(setup.first_step) + " of " +
         std::to_string(setup.from.steps));
  if (session_) over_.push_back(std::move(session_));
  has_met_ = false;
  ended_.reset();
  session_ = std::make_unique<session>(*this, std::move(setup), [this](run_end how) {
    ended_ = std::move(how);
    if (has_met_) on_run_ended();
  });
  const auto number = std::to_string(session_->number());
  agree(number, [this](const bytes_of_all& all) {
    if (!all) return close_session({end_of(all.failure().kind), all.message(), {}});
    std::vector<std::uint32_t> numbers;
    for (const auto& one : *all) numbers.push_back(static_cast<std::uint32_t>(std::stoul(one)));
    if (auto made = session_->connect(numbers); !made)
      return close_session({job_end::node_lost, made.message(), {}});
    meet();
  });
}

void process::meet() {
  agree(std::string{}, [this](const bytes_of_all& all) {
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
      has_met_ = true;
      if (interrupts_ > 0) session_->interrupt(interrupts_ > 1);
      // The run may end elsewhere before this node knows that all have met.
      if (ended_) on_run_ended();
    });
  });
}

void process::on_run_ended() {
  later(random_.between(1 * us, 100 * us), [this, how = *ended_] {
    member_->on_lost(nullptr);
    if (how.how == job_end::node_lost) return close_session(how);
    exchange({}, finish_limit, true, [this, how](const bytes_of_all&) {
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
  if (!card_.lost.empty()) return end_membership(code);
  if (code != exit_done) {
    if (code == exit_node_lost) return end_membership(code);
    code_when_left_ = code;
    member_->leave();
    later(leave_limit, [this, number = memberships_] {
      if (number == memberships_ && code_when_left_) end_membership(*code_when_left_);
    });
    return;
  }
  finished_.push_back(how.summary);
  card_.finished.push_back(how.summary);
  card_.steps = 0;
  clear_copies();
  begin_run({});
}

}  // namespace rrfp::cluster
