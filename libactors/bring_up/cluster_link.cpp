#include "cluster_link.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <rrfp/actors/job_cluster.hpp>
#include <rrfp/transport_core/connections.hpp>

#include "control/messages.hpp"
#include "transport/ucx/shared_memory.hpp"

namespace rrfp::actors {

namespace {

using nlohmann::json;
using std::chrono::steady_clock;

std::string to_bytes(const json& info) {
  const auto cbor = json::to_cbor(info);
  return {cbor.begin(), cbor.end()};
}

std::int64_t nanoseconds(steady_clock::time_point t) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(t.time_since_epoch()).count();
}

/// How long nodes may take to end after the last step; the maximum size of all traces on node 0,
/// and how long gathering them may take.
constexpr std::chrono::seconds finish_time_max{10};
constexpr std::size_t traces_bytes_max = std::size_t{1} << 30;
constexpr std::chrono::seconds traces_time{120};

json binary(const std::string& bytes) { return json::binary({bytes.begin(), bytes.end()}); }

std::string text_of(const json& binary) {
  const auto& bytes = binary.get_binary();
  return {bytes.begin(), bytes.end()};
}

using places = std::map<std::pair<stage_id, rank_id>, node_id>;

/// Returns the places of the copies of replica 0, the only ranks that are copied.
places buddies_of(const cluster& c, const session_setup& setup) {
  std::vector<std::string> hosts;
  for (const auto& m : c.members->members()) hosts.push_back(m.host);
  places all;
  for (std::uint32_t s = 0; s < setup.shape.stages; ++s)
    for (std::uint32_t r = 0; r < setup.ranks; ++r)
      if (const auto buddy = buddy_of(
              setup.replicas,
              [&](replica_id d) { return c.places.node_of(d, stage_id{s}, rank_id{r}); }, hosts))
        all[{stage_id{s}, rank_id{r}}] = *buddy;
  return all;
}

ucx::connections connections_of(const cluster& c, const session_setup& setup,
                                const std::vector<stage_id>& tied, const places& buddies) {
  const auto node_of = [&](replica_id d, stage_id s, rank_id r) {
    return c.places.node_of(d, s, r);
  };
  std::vector<stage_id> path;
  for (std::uint32_t v = 0; v < setup.shape.virtual_stages(); ++v)
    path.push_back(setup.shape.at(virtual_stage_id{v}).stage);
  ucx::connections all{
      {c.places.nodes(), setup.shape.stages, path, setup.ranks, setup.replicas, node_of}};
  for (std::uint32_t d = 0; d < setup.replicas; ++d)
    for (std::uint32_t r = 0; r < setup.ranks; ++r)
      for (const auto a : tied)
        for (const auto b : tied)
          all.add(node_of(replica_id{d}, a, rank_id{r}), node_of(replica_id{d}, b, rank_id{r}));
  for (const auto& [at, buddy] : buddies)
    all.add(node_of(replica_id{0}, at.first, at.second), buddy);
  if (!setup.recovery) return all;
  for (const auto& [what, source] : setup.recovery->from.copies)
    for (std::uint32_t d = 0; d < setup.replicas; ++d)
      all.add(node_of(replica_id{d}, what.stage, what.rank), source.node);
  return all;
}

/// What node 0 tells each node of the others: the nodes that it connects to, and who holds the
/// second copies of its ranks. The members were checked to be of the same version, so a parse error
/// is an internal error and throws.
std::vector<std::string> introduce(const cluster& c, const session_setup& setup,
                                   const std::vector<std::string>& all) {
  std::vector<json> infos;
  for (const auto& bytes : all) infos.push_back(json::from_cbor(bytes));
  auto ties = json::array();
  std::vector<stage_id> tied;
  for (const auto& info : infos)
    for (const auto& tie : info.value("ties", json::array())) {
      ties.push_back(tie);
      tied.emplace_back(tie[0].get<std::uint32_t>());
    }
  const auto buddies = setup.recovery ? buddies_of(c, setup) : places{};
  const auto peers = connections_of(c, setup, tied, buddies);
  std::vector<json> told;
  for (std::uint32_t n = 0; n < infos.size(); ++n) {
    told.push_back({{"start", infos[0].at("start")}, {"ties", ties}, {"buddies", json::array()}});
    for (const auto other : peers.of(node_id{n}))
      told[n]["peers"].push_back({other.value(), infos[other.value()].at("address")});
  }
  for (const auto& [at, buddy] : buddies)
    told[c.places.node_of(replica_id{0}, at.first, at.second).value()]["buddies"].push_back(
        {at.first.value(), at.second.value(), buddy.value()});
  std::vector<std::string> bytes;
  for (const auto& one : told) bytes.push_back(to_bytes(one));
  return bytes;
}

ucx_options options_of(const cluster& c) {
  ucx_options options;
  options.node = c.members->node();
  options.job_token = c.start.token;
  options.epoch = c.epoch;
  options.after_round = [] { run_collected_actors(); };
  // Whoever may connect to a port of UCX can crash the process, and memory needs no port.
  if (c.transport.tls != "auto")
    options.tls = c.transport.tls;
  else if (c.start.machines.is_one)
    options.tls = "^tcp";
  if (job::is_loopback(c.transport.listen)) options.net_devices = "lo";
  options.checksum_data = !c.start.machines.is_one;
  options.inflight_bytes_max = options.message_bytes_max = c.transport.inflight_bytes;
  return options;
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
                                                const std::map<stage_id, compute::tie>& sides,
                                                steady_clock::time_point start,
                                                arrival_memory memory) {
  auto& members = *in_cluster.members;
  const auto& machines = in_cluster.start.machines;
  const std::chrono::milliseconds limit{
      static_cast<std::int64_t>(in_cluster.transport.join_timeout_s * 1e3)};
  auto options = options_of(in_cluster);
  options.memory = std::move(memory.host);
  options.enter_thread = std::move(memory.enter_thread);
  const auto room = ucx::check_shared_memory(options.tls, machines.neighbours);
  auto wire = room ? ucx_transport::open(std::move(options)) : room.failure();
  if (wire && memory.on_devices && (*wire)->takes_cuda())
    (*wire)->fetch_to_devices(std::move(memory.on_devices));

  const auto own_info = [&]() -> result<std::string> {
    if (!wire) return wire.failure();
    json info{{"address", binary((*wire)->address())}, {"start", nanoseconds(start)}};
    for (const auto& [stage, side] : sides)
      if (side != compute::tie::none)
        info["ties"].push_back({stage.value(), static_cast<int>(side)});
    return to_bytes(info);
  };
  const auto answer = agree(
      members, own_info(),
      [&](const std::vector<std::string>& all) { return introduce(in_cluster, setup, all); },
      limit);
  if (!answer) return answer.failure();
  const auto told = json::from_cbor(*answer);

  opened o;
  o.sides = sides;
  auto& own = **wire;
  o.link.reset(new cluster_link{in_cluster, own, limit});
  o.wire = *std::move(wire);  // destroyed before the link, to which it reports failures
  own.on_failure([link = o.link.get()](node_id n, std::string why) {
    link->report_unreachable(fmt::format("node {} cannot be reached: {}", n.value(), why));
  });
  for (const auto& tie : told.at("ties"))
    o.sides[stage_id{tie[0].get<std::uint32_t>()}] = static_cast<compute::tie>(tie[1].get<int>());
  for (const auto& b : told.at("buddies"))
    o.buddies[{stage_id{b[0].get<std::uint32_t>()}, rank_id{b[1].get<std::uint32_t>()}}] =
        node_id{b[2].get<std::uint32_t>()};
  auto& connected = o.link->connected_;
  for (const auto& peer : told.value("peers", json::array())) {
    if (!connected) break;
    const node_id n{peer[0].get<std::uint32_t>()};
    if (auto made = own.connect(n, text_of(peer[1])); !made)
      connected = why_lost(members, made.failure());
  }
  for (std::uint32_t d = 0; d < setup.replicas; ++d)
    for (std::uint32_t s = 0; s < setup.shape.stages; ++s)
      for (std::uint32_t r = 0; r < setup.ranks; ++r) {
        const rank_address to{stage_id{s}, rank_id{r}, replica_id{d}};
        own.route(to, in_cluster.places.node_of(to.replica, to.stage, to.rank));
      }
  const std::chrono::nanoseconds began{told.at("start").get<std::int64_t>()};
  // All processes of a machine have the same clock.
  const auto offset = machines.is_one ? std::chrono::nanoseconds{0} : members.clock_offset();
  o.start = steady_clock::time_point{began - offset};
  return o;
}

metrics::transport_numbers cluster_link::count() const {
  const auto c = wire_.counters();
  return {c.sent,
          c.sent_bytes,
          c.received,
          c.received_bytes,
          c.dropped_duplicate,
          c.dropped_stale + c.dropped_invalid + c.dropped_unreachable,
          c.announced,
          c.inflight_bytes};
}

bool cluster_link::leads() const { return cluster_.members->node() == node_id{0}; }

status cluster_link::meet(const directory& actors) {
  wire_.on_mail([&actors](node_id, std::string_view mail) { return actors.deliver(mail); });
  return agree_on(*cluster_.members, connected_, limit_);
}

void cluster_link::watch(const caf::actor& watcher) {
  {
    const std::lock_guard lock{mutex_};
    watcher_ = watcher;
    if (watcher_ && !unreachable_.empty())
      post(watcher_, node_unreachable{std::exchange(unreachable_, {})});
  }
  if (!watcher) return cluster_.members->on_lost(nullptr);
  cluster_.members->on_lost([this, watcher](node_id n, std::string why) {
    wire_.give_up(n, why);
    post(watcher, node_lost{std::move(why)});
  });
}

void cluster_link::report_unreachable(std::string why) {
  const std::lock_guard lock{mutex_};
  if (watcher_)
    post(watcher_, node_unreachable{std::move(why)});
  else if (unreachable_.empty())
    unreachable_ = std::move(why);
}

std::string cluster_link::finish(trace_recorder* trace) {
  auto& members = *cluster_.members;
  const auto share = std::min(gather_bytes_max, traces_bytes_max / members.nodes());
  std::vector<std::string> traces;
  const auto over = members.exchange(
      trace == nullptr || leads() ? std::string{} : trace->to_bytes(share),
      trace == nullptr ? finish_time_max : traces_time, [&](std::vector<std::string> all) {
        traces = std::move(all);
        return std::vector<std::string>(1);
      });
  if (trace == nullptr || !leads()) return {};
  if (!over) return "only the tasks of node 0: " + over.message();
  std::string untraced;
  for (std::size_t n = 1; n < traces.size(); ++n) {
    trace->add_bytes(traces[n]);
    if (traces[n].empty()) untraced += fmt::format("{}{}", untraced.empty() ? "" : ", ", n);
  }
  return untraced.empty() ? untraced : "no tasks of nodes started without a trace: " + untraced;
}

}  // namespace rrfp::actors
