#include <rrfp/actors/job_cluster.hpp>

#include <sys/resource.h>
#include <xxhash.h>

#include <filesystem>
#include <iterator>
#include <optional>
#include <random>
#include <utility>

#include "agent_store.hpp"

namespace rrfp::actors {

namespace {

/// The hash of the settings that must be equal on all nodes.
std::uint64_t fingerprint(job::job j) {
  j.transport = {};
  const auto text = job::to_toml(j);
  return XXH64(text.data(), text.size(), 0);
}

result<std::uint64_t> draw_token(membership& members) {
  std::random_device random;
  const auto own = std::to_string((std::uint64_t{random()} << 32) ^ random());
  const auto all = members.all_gather(own, std::chrono::seconds{30});
  if (!all) return all.failure();
  std::uint64_t token = 0;
  for (const auto& one : *all) token = XXH64(one.data(), one.size(), token);
  return token;
}

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

result<joined_job> join_job(const job::job& j, const launch_place& place, join_hooks hooks) {
  if (auto enough = check_descriptors(place.nodes); !enough) return enough.failure();
  const auto& t = j.transport;
  membership_options m;
  m.nodes = place.nodes;
  m.node = place.node;
  m.rendezvous_host = place.host;
  m.rendezvous_port = place.port;
  m.listen_fd = hooks.listen_fd;
  m.key_file = t.key_file;
  m.key_fd = hooks.key_fd;
  m.job_id = j.name;
  m.job_hash = fingerprint(j);
  m.version = std::move(hooks.version);
  m.description = std::move(hooks.description);
  m.join_timeout = std::chrono::milliseconds{static_cast<std::int64_t>(t.join_timeout_s * 1e3)};
  std::optional<agent_store> store;
  if (place.is_agents_port) {
    auto connected = agent_store::connect(place, m.join_timeout);
    if (!connected) return connected.failure();
    store = *std::move(connected);
    if (place.node == node_id{0}) {
      m.rendezvous_port = 0;
      m.on_listening = [&](std::uint16_t port) { return store->publish(port); };
    } else {
      const auto port = store->find(hooks.stop);
      if (!port) return port.failure();
      m.rendezvous_port = *port;
    }
  }
  m.heartbeat = std::chrono::milliseconds{t.heartbeat_ms};
  m.node_timeout = std::chrono::milliseconds{t.node_timeout_ms};
  m.stop = std::move(hooks.stop);
  m.on_refused = std::move(hooks.on_refused);
  m.on_gone_early = std::move(hooks.on_gone_early);
  auto members = membership::join(std::move(m), {});
  if (!members) return members.failure();
  auto token = draw_token(**members);
  return joined_job{*std::move(members), std::move(token)};
}

result<std::vector<std::string>> agree(membership& members, const result<std::string>& mine,
                                       std::chrono::milliseconds limit) {
  constexpr char success_mark = '+';
  // The kind of a failure is its mark.
  const auto mark_of = [](error_kind kind) {
    return static_cast<char>('0' + static_cast<int>(kind));
  };
  auto all = members.all_gather(
      mine ? success_mark + *mine : mark_of(mine.failure().kind) + mine.message(), limit);
  if (!all) return all.failure();
  for (std::size_t n = 0; n < all->size(); ++n) {
    auto& answer = (*all)[n];
    const char mark = answer.empty() ? '\0' : answer.front();
    answer.erase(0, 1);
    if (mark == success_mark) continue;
    if (mark < mark_of(error_kind::bad_input) || mark > mark_of(error_kind::interrupted))
      return error{"node " + std::to_string(n) + " contributed to another agreement",
                   error_kind::failed};
    // The cause may be the loss of another node.
    if (auto lost = members.loss()) return error{std::move(lost->why), error_kind::node_lost};
    return error{
        "node " + std::to_string(n) + " (" + members.members()[n].description + "): " + answer,
        static_cast<error_kind>(mark - '0')};
  }
  return all;
}

status agree_on(membership& members, const status& mine) {
  const auto all = agree(
      members, mine ? result<std::string>{std::string{}} : result<std::string>{mine.failure()});
  return all ? success() : status{all.failure()};
}

}  // namespace rrfp::actors
