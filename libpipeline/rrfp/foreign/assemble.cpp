#include "assemble.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>

namespace rrfp::foreign {

namespace {

/// Where a rank stands.
struct rank_position {
  std::uint32_t replica = 0;
  std::uint32_t stage = 0;
};

bool names_stages(const rank_tasks& r) {
  return std::ranges::any_of(r.tasks, [](const auto& t) { return t.virtual_stage != unnamed; });
}

/// Microbatches of a step, if the names have no numbers: the forwards until none is left without
/// its backward. On the last stage that is one, so the rank with most of them counts.
std::uint32_t count_microbatches(const std::vector<rank_tasks>& ranks) {
  std::uint32_t most = 0;
  for (const auto& r : ranks) {
    std::int64_t held = 0;
    std::uint32_t forwards = 0;
    for (const auto& t : r.tasks) {
      held += t.kind == task_kind::forward;
      forwards += t.kind == task_kind::forward;
      held -= is_backward(t.kind);
      if (held > 0) continue;
      most = std::max(most, forwards);
      forwards = 0;
    }
  }
  return most;
}

void number_microbatches(rank_tasks& r, std::uint32_t microbatches) {
  std::array<std::uint32_t, task_kinds> next{};
  for (auto& t : r.tasks)
    if (t.microbatch == unnamed)
      t.microbatch = next[static_cast<std::size_t>(t.kind)]++ % microbatches;
}

/// The position of the rank in its pipeline; else in `all`, the ranks of the job.
std::uint32_t position_in(const std::vector<std::uint32_t>& pipeline, std::uint32_t rank,
                          const std::vector<std::uint32_t>& all) {
  const auto& list = pipeline.empty() ? all : pipeline;
  return static_cast<std::uint32_t>(std::ranges::find(list, rank) - list.begin());
}

/// Finds the shape of the run, and the position of each rank in it.
class placer {
 public:
  placer(const std::vector<rank_tasks>& ranks, report::traced_run& run)
      : ranks_(ranks), run_(run) {}

  result<std::vector<rank_position>> place() {
    const bool is_named = std::ranges::any_of(ranks_, names_stages);
    if (auto found = is_named ? by_names() : by_position(); !found) return found.failure();
    std::map<std::uint32_t, std::uint32_t> replicas;  // of each stage
    std::vector<rank_position> placed;
    for (const auto stage : stages_) placed.push_back({replicas[stage]++, stage});
    run_.replicas = replicas[0];
    for (std::uint32_t s = 0; s < run_.shape.stages; ++s)
      if (replicas[s] != run_.replicas || run_.replicas == 0)
        return error{
            fmt::format("{}: expected the traces of all ranks of the pipeline, got {} of stage 0{}",
                        ranks_.front().file, run_.replicas,
                        s == 0 ? "" : fmt::format(" and {} of stage {}", replicas[s], s))};
    return placed;
  }

 private:
  status by_names() {
    std::vector<std::vector<std::uint32_t>> owned;
    for (const auto& r : ranks_) {
      std::set<std::uint32_t> own;
      for (const auto& t : r.tasks) own.insert(t.virtual_stage);
      if (own.contains(unnamed))
        return error{r.file + ": expected virtual stages in all names, got some without"};
      owned.emplace_back(own.begin(), own.end());
    }
    const std::set<std::vector<std::uint32_t>> kinds{owned.begin(), owned.end()};
    const auto stages = static_cast<std::uint32_t>(kinds.size());
    const auto chunks = static_cast<std::uint32_t>(owned.front().size());
    run_.shape.stages = stages;
    run_.shape.chunks = chunks;
    run_.shape.layout = placement::linear;
    if (chunks > 1) run_.shape.layout = placement::interleaved;
    if (chunks == 2 && kinds.begin()->back() == 2 * stages - 1 && stages > 1)
      run_.shape.layout = placement::v;
    std::uint32_t number = 0;
    for (const auto& own : kinds) {
      const stage_id stage{number++};
      for (std::uint32_t c = 0; c < own.size(); ++c)
        if (own.size() != chunks || run_.shape.virtual_stage(stage, chunk_id{c}).value() != own[c])
          return error{fmt::format(
              "{}: expected the traces of all ranks, with virtual stages that are linear, "
              "interleaved or V; got those of {} ranks, with virtual stage {} on the rank at "
              "position {}",
              ranks_.front().file, stages, own[c], stage.value())};
    }
    for (const auto& own : owned)
      stages_.push_back(static_cast<std::uint32_t>(std::distance(kinds.begin(), kinds.find(own))));
    return success();
  }

  status by_position() {
    std::vector<std::uint32_t> all;
    for (const auto& r : ranks_) all.push_back(r.rank);
    for (const auto& r : ranks_) {
      if (!r.pipeline.empty() && position_in(r.pipeline, r.rank, all) == r.pipeline.size())
        return error{
            fmt::format("{}: expected a group of the pipeline with rank {}", r.file, r.rank)};
      stages_.push_back(position_in(r.pipeline, r.rank, all));
    }
    run_.shape.stages = static_cast<std::uint32_t>(
        ranks_.front().pipeline.empty() ? ranks_.size() : ranks_.front().pipeline.size());
    for (std::size_t i = 0; i < stages_.size(); ++i)
      if (stages_[i] >= run_.shape.stages)
        return error{fmt::format("{}: expected pipelines of {} stages, got a stage {}",
                                 ranks_[i].file, run_.shape.stages, stages_[i])};
    run_.shape.chunks = 1;
    run_.shape.layout = placement::linear;
    return success();
  }

  const std::vector<rank_tasks>& ranks_;
  report::traced_run& run_;
  std::vector<std::uint32_t> stages_;  ///< by rank
};

std::vector<placed_record> records_of(const rank_tasks& r, rank_position at,
                                      const pipeline_shape& shape) {
  std::vector<placed_record> records;
  std::set<std::tuple<task_kind, std::uint32_t, std::uint32_t>> seen;
  std::uint64_t step = 0;
  for (const auto& t : r.tasks) {
    if (!seen.emplace(t.kind, t.virtual_stage, t.microbatch).second) {
      seen = {{t.kind, t.virtual_stage, t.microbatch}};
      ++step;
    }
    auto& made = records.emplace_back();
    made.replica = replica_id{at.replica};
    made.stage = stage_id{at.stage};
    made.step = step_id{step};
    const auto chunk = t.virtual_stage == unnamed
                           ? chunk_id{0}
                           : shape.at(virtual_stage_id{t.virtual_stage}).chunk;
    made.what = {t.kind, microbatch_id{t.microbatch}, chunk};
    made.begin = t.begin;
    made.end = t.end;
    made.arrived = t.arrived;
  }
  return records;
}

std::string_view text_of(found_by by) {
  switch (by) {
    case found_by::names: return "the names that the schedule gave them";
    case found_by::functions: return "the Python functions that run them";
    case found_by::operators: return "autograd's operators between the messages, as 1F1B runs them";
  }
  return "";
}

}  // namespace

result<found_run> assemble(std::vector<rank_tasks> ranks) {
  std::ranges::sort(ranks, {}, &rank_tasks::rank);
  for (std::size_t i = 1; i < ranks.size(); ++i)
    if (ranks[i].rank == ranks[i - 1].rank)
      return error{fmt::format("{}: expected one trace of each rank, got rank {} also in {}",
                               ranks[i].file, ranks[i].rank, ranks[i - 1].file)};
  found_run made;
  made.file = ranks.front().file;
  const auto microbatches = count_microbatches(ranks);
  const bool is_numbered = std::ranges::none_of(ranks, [](const auto& r) {
    return std::ranges::any_of(r.tasks, [](const auto& t) { return t.microbatch == unnamed; });
  });
  if (!is_numbered && microbatches == 0)
    return error{made.file + ": expected forwards with their backwards, got none complete"};
  for (auto& r : ranks) number_microbatches(r, microbatches);
  const auto placed = placer{ranks, made.run}.place();
  if (!placed) return placed.failure();
  const auto& first = ranks.front();
  made.notes.push_back(
      fmt::format("Tasks are found by {}{}.", text_of(first.by),
                  first.on_device ? "; their times are those of their kernels" : ""));
  std::vector<placed_record> records;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const auto of_rank = records_of(ranks[i], (*placed)[i], made.run.shape);
    records.insert(records.end(), of_rank.begin(), of_rank.end());
  }
  if (auto done = complete(std::move(records), made); !done) return done.failure();
  return made;
}

}  // namespace rrfp::foreign
