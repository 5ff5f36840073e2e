#include <rrfp/core/placement.hpp>

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>

#include <rrfp/base/enum_names.hpp>

namespace rrfp {

std::string_view name(placement p) { return name_in({"linear", "interleaved", "v"}, p); }

std::optional<placement> placement_of(std::string_view text) {
  for (const auto p : {placement::linear, placement::interleaved, placement::v})
    if (name(p) == text) return p;
  return std::nullopt;
}

virtual_stage_id pipeline_shape::virtual_stage(stage_id stage, chunk_id chunk) const {
  RRFP_CHECK(stage.value() < stages && chunk.value() < chunks, "stage or chunk out of range");
  switch (layout) {
    case placement::linear:
    case placement::interleaved: return virtual_stage_id{chunk.value() * stages + stage.value()};
    case placement::v:
      return virtual_stage_id{chunk.value() == 0 ? stage.value() : 2 * stages - 1 - stage.value()};
  }
  RRFP_CHECK(false, "unknown placement");
}

chunk_position pipeline_shape::at(virtual_stage_id vs) const {
  RRFP_CHECK(vs.value() < virtual_stages(), "virtual stage out of range");
  const auto chunk = vs.value() / stages;
  const auto place = vs.value() % stages;
  const bool turned = layout == placement::v && chunk == 1;
  return {stage_id{turned ? stages - 1 - place : place}, chunk_id{chunk}};
}

std::optional<placed_task> pipeline_shape::neighbour(stage_id stage, const task& t,
                                                     bool behind) const {
  if (t.kind == task_kind::weight) return std::nullopt;
  const auto vs = virtual_stage(stage, t.chunk);
  if (behind ? is_last(vs) : is_first(vs)) return std::nullopt;
  const virtual_stage_id to{behind ? vs.value() + 1 : vs.value() - 1};
  const auto place = at(to);
  const auto kind = is_backward(t.kind) ? task_kind::backward : task_kind::forward;
  return placed_task{to, place.stage, {kind, t.mb, place.chunk}};
}

std::optional<placed_task> pipeline_shape::producer_of(stage_id stage, const task& t) const {
  return neighbour(stage, t, is_backward(t.kind));
}

std::optional<placed_task> pipeline_shape::consumer_of(stage_id stage, const task& t) const {
  return neighbour(stage, t, !is_backward(t.kind));
}

std::uint32_t microbatch_counts::first_of(replica_id replica) const {
  const auto first = by_replica.begin();
  return std::accumulate(first, first + replica.value(), 0U);
}

replica_id microbatch_counts::replica_of(microbatch_id mb) const {
  RRFP_CHECK(mb.value() < total(), "the microbatch must belong to the step");
  replica_id replica;
  for (auto left = mb.value(); left >= of(replica); replica = replica_id{replica.value() + 1})
    left -= of(replica);
  return replica;
}

std::uint32_t microbatch_counts::total() const {
  return std::accumulate(by_replica.begin(), by_replica.end(), 0U);
}

std::vector<sum_part> microbatch_shares::parts_of(replica_id replica) const {
  if (are_own()) {
    if (counts.of(replica) == 0) return {};
    return {{replica, counts.first_of(replica), counts.of(replica)}};
  }
  std::uint32_t first = 0;
  for (const auto before : order) {
    if (before == replica) break;
    first += of(before);
  }
  const auto end = first + of(replica);
  std::vector<sum_part> parts;
  while (first < end) {
    const auto sum = counts.replica_of(microbatch_id{first});
    const auto end_of_sum = counts.first_of(sum) + counts.of(sum);
    const auto end_of_part = std::min(end, end_of_sum);
    parts.push_back({sum, first, end_of_part - first, first == counts.first_of(sum),
                     end_of_part == end_of_sum});
    first = end_of_part;
  }
  if (parts.size() > 1 && !parts.back().closes) std::ranges::rotate(parts, parts.end() - 1);
  const auto opened = std::ranges::find(parts, false, &sum_part::opens);
  if (opened != parts.end()) std::rotate(opened, opened + 1, parts.end());
  return parts;
}

microbatch_shares::place microbatch_shares::place_of(replica_id replica, microbatch_id mb) const {
  if (are_own()) return {replica, mb};
  auto left = mb.value();
  for (const auto& part : parts_of(replica)) {
    if (left < part.count)
      return {part.sum, microbatch_id{part.first + left - counts.first_of(part.sum)}};
    left -= part.count;
  }
  RRFP_CHECK(false, "the microbatch must belong to the step");
}

replica_id microbatch_shares::runner_of(microbatch_id mb) const {
  if (are_own()) return counts.replica_of(mb);
  auto left = mb.value();
  for (const auto replica : order) {
    if (left < of(replica)) return replica;
    left -= of(replica);
  }
  RRFP_CHECK(false, "the microbatch must belong to the step");
}

status microbatch_shares::validate(std::uint32_t replicas) const {
  const auto differ = [](std::string_view what, std::uint64_t expected, std::uint64_t got) {
    return error{std::string{what} + ": expected " + std::to_string(expected) + ", got " +
                 std::to_string(got)};
  };
  if (counts.by_replica.size() != replicas)
    return differ("the counts of microbatches", replicas, counts.by_replica.size());
  if (are_own()) return success();
  if (shares.size() != replicas) return differ("the shares", replicas, shares.size());
  std::vector<bool> seen(replicas);
  for (const auto r : order)
    if (r.value() < replicas) seen[r.value()] = true;
  if (order.size() != replicas || std::ranges::count(seen, true) != replicas)
    return error{"the order of the shares: expected each replica once"};
  const auto all = std::accumulate(shares.begin(), shares.end(), std::uint64_t{0});
  if (all != counts.total()) return differ("the sum of the shares", counts.total(), all);
  return success();
}

status pipeline_shape::validate() const {
  if (stages == 0) return error{"stages: expected at least 1, got 0"};
  if (chunks == 0) return error{"chunks: expected at least 1, got 0"};
  if (microbatches == 0) return error{"microbatches: expected at least 1, got 0"};
  if (layout == placement::linear && chunks != 1)
    return error{"placement linear: expected chunks = 1, got " + std::to_string(chunks)};
  if (layout == placement::v && chunks != 2)
    return error{"placement v: expected chunks = 2, got " + std::to_string(chunks)};
  return success();
}

std::string_view name(admission a) { return name_in({"loaded", "small_large_small"}, a); }

std::vector<std::uint32_t> admission_order(admission a, std::span<const double> cost) {
  std::vector<std::uint32_t> order(cost.size());
  std::iota(order.begin(), order.end(), 0U);
  const bool differ = std::ranges::adjacent_find(cost, std::not_equal_to{}) != cost.end();
  if (a == admission::loaded || !differ) return order;
  // Deal the sorted microbatches to the two ends in turn, so that the largest meet in the middle.
  std::ranges::stable_sort(order, {}, [&](std::uint32_t i) { return cost[i]; });
  std::vector<std::uint32_t> dealt(order.size());
  std::size_t front = 0;
  std::size_t back = order.size();
  for (std::size_t i = 0; i < order.size(); ++i) dealt[i % 2 == 0 ? front++ : --back] = order[i];
  return dealt;
}

}  // namespace rrfp
