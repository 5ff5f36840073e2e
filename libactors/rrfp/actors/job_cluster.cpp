#include <rrfp/actors/job_cluster.hpp>

#include <sys/resource.h>
#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <rrfp/job/node_places.hpp>

namespace rrfp::actors {

namespace {

/// The hash of the settings that must be equal on all nodes.
std::uint64_t fingerprint(job::job j) {
  j.transport = {};
  const auto text = job::to_toml(j);
  return XXH64(text.data(), text.size(), 0);
}

/// Of a node that has only succeeded.
struct nothing {};
auto fields(auto f, nothing&) { return f(); }

}  // namespace

status check_descriptors(std::uint32_t nodes) {
  // Measured with UCX 1.13, with a margin for data and a checkpoint. Node 0 has a control
  // connection to each other node, and UCX one to each node over TCP.
  constexpr std::uint64_t per_process = 32, per_peer = 2;
  rlimit limit{};
  std::error_code unknown;
  const std::filesystem::directory_iterator open{"/proc/self/fd", unknown};
  if (unknown || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return success();
  const auto in_use = static_cast<std::uint64_t>(std::distance(begin(open), end(open)));
  const auto expected = in_use + per_process + per_peer * nodes;
  if (limit.rlim_cur >= expected) return success();
  return error{"file descriptors: a process may have " + std::to_string(limit.rlim_cur) +
               ", expected at least " + std::to_string(expected) + " for one of " +
               std::to_string(nodes) +
               " nodes: raise the limit (ulimit -n 4096; LimitNOFILE= of systemd)"};
}

status check_threads(const job::job& j, std::uint32_t nodes) {
  // Of the runtime and its libraries; libtorch has one for each core, and so has the scheduler.
  constexpr std::uint32_t per_process = 12, per_core = 2, per_rank = 2;
  const auto& p = j.pipeline;
  const auto ranks = (p.stages * p.tp * p.replicas + nodes - 1) / nodes;
  const auto expected =
      per_process + per_core * std::thread::hardware_concurrency() + per_rank * ranks;
  std::mutex all_started;
  std::vector<std::jthread> threads;
  const std::lock_guard wait{all_started};
  try {
    while (threads.size() < expected)
      threads.emplace_back([&] { const std::lock_guard started{all_started}; });
  } catch (const std::system_error& e) {
    rlimit limit{};
    const bool known = ::getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    return error{"threads: cannot start thread " + std::to_string(threads.size() + 1) + " of " +
                 std::to_string(expected) + " that a node needs: " + e.code().message() +
                 (known ? "; the limit of this user is " + std::to_string(limit.rlim_cur) : "") +
                 ": raise it (ulimit -u; LimitNPROC= or TasksMax= of systemd; pids.max of a "
                 "container)"};
  }
  return success();
}

result<std::unique_ptr<membership>> join_job(const job::job& j, const launch_place& place,
                                             const framework& framework, membership_options m) {
  if (auto enough = check_descriptors(place.nodes); !enough) return enough.failure();
  const auto& t = j.transport;
  m.nodes = place.nodes;
  m.node = place.node;
  m.rendezvous_host = place.host;
  m.rendezvous_port = place.port;
  m.key_file = t.key_file;
  m.job_id = j.name;
  m.job_hash = fingerprint(j);
  if (j.device.kind == job::device_kind::cpu)
    m.vector_instructions = framework.vector_instructions();
  m.join_timeout = to_ms(t.join_timeout_s);
  std::unique_ptr<agent_store> store;
  if (place.is_agents_port) {
    auto connected = framework.connect_store(place, m.join_timeout);
    if (!connected) return connected.failure();
    store = *std::move(connected);
    if (place.node == node_id{0}) {
      m.rendezvous_port = 0;
      m.on_listening = [&](std::uint16_t port) { return store->publish(port); };
    } else {
      const auto port = store->find(m.stop);
      if (!port) return port.failure();
      m.rendezvous_port = *port;
    }
  }
  m.heartbeat = std::chrono::milliseconds{t.heartbeat_ms};
  m.node_timeout = std::chrono::milliseconds{t.node_timeout_ms};
  if (j.recovery.may_lack_nodes()) {
    const auto places = job::node_places::make(j, place.nodes);
    if (!places) return places.failure();
    m.hosts = places->hosts();
  }
  // The others may have ended already. A node that was lost as well is started again by then.
  m.telling_max =
      std::min(to_ms(j.recovery.hold_s),
               std::max<std::chrono::milliseconds>(std::chrono::seconds{10}, 4 * m.node_timeout));
  return membership::join(std::move(m));
}

error failure_of_node(membership& members, std::size_t n, const error& why) {
  // The cause may be the loss of another node.
  if (auto lost = members.loss()) return {std::move(lost->why), error_kind::node_lost};
  return within("node " + std::to_string(n) + " (" + members.members()[n].description + ")", why);
}

status agree_on(membership& members, const status& mine, std::chrono::milliseconds limit) {
  const auto all = agree<nothing, nothing>(
      members, mine ? result<nothing>{nothing{}} : mine.failure(),
      [](const auto&) { return result{std::vector<nothing>(1)}; }, limit);
  return all ? success() : status{all.failure()};
}

}  // namespace rrfp::actors
