#include "cluster.hpp"

#include <algorithm>

namespace rrfp::cluster {

namespace {

constexpr nanoseconds poll_period = 20 * ms;
constexpr nanoseconds end_limit = 8 * s;
/// After the last fault, a job must end within this time.
constexpr nanoseconds patience = 300 * s;
/// No node may have to be started more often.
constexpr std::uint32_t launches_max = 400;

}  // namespace

simulation::simulation(scenario drawn, std::FILE* trace)
    : w(std::move(drawn), trace),
      paths(w),
      data(w, paths),
      meeting(w, paths, w.c.restarts == restart_kind::launcher),
      disk(w),
      checks(*this),
      current_(w.c.nodes, nullptr),
      starts_(w.c.nodes, false),
      restarts_left_(w.c.max_restarts) {}

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
    while (!has_ended()) {
      RRFP_EXPECT(w.advance(), "nothing happens any more");
      RRFP_EXPECT(w.now() < last_fault + patience, "the job does not end");
    }
    require_result();
  } catch (const violation& v) {
    o.failure = v.what();
    w.note("FAILED: " + o.failure);
  }
  o.is_done = checks.has_outputs();
  o.events = w.events();
  o.steps = checks.steps_committed();
  o.recoveries = checks.recoveries();
  o.time = w.now();
  for (auto& p : processes_) p->kill(true);
  return o;
}

bool simulation::has_ended() const {
  if (!has_power_) return false;
  for (std::uint32_t n = 0; n < w.c.nodes; ++n)
    if (starts_[n] || (current_[n] != nullptr && current_[n]->is_alive())) return false;
  if (w.c.restarts == restart_kind::loop || launcher_gives_up_) return true;
  // The launcher looks at them first.
  return std::all_of(current_.begin(), current_.end(), [](const auto* p) {
    return p != nullptr && p->code() && *p->code() == exit_done;
  });
}

/// Unless the job has a limit that faults may exceed, it must be done.
void simulation::require_result() const {
  if (checks.has_outputs()) return;
  std::string words;
  for (const auto* p : current_)
    if (p->code()) words += "; " + p->name() + ": " + p->last_words();
  if (launcher_gives_up_) words += "; the launcher says which node has ended";
  const bool may_give_up = w.c.max_restarts < 50 || w.c.hold < 30 * s;
  RRFP_EXPECT(may_give_up, "the job ended without a result" + words);
  RRFP_EXPECT(!words.empty(), "the job ended without a word");
}

// ---- processes

process& simulation::add_process(process::identity who) {
  const auto id = static_cast<std::uint32_t>(processes_.size());
  processes_.push_back(std::make_unique<process>(*this, id, who));
  return *processes_.back();
}

const process& simulation::partner_of(const process& p, std::uint32_t node) const {
  for (const auto& other : processes_)
    if (other->node() == node && other->token() == p.token()) return *other;
  throw violation(p.name() + " has joined without node " + std::to_string(node));
}

void simulation::start(std::uint32_t node) {
  starts_[node] = false;
  if (!has_power_ || (current_[node] != nullptr && current_[node]->is_alive())) return;
  RRFP_EXPECT(++launches_ < launches_max, "nodes are started again and again");
  current_[node] = &add_process({node});
  current_[node]->begin();
}

void simulation::on_process_end(process& p) {
  if (current_[p.node()] != &p || !has_power_) return;
  const auto code = p.code();
  RRFP_EXPECT(
      !code || *code == exit_done || *code == exit_node_lost,
      p.name() + " ended with code " + std::to_string(code.value_or(-1)) + ": " + p.last_words());
  if (w.c.restarts == restart_kind::launcher) return;
  // Whoever has ended well is not started again; then nobody can go on without it.
  if ((code && *code == exit_done) || checks.outputs_known()) return;
  if (code && (w.c.max_restarts < 50 || w.c.hold < 30 * s)) return;
  starts_[p.node()] = true;
  random_source random{w.c.seed, mix(7, p.id())};
  w.call(random.between(10 * ms, 300 * ms), [this, node = p.node(), g = generation_] {
    if (g == generation_) start(node);
  });
}

void simulation::poll_launcher() {
  if (has_power_ && !launcher_gives_up_) {
    bool any_failed = false;
    bool may_restart = true;
    for (auto* p : current_) {
      if (p == nullptr || p->is_alive()) continue;
      any_failed |= p->was_killed() || *p->code() != exit_done;
      may_restart &= p->was_killed();
    }
    if (any_failed && may_restart && restarts_left_ > 0) {
      for (std::uint32_t n = 0; n < w.c.nodes && restarts_left_ > 0; ++n) {
        if (current_[n] == nullptr || current_[n]->is_alive()) continue;
        start(n);
        --restarts_left_;
      }
    } else if (any_failed) {
      launcher_gives_up_ = true;
      w.call(end_limit, [this, g = generation_] {
        if (g != generation_) return;
        for (auto* p : current_)
          if (p != nullptr) p->kill(false);
      });
    }
  }
  w.call(poll_period, [this] { poll_launcher(); });
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
    case fault_kind::crash_host:
      for (auto* other : current_)
        if (other != nullptr && w.c.hosts[other->node()] == w.c.hosts[f.node]) other->kill(true);
      return;
    case fault_kind::power_loss: return lose_power();
    case fault_kind::pause:
      if (p == nullptr) return;
      p->suspend(until);
      return expect_silence_noticed(*p, until);
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
  }
}

/// Node 0 must notice a member that is silent for twice the timeout.
void simulation::expect_silence_noticed(const process& silent, nanoseconds until) {
  const auto* const leader = current_[0];
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
    paths.cut(f.node, n, until);
    paths.cut(n, f.node, until);
  }
}

void simulation::lose_power() {
  has_power_ = false;
  ++generation_;
  for (auto& p : processes_) p->kill(true);
  while (const auto waits = meeting.accept()) waits->reset();
  disk.crash();
  restarts_left_ = w.c.max_restarts;
  launcher_gives_up_ = false;
  // Whatever ran when the outputs were written: their job is done.
  if (checks.outputs_known()) {
    has_power_ = true;
    for (std::uint32_t n = 0; n < w.c.nodes; ++n) starts_[n] = false;
    return;
  }
  w.call(200 * ms, [this] {
    has_power_ = true;
    for (std::uint32_t n = 0; n < w.c.nodes; ++n) start(n);
  });
}

outcome run_scenario(const scenario& c, std::FILE* trace) { return simulation{c, trace}.run(); }

}  // namespace rrfp::cluster
