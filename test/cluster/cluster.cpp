#include "cluster.hpp"

#include <algorithm>
#include <set>
#include <utility>

namespace rrfp::cluster {

namespace {

constexpr nanoseconds poll_period = 20 * ms;
constexpr nanoseconds end_limit = 8 * s;
constexpr nanoseconds report_limit = 1500 * ms;
constexpr nanoseconds interrupt_limit = 500 * ms;
/// After the last fault or step a job must complete a step, or be done, within this time.
constexpr nanoseconds progress_limit = 15 * s;
/// A node that looks for who leads tries one after the other for so long.
constexpr nanoseconds search_limit = 6 * s;
/// After the last fault all its processes must have ended: one whose place another has taken tries
/// to join for a minute.
constexpr nanoseconds patience = 75 * s;
/// All nodes together may not have to be started more often than this beyond a few times each.
constexpr std::uint32_t launches_max = 400;

}  // namespace

simulation::simulation(scenario drawn, std::FILE* trace, traffic* counted)
    : w(std::move(drawn), trace),
      paths(w),
      data(w, paths),
      meeting(w, paths, 0, w.c.restarts == restart_kind::launcher),
      disk(w),
      checks(*this),
      current_(w.c.nodes, nullptr),
      starts_(w.c.nodes, false),
      clock_ahead_(w.c.skew),
      slow_until_(w.c.nodes, 0) {
  w.counted = counted;
  launcher_.restarts_left = w.c.max_restarts;
}

outcome simulation::run() {
  outcome o;
  try {
    w.note(to_string(w.c));
    for (std::uint32_t n = 0; n < w.c.nodes; ++n) {
      starts_[n] = true;
      w.call(w.c.starts_late[n], [this, n] { start(n); });
    }
    nanoseconds last_fault = 0;
    for (const auto& f : w.c.faults) {
      w.call(f.at, [this, f] { inject(f); });
      last_fault = std::max(last_fault, f.at + f.lasts);
    }
    if (w.c.restarts == restart_kind::launcher) w.call(poll_period, [this] { poll_launcher(); });
    for (;;) {
      while (!has_ended()) {
        RRFP_EXPECT(w.advance(), "nothing happens any more");
        RRFP_EXPECT(w.events() < w.c.events_max,
                    "the job does not end: " + std::to_string(w.events()) + " events");
        RRFP_EXPECT(w.now() < last_fault + patience, "the job does not end");
        const auto begun = std::max(last_fault, checks.last_commit());
        const auto search = w.c.may_lack_nodes() ? w.c.nodes * search_limit : 0;
        RRFP_EXPECT(
            checks.has_outputs() || may_give_up() || w.now() < begun + progress_limit + search,
            "the job is not done");
      }
      if (interrupts_ == 0 || checks.has_outputs()) break;
      last_fault = std::max(last_fault, w.now());
      launch_again(1 * s);
    }
    require_result();
  } catch (const violation& v) {
    o.failure = v.what();
    w.note("FAILED: " + o.failure);
    for (const auto& p : processes_)
      if (p->is_alive()) p->note("waits for " + p->waits_for());
  }
  o.is_done = checks.has_outputs();
  o.events = w.events();
  o.steps = checks.steps_committed();
  o.recoveries = checks.recoveries();
  o.time = w.now();
  o.first_commit = checks.first_commit();
  o.last_commit = checks.last_commit();
  o.went_on = checks.went_on();
  for (auto& p : processes_) p->kill(true);
  return o;
}

bool simulation::has_ended() const {
  if (!has_power_) return false;
  for (std::uint32_t n = 0; n < w.c.nodes; ++n)
    if (starts_[n] || (current_[n] != nullptr && current_[n]->is_alive())) return false;
  if (w.c.restarts == restart_kind::loop || launcher_.kills_at || interrupts_ > 0) return true;
  // The launcher looks at them first.
  return std::all_of(current_.begin(), current_.end(), [](const auto* p) {
    return p != nullptr && p->code() && *p->code() == exit_done;
  });
}

/// The job has a limit that faults may exceed.
bool simulation::may_give_up() const { return w.c.max_restarts < 50 || w.c.hold < 30 * s; }

void simulation::require_result() const {
  if (checks.has_outputs()) return;
  std::string words;
  for (const auto* p : current_)
    if (p->code()) words += "; " + p->name() + ": " + p->last_words();
  if (launcher_.has_failed) words += "; the launcher says which node has ended";
  RRFP_EXPECT(may_give_up(), "the job ended without a result" + words);
  RRFP_EXPECT(!words.empty(), "the job ended without a word");
}

nanoseconds simulation::clock_of(std::uint32_t node) const {
  return clock_ahead_[node] + w.now() + w.now() / 1'000'000 * w.c.drift_ppm[node];
}

// ---- processes

process& simulation::add_process(process::identity who) {
  const auto id = static_cast<std::uint32_t>(processes_.size());
  processes_.push_back(std::make_unique<process>(*this, id, who));
  return *processes_.back();
}

bool simulation::finds_node_0(std::uint32_t from) const {
  const auto* const p = current_[0];
  return p != nullptr && p->is_alive() && p->suspended_until() <= w.now() &&
         meeting.is_listened_to() && meeting.is_reached(from, 1 * s);
}

void simulation::on_joined(const process& p, nanoseconds began) const {
  // A replacement looks for node 0. Whoever leads the nodes that have lost node 0 does not meet it.
  if (p.leads() && p.node() != 0) return;
  const auto at = replaced_.find(p.id());
  RRFP_EXPECT(at == replaced_.end() || began < at->second,
              p.name() + " takes the place of its replacement");
}

void simulation::start(std::uint32_t node) {
  if (!starts_[node]) return;
  starts_[node] = false;
  if (!has_power_ || (current_[node] != nullptr && current_[node]->is_alive())) return;
  RRFP_EXPECT(++launches_ < launches_max + 4 * w.c.nodes, "nodes are started again and again");
  set_dark(w.c.hosts[node], false);
  current_[node] = &add_process({node});
  current_[node]->begin();
}

void simulation::launch_again(nanoseconds after) {
  ++generation_;
  interrupts_ = 0;
  launcher_ = {};
  launcher_.restarts_left = w.c.max_restarts;
  current_.assign(w.c.nodes, nullptr);  // the new launcher does not know the processes before it
  for (std::uint32_t n = 0; n < w.c.nodes; ++n) {
    starts_[n] = true;
    w.call(after, [this, n, g = generation_] {
      if (g == generation_) start(n);
    });
  }
}

void simulation::on_process_end(process& p) {
  if (current_[p.node()] != &p || !has_power_) return;
  const auto code = p.code();
  const bool is_expected = !code || *code == exit_done || *code == exit_node_lost ||
                           (*code == exit_drained && p.was_told_to_end()) ||
                           (*code == exit_interrupted &&
                            (interrupts_ > 0 || p.was_interrupted() || p.was_told_to_end() ||
                             (may_give_up() && w.c.has(fault_kind::drain))));
  RRFP_EXPECT(is_expected, p.name() + " ended with code " + std::to_string(code.value_or(-1)) +
                               ": " + p.last_words());
  if (w.c.restarts == restart_kind::launcher) return;
  // Whoever has ended well is not started again; then nobody can go on without it.
  if ((code && *code == exit_done) || interrupts_ > 0) return;
  // Whoever is left tells it that the job is over.
  const bool any_left = std::any_of(current_.begin(), current_.end(),
                                    [](const auto* c) { return c != nullptr && c->is_alive(); });
  if (checks.outputs_known() && (code || !any_left)) return;
  if (code && !p.was_told_to_end() && may_give_up()) return;
  starts_[p.node()] = true;
  random_source random{w.c.seed, mix(7, p.id())};
  const auto longest = w.c.may_lack_nodes() && random.one_in(2) ? 8 * s : 300 * ms;
  w.call(random.between(10 * ms, longest), [this, node = p.node(), g = generation_] {
    if (g != generation_) return;
    // The others went on without it, and are done.
    if (checks.outputs_known() && w.c.may_lack_nodes()) starts_[node] = false;
    start(node);
  });
}

// ---- the launcher

void simulation::poll_launcher() {
  if (has_power_) run_launcher();
  w.call(poll_period, [this] { poll_launcher(); });
}

void simulation::end_nodes_within(nanoseconds limit) {
  if (!launcher_.kills_at) launcher_.kills_at = w.now() + limit;
}

void simulation::interrupt_all() {
  for (auto* p : current_)
    if (p != nullptr) p->interrupt();
}

void simulation::run_launcher() {
  auto& l = launcher_;
  bool any_failed = false;
  bool all_killed = true;
  bool is_done = false;
  for (const auto* p : current_) {
    if (p == nullptr || p->is_alive()) continue;
    const auto code = p->code();
    is_done |= code == exit_done && w.c.max_restarts > 0;
    any_failed |= code != exit_done && code != exit_interrupted;
    all_killed &= p->was_killed();
  }
  if (is_done) end_nodes_within(end_limit);
  if (any_failed && all_killed && l.restarts_left > 0 && !l.kills_at && l.forwarded == 0) {
    for (std::uint32_t n = 0; n < w.c.nodes && l.restarts_left > 0; ++n) {
      if (current_[n] == nullptr || current_[n]->is_alive()) continue;
      starts_[n] = true;
      start(n);
      --l.restarts_left;
    }
  } else if (any_failed && !is_done && !std::exchange(l.has_failed, true)) {
    if (all_killed) l.terminates_at = w.now() + report_limit;
    end_nodes_within(end_limit);
  }
  const auto leader_runs = current_[0] != nullptr && current_[0]->is_alive();
  if (interrupts_ > l.forwarded && l.forwarded < 2) {
    if (leader_runs) current_[0]->interrupt();
    if (++l.forwarded == 2 || !w.c.saves) end_nodes_within(end_limit);
  }
  if (l.forwarded > 0 && !leader_runs && !std::exchange(l.has_interrupted_all, true)) {
    interrupt_all();
    l.kills_at = w.now() + interrupt_limit;
  }
  if (l.forwarded == 0 && l.terminates_at && w.now() > *l.terminates_at) {
    l.terminates_at.reset();
    interrupt_all();
  }
  if (l.kills_at && w.now() > *l.kills_at)
    for (auto* p : current_)
      if (p != nullptr) p->kill(false);
}

// ---- faults

void simulation::inject(const fault& f) {
  w.note(to_string(f));
  auto* const p = current_[f.node];
  const auto until = w.now() + f.lasts;
  switch (f.kind) {
    case fault_kind::crash:
      if (p != nullptr) p->kill(false);
      return;
    case fault_kind::crash_host: return crash_host(w.c.hosts[f.node]);
    case fault_kind::power_loss: return lose_power();
    case fault_kind::pause:
      if (p == nullptr) return;
      p->suspend(until);
      return expect_silence_noticed(*p, until);
    case fault_kind::replace:
      if (p != nullptr && p->is_alive()) replace(*p, f);
      return;
    case fault_kind::cut:
    case fault_kind::isolate: return cut(f);
    case fault_kind::slow_link:
      paths.slow(f.node, f.other, until);
      return paths.slow(f.other, f.node, until);
    case fault_kind::reset_control:
      if (p != nullptr) p->reset_control();
      return;
    case fault_kind::break_data: return data.break_between(f.node, f.other);
    case fault_kind::disk_full: return disk.fill(until);
    case fault_kind::disk_slow: return disk.slow(until);
    case fault_kind::join_stranger:
      // Another version, or another key; node 0 listens and joins nobody.
      if (f.node == 0) return;
      return add_process({f.node, f.detail % 2 == 0 ? 2u : 1u, f.detail % 2 == 0 ? 7u : 8u})
          .begin();
    case fault_kind::join_twice:
      // A second node 0 finds its port in use.
      if (f.node == 0) return;
      return add_process({f.node}).begin();
    case fault_kind::clock_jump:
      for (std::uint32_t n = 0; n < w.c.nodes; ++n)
        if (w.c.hosts[n] == w.c.hosts[f.node]) clock_ahead_[n] += f.lasts;
      return;
    case fault_kind::slow_node: slow_until_[f.node] = std::max(slow_until_[f.node], until); return;
    case fault_kind::interrupt: return interrupt(f);
    case fault_kind::drain:
      if (p != nullptr) p->drain();
      return;
    case fault_kind::ask_report:
      if (p != nullptr) p->ask_report();
      return;
  }
}

/// Stops a process, starts another one in its place when it counts as lost, and lets it go on.
void simulation::replace(process& p, const fault& f) {
  const auto timeout = 2 * w.c.node_timeout;
  // Nobody counts it as lost who has not joined or is stopped as well.
  const auto counts = [&](const auto& o) {
    return o.get() != &p && o->is_alive() && o->resumes_at() <= w.now();
  };
  if (!p.is_member() && !p.fence().has_joined) return;
  if (std::ranges::none_of(processes_, counts)) return;
  p.suspend(w.now() + timeout + f.lasts);
  w.call(timeout, [this, &p, node = f.node, g = generation_] {
    if (g != generation_ || current_[node] != &p || !p.is_alive() || !has_power_) return;
    if (checks.outputs_known() || interrupts_ > 0) return;
    replaced_.emplace(p.id(), w.now());
    starts_[node] = true;
    current_[node] = nullptr;
    start(node);
  });
}

void simulation::set_dark(const std::string& host, bool dark) {
  for (std::uint32_t n = 0; n < w.c.nodes; ++n)
    if (w.c.hosts[n] == host) paths.set_dark(n, dark);
}

void simulation::crash_host(const std::string& host) {
  for (auto& p : processes_)
    if (w.c.hosts[p->node()] == host) p->kill(true);
  set_dark(host, true);
  // Its clock begins anew.
  for (std::uint32_t n = 0; n < w.c.nodes; ++n)
    if (w.c.hosts[n] == host) clock_ahead_[n] = w.c.skew[n] / 60 - w.now();
}

/// Once or twice; whoever starts nodes again does so no more.
void simulation::interrupt(const fault& f) {
  for (std::uint64_t i = 0; i <= f.detail % 2; ++i)
    w.call(static_cast<nanoseconds>(i) * f.lasts, [this, g = generation_] {
      if (g != generation_ || !has_power_ || has_ended()) return;
      ++interrupts_;
      if (w.c.restarts == restart_kind::launcher) return;
      starts_.assign(w.c.nodes, false);
      interrupt_all();
    });
}

/// Node 0 must notice a member that is silent for twice the timeout.
void simulation::expect_silence_noticed(const process& silent, nanoseconds until) {
  const auto leads = [](const process* p) {
    return p != nullptr && p->is_member() && p->leads() && p->whole_membership();
  };
  const auto found = std::find_if(current_.begin(), current_.end(), leads);
  const auto* const leader = found == current_.end() ? nullptr : *found;
  const auto time = 2 * w.c.node_timeout;
  if (leader == nullptr || leader == &silent || until - w.now() <= time) return;
  // What is on its way still arrives.
  const bool may_be_heard = std::any_of(w.c.faults.begin(), w.c.faults.end(), [](const fault& f) {
    return f.kind == fault_kind::cut || f.kind == fault_kind::isolate ||
           f.kind == fault_kind::slow_link;
  });
  const auto membership = leader->whole_membership();
  if (may_be_heard || !membership || !silent.whole_membership()) return;
  if (leader->token() != silent.token() || leader->resumes_at() > w.now()) return;
  w.call(time, [this, leader, membership, &silent, began = w.now()] {
    if (leader->suspended_until() >= began || !silent.is_alive()) return;
    RRFP_EXPECT(leader->whole_membership() != membership,
                leader->name() + " has not noticed that " + silent.name() + " is silent");
  });
}

void simulation::cut(const fault& f) {
  const auto until = w.now() + f.lasts;
  if (f.kind == fault_kind::cut) {
    paths.cut(f.node, f.other, until);
    if (f.detail % 2 == 0) paths.cut(f.other, f.node, until);
    return;
  }
  for (std::uint32_t n = 0; n < w.c.nodes; ++n) {
    if (n == f.node) continue;
    if (f.detail % 3 != 2) paths.cut(f.node, n, until);
    if (f.detail % 3 != 1) paths.cut(n, f.node, until);
  }
}

void simulation::lose_power() {
  has_power_ = false;
  for (const auto& host : std::set<std::string>{w.c.hosts.begin(), w.c.hosts.end()})
    crash_host(host);
  while (const auto waits = meeting.accept()) waits->reset();
  disk.crash();
  ++generation_;
  starts_.assign(w.c.nodes, false);
  // Whatever ran when the outputs were written: their job is done.
  if (checks.outputs_known()) {
    has_power_ = true;
    return;
  }
  w.call(200 * ms, [this, g = generation_] {
    if (g != generation_) return;
    has_power_ = true;
    launch_again(0);
  });
}

outcome run_scenario(const scenario& c, std::FILE* trace, traffic* counted) {
  return simulation{c, trace, counted}.run();
}

}  // namespace rrfp::cluster
