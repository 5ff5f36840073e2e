#include "cluster_link.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <rrfp/actors/job_cluster.hpp>

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

/// If all nodes use loopback addresses, their data never leaves this machine's memory.
bool is_one_machine(const std::vector<member>& members) {
  return std::all_of(members.begin(), members.end(),
                     [](const member& m) { return job::is_loopback(m.host); });
}

/// Returns the information of all nodes, by node. The members were checked to be of the same
/// version, so a parse error is an internal error and throws.
result<std::vector<json>> exchange_node_info(membership& members, const result<json>& mine,
                                             std::chrono::milliseconds limit) {
  const auto all =
      agree(members, mine ? result<std::string>{to_bytes(*mine)} : mine.failure(), limit);
  if (!all) return all.failure();
  std::vector<json> infos;
  for (const auto& bytes : *all) infos.push_back(json::from_cbor(bytes));
  return infos;
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
  const std::chrono::milliseconds limit{
      static_cast<std::int64_t>(in_cluster.transport.join_timeout_s * 1e3)};
  ucx_options options;
  options.node = members.node();
  options.job_token = in_cluster.job_token;
  options.epoch = in_cluster.epoch;
  options.memory = std::move(memory.host);
  options.enter_thread = std::move(memory.enter_thread);
  options.after_round = [] { run_collected_actors(); };
  // Whoever may connect to a port of UCX can crash the process, and memory needs no port.
  if (in_cluster.transport.tls != "auto")
    options.tls = in_cluster.transport.tls;
  else if (is_one_machine(members.members()))
    options.tls = "^tcp";
  if (job::is_loopback(in_cluster.transport.listen)) options.net_devices = "lo";
  options.checksum_data = !is_one_machine(members.members());
  options.inflight_bytes_max = options.message_bytes_max = in_cluster.transport.inflight_bytes;
  const auto& own_host = members.members()[members.node().value()].host;
  const auto neighbours = std::count_if(members.members().begin(), members.members().end(),
                                        [&](const member& m) { return m.host == own_host; });
  const auto room = ucx::check_shared_memory(options.tls, static_cast<std::uint32_t>(neighbours));
  auto wire = room ? ucx_transport::open(std::move(options)) : room.failure();
  if (wire && memory.on_devices && (*wire)->takes_cuda())
    (*wire)->fetch_to_devices(std::move(memory.on_devices));

  const auto own_info = [&]() -> result<json> {
    if (!wire) return wire.failure();
    json info{{"address", binary((*wire)->address())}, {"start", nanoseconds(start)}};
    for (const auto& [stage, side] : sides)
      info["ties"].push_back({stage.value(), static_cast<int>(side)});
    return info;
  };
  const auto exchanged = exchange_node_info(members, own_info(), limit);
  if (!exchanged) return exchanged.failure();
  const auto& infos = *exchanged;

  opened o;
  o.sides = sides;
  auto& own = **wire;
  o.link.reset(new cluster_link{in_cluster, own, limit});
  o.wire = *std::move(wire);  // destroyed before the link, to which it reports failures
  own.on_failure([link = o.link.get()](node_id n, std::string why) {
    link->report_unreachable(fmt::format("node {} cannot be reached: {}", n.value(), why));
  });
  auto& connected = o.link->connected_;
  for (std::uint32_t n = 0; n < infos.size(); ++n) {
    const auto& other = infos[n];
    for (const auto& tie : other.value("ties", json::array()))
      o.sides[stage_id{tie[0].get<std::uint32_t>()}] = static_cast<compute::tie>(tie[1].get<int>());
    if (node_id{n} == members.node() || !connected) continue;
    if (auto made = own.connect(node_id{n}, text_of(other.at("address"))); !made)
      connected = why_lost(members, made.failure());
  }
  for (std::uint32_t d = 0; d < setup.replicas; ++d)
    for (std::uint32_t s = 0; s < setup.shape.stages; ++s)
      for (std::uint32_t r = 0; r < setup.ranks; ++r) {
        const rank_address to{stage_id{s}, rank_id{r}, replica_id{d}};
        own.route(to, in_cluster.places.node_of(to.replica, to.stage, to.rank));
      }
  const std::chrono::nanoseconds began{infos[0].at("start").get<std::int64_t>()};
  // All processes of a machine have the same clock.
  const auto offset =
      is_one_machine(members.members()) ? std::chrono::nanoseconds{0} : members.clock_offset();
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
  const auto all = agree(*cluster_.members, connected_, limit_);
  return all ? success() : status{all.failure()};
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
  const auto share = std::min(gather_bytes_max, traces_bytes_max / members.members().size());
  const auto all =
      members.gather(trace == nullptr || leads() ? std::string{} : trace->to_bytes(share),
                     trace == nullptr ? finish_time_max : traces_time);
  if (trace == nullptr || !leads()) return {};
  if (!all) return "only the tasks of node 0: " + all.message();
  std::string untraced;
  for (std::size_t n = 1; n < all->size(); ++n) {
    trace->add_bytes((*all)[n]);
    if ((*all)[n].empty()) untraced += fmt::format("{}{}", untraced.empty() ? "" : ", ", n);
  }
  return untraced.empty() ? untraced : "no tasks of nodes started without a trace: " + untraced;
}

}  // namespace rrfp::actors
