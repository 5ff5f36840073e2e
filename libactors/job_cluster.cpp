#include <rrfp/actors/job_cluster.hpp>

#include <xxhash.h>

#include <random>
#include <utility>

namespace rrfp::actors {

namespace {

/// What all nodes must agree on.
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

result<joined_job> join_job(const job::job& j, const launch_place& place, join_hooks hooks) {
  const auto& t = j.transport;
  membership_options m;
  m.nodes = place.nodes;
  m.rank = place.rank;
  m.rendezvous_host = place.host;
  m.rendezvous_port = place.port;
  m.listen_fd = hooks.listen_fd;
  m.key_file = t.key_file;
  m.job_id = j.name;
  m.job_hash = fingerprint(j);
  m.version = std::move(hooks.version);
  m.description = std::move(hooks.description);
  m.join_timeout = std::chrono::milliseconds{static_cast<std::int64_t>(t.join_timeout_s * 1e3)};
  m.heartbeat = std::chrono::milliseconds{t.heartbeat_ms};
  m.node_timeout = std::chrono::milliseconds{t.node_timeout_ms};
  m.stop = std::move(hooks.stop);
  m.on_refused = std::move(hooks.on_refused);
  m.on_gone_early = std::move(hooks.on_gone_early);
  bool may_join_later = false;
  m.may_join_later = &may_join_later;
  auto members = membership::join(std::move(m), {});
  joined_job joined;
  if (!members) {
    if (!may_join_later) return members.failure();
    joined.lost = members.message();
    return joined;
  }
  joined.members = std::move(*members);
  if (const auto token = draw_token(*joined.members); token)
    joined.token = *token;
  else
    joined.lost = token.message();
  return joined;
}

status agree_to_start(membership& members, const status& mine) {
  // A node may read many gigabytes of weights longer than another.
  constexpr std::chrono::minutes limit{30};
  const auto all = members.all_gather(mine ? std::string{} : mine.message(), limit);
  if (!all) return all.failure();
  for (std::size_t n = 0; n < all->size(); ++n) {
    if ((*all)[n].empty()) continue;
    // It may be that what stopped the node is the loss of another one.
    if (auto lost = members.loss(); !lost.empty()) return error{std::move(lost)};
    const auto& description = members.members()[n].description;
    return error{"node " + std::to_string(n) + " (" + description + "): " + (*all)[n]};
  }
  return success();
}

}  // namespace rrfp::actors
