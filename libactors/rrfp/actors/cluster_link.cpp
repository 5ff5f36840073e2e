#include "cluster_link.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include <rrfp/actors/control/messages.hpp>
#include <rrfp/actors/job_cluster.hpp>
#include <rrfp/core/connections.hpp>
#include <rrfp/transport/shared_memory.hpp>

namespace rrfp::actors {

namespace {

using std::chrono::steady_clock;

/// What a node tells the leader of its part of the run.
struct link_contribution {
  std::string address;     ///< of its transport
  std::int64_t start = 0;  ///< when it began the run, in ns of its clock
  std::map<stage_id, compute::tie> sides;
  std::string restored;  ///< see hosted_parts
  std::string text;      ///< for all processes
};
auto fields(auto f, link_contribution& x) {
  return f(x.address, x.start, x.sides, x.restored, x.text);
}

/// What the leader answers: the nodes that this one connects to, and who holds the second copies of
/// its ranks.
struct link_peers {
  std::int64_t start = 0;  ///< of the leader
  std::map<node_id, std::string> addresses;
  std::map<stage_id, compute::tie> sides;  ///< of all stages that hold a tied parameter
  rank_places buddies;
  std::vector<std::string> texts;  ///< of all nodes that are not absent
};
auto fields(auto f, link_peers& x) { return f(x.start, x.addresses, x.sides, x.buddies, x.texts); }

/// How long nodes may take to end after the last step; the maximum size of all traces on node 0,
/// and how long gathering them may take.
constexpr std::chrono::seconds finish_time_max{10};
constexpr std::size_t traces_bytes_max = std::size_t{1} << 30;
constexpr std::chrono::seconds traces_time{120};

/// Returns the places of the copies of replica 0, the only ranks that are copied.
rank_places buddies_of(const cluster& c, const session_setup& setup) {
  std::vector<std::string> hosts;
  for (const auto& m : c.members->members()) hosts.push_back(m.is_absent ? "" : m.host);
  rank_places all;
  for (const auto& a : setup.all_ranks()) {
    if (a.replica != replica_id{0}) continue;
    const auto node_of = [&](replica_id d) { return c.places.node_of(d, a.stage, a.rank); };
    if (const auto buddy = buddy_of(setup.replicas, node_of, c.places.hosts().spares, hosts))
      all[{a.stage, a.rank}] = *buddy;
  }
  return all;
}

messaging::connections connections_of(const cluster& c, const session_setup& setup,
                                      const std::map<stage_id, compute::tie>& tied,
                                      const rank_places& buddies) {
  const auto node_of = [&](replica_id d, stage_id s, rank_id r) {
    return c.places.node_of(d, s, r);
  };
  std::vector<stage_id> path;
  for (std::uint32_t v = 0; v < setup.shape.virtual_stages(); ++v)
    path.push_back(setup.shape.at(virtual_stage_id{v}).stage);
  messaging::connections all{{c.places.nodes(), setup.shape.stages, path, setup.ranks,
                              setup.replicas, node_of, c.members->leader()}};
  for (std::uint32_t d = 0; d < setup.replicas; ++d)
    for (std::uint32_t r = 0; r < setup.ranks; ++r)
      for (const auto& a : tied)
        for (const auto& b : tied)
          all.add(node_of(replica_id{d}, a.first, rank_id{r}),
                  node_of(replica_id{d}, b.first, rank_id{r}));
  for (const auto& [at, buddy] : buddies)
    all.add(node_of(replica_id{0}, at.first, at.second), buddy);
  if (!setup.recovery) return all;
  for (const auto& [what, source] : setup.recovery->from.copies)
    for (std::uint32_t d = 0; d < setup.replicas; ++d)
      all.add(node_of(replica_id{d}, what.stage, what.rank), source.node);
  return all;
}

/// On the leader: what it tells each node of the others.
std::vector<link_peers> introduce(const cluster& c, const session_setup& setup,
                                  const std::vector<link_contribution>& contributions) {
  std::map<stage_id, compute::tie> tied;
  for (const auto& contribution : contributions)
    for (const auto& side : contribution.sides)
      if (side.second != compute::tie::none) tied.insert(side);
  const auto buddies = setup.recovery ? buddies_of(c, setup) : rank_places{};
  const auto peers = connections_of(c, setup, tied, buddies);
  const auto is_absent = [&](node_id n) { return c.members->members()[n.value()].is_absent; };
  std::vector<std::string> texts;
  for (std::uint32_t n = 0; n < contributions.size(); ++n)
    if (!is_absent(node_id{n})) texts.push_back(contributions[n].text);
  std::vector<link_peers> told(
      contributions.size(),
      {contributions[c.members->leader().value()].start, {}, tied, {}, texts});
  for (std::uint32_t n = 0; n < contributions.size(); ++n)
    for (const auto other : peers.of(node_id{n}))
      if (!is_absent(other)) told[n].addresses[other] = contributions[other.value()].address;
  for (const auto& [at, buddy] : buddies)
    told[c.places.node_of(replica_id{0}, at.first, at.second).value()].buddies[at] = buddy;
  return told;
}

result<std::unique_ptr<ucx_transport>> open_wire(const cluster& c, const hosted_parts& hosted) {
  ucx_options options;
  options.node = c.members->node();
  options.job_token = c.start.token;
  options.epoch = c.epoch;
  // Polling is free only if each node has a core to compute on and one to receive on.
  if (2 * c.start.machines.neighbours > std::thread::hardware_concurrency())
    options.spin = std::chrono::microseconds{0};
  options.after_round = run_collected_actors;
  // Whoever may connect to a port of UCX can crash the process, and memory needs no port.
  if (c.transport.tls != "auto")
    options.tls = c.transport.tls;
  else if (c.start.machines.is_one)
    options.tls = "^tcp";
  if (job::is_loopback(c.transport.listen)) options.net_devices = "lo";
  options.checksum_data = !c.start.machines.is_one;
  options.inflight_bytes_max = options.message_bytes_max = c.transport.inflight_bytes;
  auto memory = hosted.memory_of_arrivals();
  options.memory = std::move(memory.host);
  options.enter_thread = std::move(memory.enter_thread);
  if (auto room = ucx::check_shared_memory(options.tls, c.start.machines.neighbours); !room)
    return room.failure();
  auto wire = ucx_transport::open(std::move(options));
  if (wire && memory.on_devices && (*wire)->takes_cuda())
    (*wire)->fetch_to_devices(std::move(memory.on_devices));
  return wire;
}

void set_routes(ucx_transport& wire, const job::node_places& places, const session_setup& setup) {
  for (std::uint32_t n = 0; n < places.nodes(); ++n) wire.route(copies_at(node_id{n}), node_id{n});
  for (const auto& a : setup.all_ranks()) wire.route(a, places.node_of(a.replica, a.stage, a.rank));
}

/// The transport only knows that the connection failed; the membership may soon know the cause.
error why_lost(membership& members, error hint) {
  const auto known = members.loss(unexplained_loss_time);
  return error{known ? known->why : hint.message, error_kind::node_lost};
}

}  // namespace

cluster_link::cluster_link(const cluster& in_cluster, ucx_transport& wire,
                           std::chrono::milliseconds limit)
    : cluster_(in_cluster), wire_(wire), limit_(limit) {}

result<cluster_link::opened> cluster_link::open(const cluster& in_cluster,
                                                const session_setup& setup,
                                                const hosted_parts& hosted,
                                                const result<std::string>& text) {
  auto& members = *in_cluster.members;
  auto wire = text ? open_wire(in_cluster, hosted) : text.failure();
  const auto mine = [&]() -> result<link_contribution> {
    if (!wire) return wire.failure();
    return link_contribution{(*wire)->address(), metrics::steady_now(), hosted.sides(),
                             hosted.restored(), *text};
  };
  auto told = agree<link_contribution, link_peers>(
      members, mine(),
      [&](const std::vector<link_contribution>& contributions) -> result<std::vector<link_peers>> {
        std::vector<std::string> restored;
        for (std::size_t n = 0; n < contributions.size(); ++n)
          if (!members.members()[n].is_absent) restored.push_back(contributions[n].restored);
        if (auto all = hosted.check_restored(std::move(restored)); !all) return all.failure();
        return introduce(in_cluster, setup, contributions);
      });
  if (!told) return told.failure();

  opened o;
  o.sides = hosted.sides();
  o.sides.merge(told->sides);
  o.buddies = std::move(told->buddies);
  o.told = std::move(told->texts);
  auto& own = **wire;
  o.link.reset(new cluster_link{in_cluster, own, to_ms(in_cluster.transport.join_timeout_s)});
  o.wire = *std::move(wire);  // destroyed before the link, to which it reports failures
  own.on_failure(std::bind_front(&cluster_link::report_unreachable, o.link.get()));
  auto& connected = o.link->connected_;
  for (const auto& [peer, address] : told->addresses) {
    if (!connected) break;
    if (auto one = own.connect(peer, address); !one) connected = why_lost(members, one.failure());
  }
  set_routes(own, in_cluster.places, setup);
  // All processes of a machine have the same clock.
  const auto offset =
      in_cluster.start.machines.is_one ? std::chrono::nanoseconds{0} : members.clock_offset();
  o.start = steady_clock::time_point{std::chrono::nanoseconds{told->start} - offset};
  return o;
}

messaging::transport_counts cluster_link::count() const { return wire_.counters(); }

std::string cluster_link::transports(bool has_device_memory) const {
  if (!has_device_memory) return wire_.transports();
  return wire_.transports() + "; device memory is " +
         (wire_.takes_cuda() ? "sent directly" : "staged");
}

status cluster_link::meet(const directory& actors) {
  wire_.on_actor_message(
      [&actors](node_id, std::string_view message) { return actors.deliver(message); });
  return agree_on(*cluster_.members, connected_, limit_);
}

void cluster_link::watch(const caf::actor& watcher) {
  {
    const std::lock_guard lock{mutex_};
    watcher_ = watcher;
    if (watcher_ && !unreachable_.empty())
      post(watcher_, suspected{{std::exchange(unreachable_, {}), error_kind::node_lost}});
  }
  if (watcher)
    cluster_.members->on_node_waits([watcher](node_id n) { post(watcher, node_waits{n}); });
  else
    cluster_.members->on_node_waits(nullptr);
  cluster_.members->on_lost([this, watcher](node_id n, std::string why) {
    // The cause comes before what it lets fail.
    if (watcher) post(watcher, node_lost{why});
    wire_.give_up(n, std::move(why));
  });
}

void cluster_link::report_unreachable(node_id node, const std::string& why) {
  has_lost_connections_ = true;
  auto text = fmt::format("node {} cannot be reached: {}", node.value(), why);
  const std::lock_guard lock{mutex_};
  if (watcher_)
    post(watcher_, suspected{{std::move(text), error_kind::node_lost}});
  else if (unreachable_.empty())
    unreachable_ = std::move(text);
}

std::string cluster_link::finish(trace_recorder* trace) {
  auto& members = *cluster_.members;
  const auto share = std::min(gather_bytes_max, traces_bytes_max / members.nodes());
  std::vector<std::string> traces;
  const auto over = members.exchange(
      trace == nullptr || members.leads() ? std::string{} : trace->to_bytes(share),
      trace == nullptr ? finish_time_max : traces_time, [&](std::vector<std::string> all) {
        traces = std::move(all);
        return std::vector<std::string>(1);
      });
  if (trace == nullptr || !members.leads()) return {};
  if (!over)
    return "only the tasks of node " + std::to_string(members.node().value()) + ": " +
           over.message();
  std::string untraced;
  for (std::size_t n = 1; n < traces.size(); ++n) {
    trace->add_bytes(traces[n]);
    if (traces[n].empty() && !members.members()[n].is_absent)
      untraced += fmt::format("{}{}", untraced.empty() ? "" : ", ", n);
  }
  return untraced.empty() ? untraced : "no tasks of nodes started without a trace: " + untraced;
}

}  // namespace rrfp::actors
