#include <rrfp/job/node_places.hpp>

#include <algorithm>

#include <rrfp/base/check.hpp>
#include <rrfp/core/recovery_point.hpp>

namespace rrfp::plan {

namespace {

std::string numbers(const std::vector<std::uint32_t>& list) {
  std::string text;
  for (const auto n : list) text += (text.empty() ? "" : ", ") + std::to_string(n);
  return text;
}

}  // namespace

result<node_places> node_places::make(const job::job& j, std::uint32_t nodes) {
  node_places p;
  p.nodes_ = nodes;
  p.replicas_ = j.pipeline.replicas;
  p.stages_ = j.pipeline.stages;
  p.ranks_ = j.pipeline.tp;
  const auto groups = std::size_t{p.replicas_} * p.stages_;
  const auto all = groups * p.ranks_;
  const auto& given = j.pipeline.nodes;
  const auto refused = [&](const std::string& message) {
    return given.empty() ? error{j.source + ": " + message}
                         : job::blame(j, "pipeline.nodes", message);
  };
  RRFP_CHECK(nodes > 0, "nodes must be at least 1");
  if (nodes > all)
    return refused("expected at most as many nodes as ranks, " + std::to_string(all) + ", got " +
                   std::to_string(nodes));
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

std::vector<std::vector<node_id>> node_places::stand_ins() const {
  return rrfp::stand_ins(places_, std::size_t{stages_} * ranks_);
}

node_places node_places::without(std::span<const node_id> absent) const {
  auto p = *this;
  p.places_ = places_without(absent, places_, std::size_t{stages_} * ranks_);
  p.planned_ = places_;
  return p;
}

std::vector<std::uint32_t> node_places::devices() const {
  std::vector<std::uint32_t> devices;
  if (planned_.empty()) return devices;
  const auto share = [&](replica_id a, replica_id b, stage_id stage) {
    for (std::uint32_t r = 0; r < ranks_; ++r) {
      const rank_id rank{r};
      if ((is_moved(a, stage, rank) || is_moved(b, stage, rank)) &&
          node_of(a, stage, rank) == node_of(b, stage, rank))
        return true;
    }
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
  return text;
}

}  // namespace rrfp::plan
