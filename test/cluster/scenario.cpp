#include "scenario.hpp"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "world.hpp"

namespace rrfp::cluster {

namespace {

std::string text_of(nanoseconds t) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f ms", static_cast<double>(t) / ms);
  return text;
}

void draw_small(scenario& c, random_source& random) {
  c.nodes = static_cast<std::uint32_t>(random.between(2, 5));
  c.shape.stages = static_cast<std::uint32_t>(random.between(2, 4));
  c.shape.microbatches = static_cast<std::uint32_t>(random.between(2, 8));
  c.steps = static_cast<std::uint64_t>(random.between(2, 7));
  if (random.one_in(4)) c.ranks = 2;
  if (random.one_in(4)) c.replicas = 2;
  if (random.one_in(4)) {
    c.shape.chunks = 2;
    c.shape.layout = random.one_in(2) ? placement::v : placement::interleaved;
  }
  if (random.one_in(4)) c.runs = 2;
  const auto parts = c.replicas * c.stage_ranks();
  c.nodes = std::min(c.nodes, parts);
  c.copy_every = random.one_in(3) ? 2 : 1;
}

void draw_dispatch(scenario& c, random_source& random) {
  constexpr const char* in_rounds[] = {"bf", "bfw", "fb"};
  constexpr const char* fixed[] = {"one_f_one_b", "gpipe", "zb_h1"};
  c.policy = in_rounds[random.below(3)];
  const bool is_linear = c.shape.chunks == 1;
  if (is_linear && c.shape.microbatches >= c.shape.stages && random.one_in(3)) {
    c.policy = fixed[random.below(3)];
    if (random.one_in(2)) c.mode = dispatch_mode::in_order;
  }
  c.lookahead = static_cast<std::uint32_t>(random.below(3));
  if (c.mode == dispatch_mode::in_order) return;
  if (random.one_in(3)) c.weight_pieces = 2;
  if (random.one_in(4)) c.forwards_in_order = true;
  const auto limit = random.below(6);
  if (limit == 1 || limit == 2) c.limit.slots = static_cast<std::uint32_t>(random.between(1, 6));
  if (limit == 1 && !c.forwards_in_order)
    c.early_forwards = static_cast<std::uint32_t>(random.between(1, 3));
  if (limit == 3)
    c.limit.activations = static_cast<std::uint32_t>(random.between(c.shape.chunks, 8));
  if (limit == 4) {
    c.limit.bytes = static_cast<std::uint64_t>(random.between(100, 600));
    for (std::uint32_t mb = 0; mb < c.shape.microbatches; ++mb)
      c.slot_bytes.push_back(static_cast<std::uint64_t>(random.between(20, 200)));
  }
  // The paper's back-pressure goes without other limits of F.
  if (limit == 5 && !c.forwards_in_order)
    c.limit.run_ahead = static_cast<std::uint32_t>(random.between(1, 6));
}

/// A launcher starts all nodes on its own machine, so nothing between them breaks.
fault_kind on_one_machine(fault_kind k) {
  switch (k) {
    case fault_kind::crash_host: return fault_kind::crash;
    case fault_kind::cut:
    case fault_kind::isolate:
    case fault_kind::slow_link:
    case fault_kind::reset_control:
    case fault_kind::replace:
    case fault_kind::drain:
    case fault_kind::break_data: return fault_kind::pause;
    case fault_kind::join_twice: return fault_kind::join_stranger;
    case fault_kind::crash:
    case fault_kind::power_loss:
    case fault_kind::pause:
    case fault_kind::disk_full:
    case fault_kind::disk_slow:
    case fault_kind::join_stranger:
    case fault_kind::clock_jump:
    case fault_kind::slow_node:
    case fault_kind::interrupt:
    case fault_kind::ask_report: return k;
  }
  return k;
}

/// Of a fault that nobody should take for the end of a node.
bool is_harmless(fault_kind k) {
  return k == fault_kind::disk_full || k == fault_kind::disk_slow ||
         k == fault_kind::join_stranger || k == fault_kind::clock_jump ||
         k == fault_kind::slow_node || k == fault_kind::ask_report;
}

fault draw_fault(const scenario& c, random_source& random, nanoseconds horizon) {
  fault f;
  constexpr fault_kind kinds[] = {
      fault_kind::crash,      fault_kind::crash,         fault_kind::crash,
      fault_kind::crash,      fault_kind::crash_host,    fault_kind::pause,
      fault_kind::pause,      fault_kind::cut,           fault_kind::isolate,
      fault_kind::slow_link,  fault_kind::reset_control, fault_kind::break_data,
      fault_kind::disk_full,  fault_kind::disk_slow,     fault_kind::join_stranger,
      fault_kind::join_twice, fault_kind::power_loss,    fault_kind::clock_jump,
      fault_kind::slow_node,  fault_kind::interrupt,     fault_kind::ask_report,
      fault_kind::replace,    fault_kind::replace,
  };
  f.kind = kinds[random.below(std::size(kinds))];
  if (c.restarts == restart_kind::launcher) f.kind = on_one_machine(f.kind);
  f.at = random.between(0, horizon);
  f.node = static_cast<std::uint32_t>(random.below(c.nodes));
  f.other = static_cast<std::uint32_t>((f.node + random.between(1, c.nodes - 1)) % c.nodes);
  f.lasts = random.one_in(3) ? random.between(0, 3 * c.node_timeout)
                             : random.between(0, c.node_timeout / 2);
  f.detail = random.next();
  if ((f.detail >> 32) % 8 == 0 && c.restarts == restart_kind::loop) f.kind = fault_kind::drain;
  return f;
}

/// The same faults at the same times, but none that may cost a node its membership.
void make_harmless(std::vector<fault>& faults, nanoseconds node_timeout) {
  for (auto& f : faults) {
    if (is_harmless(f.kind)) continue;
    f.kind = f.detail % 2 == 0 ? fault_kind::pause : fault_kind::slow_node;
    if (f.kind == fault_kind::pause)
      f.lasts = node_timeout / 2 / static_cast<nanoseconds>(faults.size() + 1);
  }
}

/// Losses of nodes that the job may go on without.
void draw_losses(scenario& c, nanoseconds time) {
  random_source random{c.seed, 4};
  for (auto n = random.between(0, 3); n > 0; --n) {
    fault f;
    f.at = random.between(c.heartbeat * 4, c.heartbeat * 4 + time);
    f.node = static_cast<std::uint32_t>(random.between(1, c.nodes - 1));
    c.faults.push_back(f);
  }
}

/// A node is stopped, and replaced, while the others join again after the first crash.
void draw_stop_between_memberships(scenario& c) {
  random_source random{c.seed, 6};
  const auto crash = std::ranges::find(c.faults, fault_kind::crash, &fault::kind);
  if (c.restarts != restart_kind::loop || crash == c.faults.end() || !random.one_in(4)) return;
  fault f;
  f.kind = fault_kind::replace;
  f.at = crash->at + random.between(0, 30 * ms);
  f.node = static_cast<std::uint32_t>((crash->node + random.between(1, c.nodes - 1)) % c.nodes);
  f.lasts = random.between(c.node_timeout, 3 * c.node_timeout);
  c.faults.push_back(f);
}

void draw_faults(scenario& c, random_source& random) {
  const auto time = c.expected_time();
  const auto count = random.below(5);
  for (std::uint64_t i = 0; i < count; ++i) {
    // The training begins when all have joined; later faults meet what earlier ones have delayed.
    auto horizon = c.heartbeat * 4 + time;
    if (random.one_in(3)) horizon += static_cast<nanoseconds>(i) * (c.node_timeout + time);
    c.faults.push_back(draw_fault(c, random, horizon));
    if (!random.one_in(4)) continue;
    // While the nodes recover from this one.
    auto next = draw_fault(c, random, 0);
    next.at = c.faults.back().at + random.between(0, c.node_timeout + c.heartbeat * 4);
    c.faults.push_back(next);
  }
  if (c.may_lack_nodes()) draw_losses(c, time);
  draw_stop_between_memberships(c);
  // A stopped process and its replacement that both join while the job waits for yet another node:
  // either may take the place.
  if (c.has(fault_kind::replace))
    for (auto& f : c.faults)
      if (f.kind == fault_kind::drain) f.kind = fault_kind::ask_report;
  if (random.one_in(8)) make_harmless(c.faults, c.node_timeout);
  std::sort(c.faults.begin(), c.faults.end(), [](auto& a, auto& b) { return a.at < b.at; });
}

}  // namespace

bool scenario::is_harmless() const {
  nanoseconds paused = 0;
  for (const auto& f : faults) {
    if (f.kind == fault_kind::pause)
      paused += f.lasts;
    else if (!cluster::is_harmless(f.kind))
      return false;
  }
  return paused < node_timeout / 2;
}

bool scenario::has(fault_kind kind) const {
  return std::any_of(faults.begin(), faults.end(), [&](const fault& f) { return f.kind == kind; });
}

std::uint32_t scenario::microbatches_of(step_id step, replica_id replica) const {
  if (!counts_vary) return shape.microbatches;
  random_source random{seed, mix(step.value(), replica.value())};
  // Some replicas have none, but not all of them.
  const auto least = replica == replica_id{0} ? 1 : 0;
  return static_cast<std::uint32_t>(random.between(least, shape.microbatches));
}

microbatch_counts scenario::counts_of(step_id step) const {
  microbatch_counts counts;
  for (std::uint32_t d = 0; d < replicas; ++d)
    counts.by_replica.push_back(microbatches_of(step, replica_id{d}));
  return counts;
}

pipeline_shape scenario::widest() const {
  auto widest = shape;
  if (shares_vary) widest.microbatches *= replicas;
  return widest;
}

std::vector<node_id> scenario::spare_nodes() const {
  std::vector<node_id> all;
  for (auto n = nodes - spares; n < nodes; ++n) all.emplace_back(n);
  return all;
}

rank_hosts scenario::rank_places() const {
  rank_hosts all{{}, stage_ranks(), spare_nodes(), reroutes};
  for (std::uint32_t d = 0; d < replicas; ++d)
    for (std::uint32_t st = 0; st < shape.stages; ++st)
      for (std::uint32_t r = 0; r < ranks; ++r)
        all.nodes.push_back(node_of(replica_id{d}, stage_id{st}, rank_id{r}));
  return all;
}

std::vector<node_id> scenario::places(const std::vector<node_id>& absent) const {
  const auto planned = rank_places();
  auto made = planned.without(absent).value();
  std::map<node_id, std::set<node_id>> replaced;  // by spare
  for (std::size_t i = 0; i < made.size(); ++i) replaced[made[i]].insert(planned.nodes[i]);
  for (const auto spare : planned.spares)
    RRFP_EXPECT(reroutes || replaced[spare].size() <= 1, "a spare has the ranks of two nodes");
  return made;
}

nanoseconds scenario::expected_time() const {
  const auto tasks = shape.chunks * shape.microbatches + shape.stages;
  return static_cast<nanoseconds>(runs * steps * 3 * tasks) * task_time * 5 / 4;
}

scenario draw_scenario(std::uint64_t seed, size_kind size) {
  random_source random{seed, 1};
  scenario c;
  c.seed = seed;
  if (size == size_kind::full) {
    c.nodes = 8;
    c.shape = {8, 1, 32, placement::linear};
    c.steps = 20;
  } else {
    draw_small(c, random);
  }
  draw_dispatch(c, random);
  c.counts_vary = random_source{seed, 2}.one_in(3);
  c.shares_vary = c.replicas > 1 && random_source{seed, 5}.one_in(2);
  c.task_time = random.between(20, 400) * us;
  c.heartbeat = random.between(10, 50) * ms;
  c.node_timeout = c.heartbeat * random.between(4, 10);
  c.max_restarts = random.one_in(10) ? static_cast<std::uint32_t>(random.below(3)) : 50;
  c.reroutes = c.replicas > 1 && c.max_restarts > 0 && random_source{seed, 3}.one_in(2);
  random_source of_spares{seed, 6};
  if (c.max_restarts > 0 && of_spares.one_in(3))
    c.nodes += c.spares = static_cast<std::uint32_t>(of_spares.between(1, 2));
  if (c.may_lack_nodes()) c.steps += 8;  // so that nodes come back while it trains
  if (random.one_in(20)) c.hold = random.between(1, 5) * s;
  c.restarts = random.one_in(3) ? restart_kind::launcher : restart_kind::loop;
  if (c.runs == 1 && random.one_in(2))
    c.saves = {random.below(4), static_cast<std::uint32_t>(random.between(1, 3))};
  if (random.one_in(3))
    c.evaluation = {random.below(3), static_cast<std::uint32_t>(random.between(1, 2))};
  // Some tensors are announced, and some of these wait for others.
  c.eager_bytes_max = random.one_in(2) ? 1000 : 500;
  c.inflight_bytes_max = static_cast<std::uint64_t>(random.between(1000, 4000));
  const auto several = random.one_in(2) ? c.nodes : (c.nodes + 1) / 2;
  const auto hosts = c.restarts == restart_kind::launcher ? 1 : several;
  for (std::uint32_t n = 0; n < c.nodes; ++n) {
    c.hosts.push_back("host-" + std::to_string(n * hosts / c.nodes));
    const bool is_new = n == 0 || c.hosts[n] != c.hosts[n - 1];
    c.skew.push_back(is_new ? random.between(0, 3600 * s) : c.skew.back());
    c.drift_ppm.push_back(is_new ? random.between(-500, 500) : c.drift_ppm.back());
    c.starts_late.push_back(random.one_in(8) ? random.between(0, 2 * s) : 0);
  }
  draw_faults(c, random);
  return c;
}

std::string to_string(const fault& f) {
  const auto node = "node " + std::to_string(f.node);
  const auto both = node + " and node " + std::to_string(f.other);
  const auto lasting = " for " + text_of(f.lasts);
  const auto what = [&]() -> std::string {
    switch (f.kind) {
      case fault_kind::crash: return "crash of " + node;
      case fault_kind::crash_host: return "crash of the host of " + node;
      case fault_kind::power_loss: return "power loss";
      case fault_kind::pause: return "pause of " + node + lasting;
      case fault_kind::replace: return "stop and replacement of " + node + lasting;
      case fault_kind::cut:
        return (f.detail % 2 == 0 ? "partition of " + both
                                  : "no way from " + node + " to node " + std::to_string(f.other)) +
               lasting;
      case fault_kind::isolate:
        return (f.detail % 3 == 0   ? "isolation of " + node
                : f.detail % 3 == 1 ? "no way from " + node
                                    : "no way to " + node) +
               lasting;
      case fault_kind::slow_link: return "slow link between " + both + lasting;
      case fault_kind::reset_control: return "reset of the control connection of " + node;
      case fault_kind::break_data: return "break of the data connection between " + both;
      case fault_kind::disk_full: return "full disk" + lasting;
      case fault_kind::disk_slow: return "slow disk" + lasting;
      case fault_kind::join_stranger: return "a stranger joins as " + node;
      case fault_kind::join_twice: return "a second " + node + " joins";
      case fault_kind::clock_jump: return "the clock of " + node + " jumps by " + text_of(f.lasts);
      case fault_kind::slow_node: return "slow " + node + lasting;
      case fault_kind::interrupt:
        return f.detail % 2 == 0 ? "the user interrupts the job"
                                 : "the user interrupts the job twice within " + text_of(f.lasts);
      case fault_kind::drain: return node + " is told to end";
      case fault_kind::ask_report: return "the user asks " + node + " for a report";
    }
    return "?";
  };
  return text_of(f.at) + ": " + what();
}

std::string to_string(const scenario& c) {
  const auto number = [](auto x) { return std::to_string(x); };
  auto text = "seed " + number(c.seed) + ": " + number(c.nodes) + " nodes, " + number(c.replicas) +
              " x " + number(c.shape.stages) + " stages of " + number(c.shape.chunks) +
              " chunks and " + number(c.ranks) + " ranks, " + (c.counts_vary ? "up to " : "") +
              number(c.shape.microbatches) + " microbatches, " + number(c.runs) + " runs of " +
              number(c.steps) + " steps, " + std::string{name(c.mode)} + " " + c.policy +
              ", heartbeat " + text_of(c.heartbeat) + ", timeout " + text_of(c.node_timeout) +
              ", max_restarts " + number(c.max_restarts) + ", hold " + text_of(c.hold) +
              (c.restarts == restart_kind::launcher ? ", a launcher" : ", a loop a node") +
              (c.reroutes ? ", goes on without lost nodes" : "") +
              (c.spares > 0 ? ", " + number(c.spares) + " spare nodes" : "") +
              (c.shares_vary ? ", other shares" : "");
  if (c.saves) text += ", saves every " + number(c.saves->every);
  if (c.evaluation) text += ", evaluations every " + number(c.evaluation->every);
  return text;
}

}  // namespace rrfp::cluster
