#include <rrfp/core/rank_hosts.hpp>

#include <algorithm>
#include <set>

namespace rrfp {

namespace {

/// The spares, the one that takes the place of `owner` first.
std::vector<node_id> spares_for(node_id owner, std::span<const node_id> spares) {
  std::vector<node_id> all{spares.begin(), spares.end()};
  if (!all.empty()) std::ranges::rotate(all, all.begin() + owner.value() % all.size());
  return all;
}

}  // namespace

std::optional<std::vector<node_id>> rank_hosts::without(std::span<const node_id> absent) const {
  auto all = nodes;
  std::set<node_id> lost, used;
  for (const auto n : absent) {
    if (std::ranges::count(nodes, n) > 0) lost.insert(n);
    used.insert(n);
  }
  const auto hosts_of = [&](std::size_t rank) {
    std::vector<node_id> hosts;
    for (auto i = rank % ranks_of_replica; reroutes && i < all.size(); i += ranks_of_replica)
      if (!lost.contains(all[i])) hosts.push_back(all[i]);
    return hosts;
  };
  const auto replace = [&](node_id n) {
    for (const auto spare : spares_for(n, spares))
      if (used.insert(spare).second) {
        std::ranges::replace(all, n, spare);
        lost.erase(n);
        return true;
      }
    return false;
  };
  for (std::size_t i = 0; i < all.size(); ++i)
    if (lost.contains(all[i]) && hosts_of(i).empty() && !replace(all[i])) return std::nullopt;
  for (const auto n : std::vector(lost.begin(), lost.end()))
    if (!replace(n)) break;
  const auto ranks_of = [&](node_id n) { return std::ranges::count(all, n); };
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!lost.contains(all[i])) continue;
    const auto hosts = hosts_of(i);
    all[i] = *std::ranges::min_element(hosts, {}, ranks_of);
  }
  return all;
}

std::optional<node_id> buddy_of(node_id owner, std::span<const node_id> replicas,
                                std::span<const node_id> spares,
                                std::span<const std::string> hosts) {
  auto candidates = spares_for(owner, spares);
  candidates.insert(candidates.end(), replicas.begin(), replicas.end());
  const auto nodes = static_cast<std::uint32_t>(hosts.size());
  for (std::uint32_t i = 1; i < nodes; ++i)
    candidates.push_back(node_id{(owner.value() + i) % nodes});
  std::erase(candidates, owner);
  std::erase_if(candidates, [&](node_id n) { return hosts[n.value()].empty(); });
  if (candidates.empty()) return std::nullopt;
  const auto elsewhere = std::find_if(candidates.begin(), candidates.end(), [&](node_id n) {
    return hosts[n.value()] != hosts[owner.value()];
  });
  return elsewhere != candidates.end() ? *elsewhere : candidates.front();
}

std::optional<node_id> buddy_of(std::uint32_t replicas,
                                const std::function<node_id(replica_id)>& node_of,
                                std::span<const node_id> spares,
                                std::span<const std::string> hosts) {
  std::vector<node_id> others;
  for (std::uint32_t d = 1; d < replicas; ++d) others.push_back(node_of(replica_id{d}));
  return buddy_of(node_of(replica_id{0}), others, spares, hosts);
}

}  // namespace rrfp
