#include <rrfp/core/recovery_point.hpp>

#include <algorithm>
#include <iterator>
#include <utility>

#include <rrfp/base/check.hpp>

namespace rrfp {

void recovery_card::finish_run(run_record summary) {
  finished.push_back(std::move(summary));
  steps = 0;
  began_after.reset();
}

namespace {

/// The newest step of which every rank's copy is held by a node whose card is among `cards`.
void choose_copies(std::span<const recovery_card> cards, std::uint32_t ranks,
                   recovery_point& point) {
  std::map<copy_key, recovery_point::source> held;
  std::map<std::uint64_t, job_record> records;
  for (std::size_t n = 0; n < cards.size(); ++n) {
    // Copies of a run that is over for other nodes are of no use.
    if (cards[n].finished.size() < point.finished.size()) continue;
    if (const auto& mine = cards[n].record; !mine.bytes.empty()) {
      auto& known = records.try_emplace(mine.step, mine).first->second;
      if (known.details.empty()) known.details = mine.details;
    }
    for (const auto& h : cards[n].held)
      held.try_emplace(
          h.what, recovery_point::source{node_id{static_cast<std::uint32_t>(n)}, h.bytes, h.xxh64});
  }
  // As long as no node has the record of a step, none has dropped the copies before it.
  for (auto r = records.rbegin(); r != records.rend(); ++r) {
    const auto of_step = [step = r->first](const auto& h) { return h.first.step == step; };
    if (std::count_if(held.begin(), held.end(), of_step) != ranks) continue;
    std::copy_if(held.begin(), held.end(), std::inserter(point.copies, point.copies.end()),
                 of_step);
    point.record = std::move(r->second);
    return;
  }
}

}  // namespace

recovery_point choose_recovery_point(std::span<const recovery_card> cards,
                                     std::span<const std::uint32_t> ranks) {
  recovery_point point;
  for (const auto& card : cards) {
    if (card.totals.restarts >= point.totals.restarts) point.totals = card.totals;
    if (card.finished.size() > point.finished.size()) {
      point.finished.resize(card.finished.size());
      point.steps = 0;
      point.began_after.reset();
    }
    for (std::size_t run = 0; run < card.finished.size(); ++run) {
      auto& known = point.finished[run];
      if (known.summary.empty()) known.summary = card.finished[run].summary;
      if (known.details.empty()) known.details = card.finished[run].details;
    }
    if (card.finished.size() == point.finished.size()) {
      point.steps = std::max(point.steps, card.steps);
      if (card.began_after) point.began_after = card.began_after;
    }
    if (point.lost.empty()) point.lost = card.lost;
    point.held_s = std::max(point.held_s, card.held_s);
  }
  const auto run = point.finished.size();
  if (run < ranks.size()) choose_copies(cards, ranks[run], point);
  return point;
}

std::vector<recovery_point> parts_of(
    const recovery_point& point, std::uint32_t nodes,
    const std::function<std::vector<node_id>(stage_id, rank_id)>& nodes_of) {
  auto brief = point;
  brief.copies.clear();
  auto briefest = brief;
  briefest.record.details.clear();
  for (auto& run : briefest.finished) run.details.clear();
  std::vector<recovery_point> parts;
  for (std::uint32_t n = 0; n < nodes; ++n)
    parts.push_back(keeps_details(node_id{n}) ? brief : briefest);
  for (const auto& copy : point.copies)
    for (const auto n : nodes_of(copy.first.stage, copy.first.rank))
      parts[n.value()].copies.insert(copy);
  parts[0] = point;
  return parts;
}

std::vector<std::vector<node_id>> stand_ins(std::span<const node_id> places,
                                            std::size_t ranks_of_replica) {
  std::vector<std::vector<node_id>> sets(ranks_of_replica);
  for (std::size_t i = 0; i < places.size(); ++i) sets[i % ranks_of_replica].push_back(places[i]);
  return sets;
}

std::vector<node_id> places_without(std::span<const node_id> absent, std::vector<node_id> places,
                                    std::size_t ranks_of_replica) {
  const auto is_absent = [&](node_id n) { return std::ranges::count(absent, n) > 0; };
  const auto ranks_of = [&](node_id n) { return std::ranges::count(places, n); };
  auto left_of = stand_ins(places, ranks_of_replica);
  for (auto& set : left_of) std::erase_if(set, is_absent);
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (!is_absent(places[i])) continue;
    const auto& left = left_of[i % ranks_of_replica];
    RRFP_CHECK(!left.empty(), "a rank must have a node that is left");
    places[i] = *std::ranges::min_element(left, {}, ranks_of);
  }
  return places;
}

std::optional<node_id> buddy_of(node_id owner, std::span<const node_id> replicas,
                                std::span<const std::string> hosts) {
  std::vector<node_id> candidates{replicas.begin(), replicas.end()};
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
                                std::span<const std::string> hosts) {
  std::vector<node_id> others;
  for (std::uint32_t d = 1; d < replicas; ++d) others.push_back(node_of(replica_id{d}));
  return buddy_of(node_of(replica_id{0}), others, hosts);
}

}  // namespace rrfp
