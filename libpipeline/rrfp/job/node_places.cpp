#include <rrfp/job/node_places.hpp>

#include <algorithm>

#include <rrfp/base/check.hpp>

namespace rrfp::job {

namespace {

std::string numbers(const std::vector<std::uint32_t>& list) {
  std::string text;
  for (const auto n : list) text += (text.empty() ? "" : ", ") + std::to_string(n);
  return text;
}

}  // namespace

result<node_places> node_places::make(const job& j, std::uint32_t nodes) {
  node_places p;
  p.nodes_ = nodes;
  p.replicas_ = j.pipeline.replicas;
  p.stages_ = j.pipeline.stages;
  p.ranks_ = j.pipeline.tp;
  const auto groups = std::size_t{p.replicas_} * p.stages_;
  const auto all = groups * p.ranks_;
  const auto& given = j.pipeline.nodes;
  const auto refused = [&](const std::string& message) {
    return given.empty() ? error{j.source + ": " + message} : blame(j, "pipeline.nodes", message);
  };
  RRFP_CHECK(nodes > 0, "nodes must be at least 1");
  const auto spares = nodes == 1 ? 0 : j.recovery.spares;
  if (spares >= nodes)
    return blame(j, "recovery.spares",
                 "expected fewer spares than nodes, " + std::to_string(nodes) + ", got " +
                     std::to_string(spares));
  for (auto n = nodes - spares; n < nodes; ++n) p.hosts_.spares.emplace_back(n);
  nodes -= spares;
  if (nodes > all)
    return refused("expected at most as many nodes as ranks, " + std::to_string(all) + ", got " +
                   std::to_string(nodes) + (spares == 0 ? "" : " beside the spares"));
  if (!given.empty() && given.size() != groups && given.size() != all)
    return refused("expected " + std::to_string(groups) + " entries (one per stage and replica)" +
                   (all == groups ? "" : " or " + std::to_string(all) + " (one per rank)") +
                   ", got " + std::to_string(given.size()));
  for (std::size_t i = 0; i < all; ++i) {
    const auto node = given.empty()            ? static_cast<std::uint32_t>(i * nodes / all)
                      : given.size() == groups ? given[i / p.ranks_]
                                               : given[i];
    if (node >= nodes)
      return refused("expected node numbers below " + std::to_string(nodes) + ", got " +
                     std::to_string(node));
    p.places_.emplace_back(node);
  }
  for (std::uint32_t n = 0; n < nodes; ++n)
    if (std::find(p.places_.begin(), p.places_.end(), node_id{n}) == p.places_.end())
      return refused("node " + std::to_string(n) + " hosts no rank");
  p.hosts_.nodes = p.places_;
  p.hosts_.ranks_of_replica = std::size_t{p.stages_} * p.ranks_;
  p.hosts_.reroutes = j.recovery.without_replacement == loss_kind::reroute;
  return p;
}

std::size_t node_places::index(replica_id replica, stage_id stage, rank_id rank) const {
  RRFP_CHECK(replica.value() < replicas_ && stage.value() < stages_ && rank.value() < ranks_,
             "the rank must belong to the job");
  return (std::size_t{replica.value()} * stages_ + stage.value()) * ranks_ + rank.value();
}

node_id node_places::node_of(replica_id replica, stage_id stage, rank_id rank) const {
  return places_[index(replica, stage, rank)];
}

node_places node_places::without(std::span<const node_id> absent) const {
  auto p = *this;
  auto left = hosts_.without(absent);
  RRFP_CHECK(left, "each rank must have a node that is left");
  p.places_ = *std::move(left);
  p.lacks_nodes_ = !absent.empty();
  return p;
}

bool node_places::share_device(replica_id a, replica_id b, stage_id stage, rank_id rank) const {
  const auto i = index(a, stage, rank);
  const auto j = index(b, stage, rank);
  return places_[i] == places_[j] && hosts_.nodes[i] != hosts_.nodes[j];
}

std::vector<std::uint32_t> node_places::devices() const {
  std::vector<std::uint32_t> devices;
  if (!lacks_nodes_) return devices;
  const auto share = [&](replica_id a, replica_id b, stage_id stage) {
    for (std::uint32_t r = 0; r < ranks_; ++r)
      if (share_device(a, b, stage, rank_id{r})) return true;
    return false;
  };
  for (std::uint32_t d = 0; d < replicas_; ++d)
    for (std::uint32_t s = 0; s < stages_; ++s) {
      auto device = d * stages_ + s;
      for (std::uint32_t other = 0; other < d; ++other)
        if (share(replica_id{d}, replica_id{other}, stage_id{s}))
          device = devices[other * stages_ + s];
      devices.push_back(device);
    }
  return devices;
}

std::string node_places::describe(node_id node) const {
  std::string text;
  for (std::uint32_t r = 0; r < replicas_; ++r) {
    std::vector<std::uint32_t> whole;
    std::string parts;
    for (std::uint32_t s = 0; s < stages_; ++s) {
      std::vector<std::uint32_t> ranks;
      for (std::uint32_t t = 0; t < ranks_; ++t)
        if (node_of(replica_id{r}, stage_id{s}, rank_id{t}) == node) ranks.push_back(t);
      if (ranks.size() == ranks_) {
        whole.push_back(s);
      } else if (!ranks.empty()) {
        parts += (parts.empty() ? "" : ", ") + std::string{"stage "} + std::to_string(s) +
                 (ranks.size() == 1 ? " rank " : " ranks ") + numbers(ranks);
      }
    }
    if (whole.empty() && parts.empty()) continue;
    if (!text.empty()) text += "; ";
    if (replicas_ > 1) text += "replica " + std::to_string(r) + " ";
    if (!whole.empty()) text += (whole.size() == 1 ? "stage " : "stages ") + numbers(whole);
    if (!whole.empty() && !parts.empty()) text += ", ";
    text += parts;
  }
  return text.empty() ? "spare" : text;
}

}  // namespace rrfp::job
