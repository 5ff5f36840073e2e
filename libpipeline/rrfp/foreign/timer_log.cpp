#include "timer_log.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include <rrfp/base/statistics.hpp>
#include <rrfp/report/breakdown.hpp>
#include "csv.hpp"
#include "mean_steps.hpp"

namespace rrfp::foreign {

namespace {

constexpr std::size_t ranks_max = report::traced_lanes_max;
constexpr std::size_t intervals_max = 10'000;

/// Settings of a job that are printed as "NAME ....... VALUE".
constexpr std::array<std::string_view, 9> setting_names{"global_batch_size",
                                                        "micro_batch_size",
                                                        "data_parallel_size",
                                                        "pipeline_model_parallel_size",
                                                        "virtual_pipeline_model_parallel_size",
                                                        "use_tp_pp_dp_mapping",
                                                        "world_size",
                                                        "gradient_accumulation_steps",
                                                        "steps_per_print"};

/// What stands after `word`, up to a blank; nothing: the line does not have the word.
std::optional<std::string_view> after(std::string_view line, std::string_view word) {
  const auto at = line.find(word);
  if (at == std::string_view::npos) return std::nullopt;
  line.remove_prefix(at + word.size());
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  return line.substr(0, line.find_first_of(" ,|]\r"));
}

std::optional<std::uint32_t> whole_after(std::string_view line, std::string_view word) {
  const auto text = after(line, word);
  return text ? parse_number<std::uint32_t>(*text) : std::nullopt;
}

/// Milliseconds, of a sum over at most 11 days.
std::optional<double> time_after(std::string_view line, std::string_view word) {
  const auto text = after(line, word);
  const auto ms = text ? parse_number<double>(*text) : std::nullopt;
  return ms && *ms >= 0 && *ms <= 1e9 ? ms : std::nullopt;
}

/// The times of one rank, of each interval.
struct timed_rank {
  std::vector<double> forward, backward;
};

class timer_log {
 public:
  explicit timer_log(const read_options& options) : options_(options) {}

  void add_line(std::string_view line) {
    is_empty_ = false;
    if (line.find(" ..") != std::string_view::npos) return add_setting(line);
    if (line.find("times across ranks (ms):") != std::string_view::npos) has_megatron_ = true;
    if (line.find("time across ranks (ms):") != std::string_view::npos) has_extremes_ = true;
    if (line.find("time (ms) | ") != std::string_view::npos) return add_deepspeed(line);
    if (const auto steps = whole_after(line, "steps: ")) {
      interval_ = std::gcd(interval_, *steps);
      ++reports_;
      if (const auto s = time_after(line, "iter time (s): ")) measured_.push_back(*s * 1000);
    }
    if (const auto count = whole_after(line, "CONFIG: micro_batches=")) micro_batches_ = *count;
    const auto rank = whole_after(line, "RANK="), stage = whole_after(line, " STAGE=");
    if (rank && stage && stage_of_.size() < ranks_max) stage_of_[*rank] = *stage;
    if (has_megatron_) add_megatron(line);
  }

  result<found_run> make(const std::string& file) const {
    if (auto known = check_timers(); !known) return within(file, known.failure());
    const auto stages = count_stages(), microbatches = count_microbatches();
    const auto is_count = [](std::uint64_t n, std::uint64_t max) { return n > 0 && n <= max; };
    if (!is_count(stages, report::traced_stages_max))
      return error{file +
                   ": expected the number of stages (pipeline_model_parallel_size, or RANK= "
                   "and STAGE= of DeepSpeed), got none: say it as an option (stages)"};
    if (!is_count(microbatches, report::traced_microbatches_max))
      return error{file +
                   ": expected the number of microbatches (global_batch_size, "
                   "micro_batch_size and data_parallel_size, or micro_batches=), got none: "
                   "say it as an option (microbatches)"};
    found_run made;
    made.file = file;
    made.notes.push_back(fmt::format(
        "Steps are made, not measured, from the timers of {}: each task takes the mean of its "
        "stage, in the order of 1F1B, and messages take no time. Times of single tasks are "
        "unknown, so what varies between them is not forecast.",
        has_megatron_ ? "Megatron-LM" : "DeepSpeed"));
    const auto times = times_by_stage(stages, microbatches, made);
    if (!times) return within(file, times.failure());
    if (auto done = make_mean_steps(*times, microbatches, made); !done) return done.failure();
    compare(made);
    return made;
  }

 private:
  void add_setting(std::string_view line) {
    const auto dots = line.find(" ..");
    const auto begin = line.find_last_of(" :\t", dots - 1) + 1;
    const auto name = line.substr(begin, dots - begin);
    const auto value = line.find_first_not_of('.', dots + 1);
    if (value == std::string_view::npos ||
        std::ranges::find(setting_names, name) == setting_names.end())
      return;
    settings_[std::string{name}] = *after(line.substr(value), "");
  }

  std::optional<std::uint32_t> setting(std::string_view name) const {
    const auto found = settings_.find(name);
    return found == settings_.end() ? std::nullopt : parse_number<std::uint32_t>(found->second);
  }

  void add(std::uint32_t rank, std::vector<double> timed_rank::*list, double ms) {
    if (!ranks_.contains(rank) && ranks_.size() >= ranks_max) return;
    auto& times = ranks_[rank].*list;
    if (times.size() < intervals_max) times.push_back(ms);
  }

  void add_deepspeed(std::string_view line) {
    has_deepspeed_ = true;
    const auto rank = whole_after(line, "[Rank ");
    const auto forward = time_after(line, "| fwd_microstep: ");
    const auto backward = time_after(line, "| bwd_microstep: ");
    if (!forward || !backward) return;
    add(rank.value_or(0), &timed_rank::forward, *forward);
    add(rank.value_or(0), &timed_rank::backward, *backward);
  }

  /// "  forward-compute:" or "     rank  0: 120.31".
  void add_megatron(std::string_view line) {
    if (const auto at = line.rfind("rank "); at != std::string_view::npos) {
      line.remove_prefix(at);
      const auto colon = line.find(": ");
      const auto rank = whole_after(line.substr(0, colon), "rank ");
      const auto ms = time_after(line, ": ");
      if (!rank || !ms) return;
      if (timer_ == "forward-compute") add(*rank, &timed_rank::forward, *ms);
      if (timer_ == "backward-compute") add(*rank, &timed_rank::backward, *ms);
      if (timer_ == "forward-backward") {
        if (is_new_) measured_.push_back(*ms);
        measured_.back() = std::max(measured_.back(), *ms);
        is_new_ = false;
      }
      return;
    }
    const auto end = line.find_last_not_of(" \r");
    if (end == std::string_view::npos || line[end] != ':') return;
    const auto begin = line.find_last_of(" :\t", end - 1);
    timer_ = line.substr(begin + 1, end - begin - 1);
    is_new_ = true;
  }

  status check_timers() const {
    const auto has = [&](std::vector<double> timed_rank::*list) {
      return std::ranges::any_of(ranks_, [&](const auto& r) { return !(r.second.*list).empty(); });
    };
    if (const auto chunks = setting("virtual_pipeline_model_parallel_size"); chunks.value_or(1) > 1)
      return error{fmt::format(
          "expected a schedule without interleaving, got virtual_pipeline_model_parallel_size {}: "
          "record it with torch.profiler",
          *chunks)};
    if (has_megatron_ && has_deepspeed_)
      return error{"expected timers of Megatron-LM or of DeepSpeed, got both"};
    if (has(&timed_rank::forward) && has(&timed_rank::backward)) return success();
    if (has_megatron_)
      return error{
          "expected forward-compute and backward-compute (--timing-log-level 2), got neither"};
    if (has_extremes_)
      return error{
          "expected the times of each rank (--timing-log-option all), got minima or maxima"};
    return error{fmt::format(
        "expected a trace of rrfp-node run --trace, of torch.profiler (.json or .json.gz), of nsys "
        "stats (CSV), CSV with the columns stage, microbatch, kind, start and end, or a log with "
        "timers of Megatron-LM or DeepSpeed, got {}",
        is_empty_ ? "an empty file" : "a text that is none of these")};
  }

  std::uint32_t count_stages() const {
    if (options_.stages > 0) return options_.stages;
    std::uint32_t last = 0;
    for (const auto& [_, stage] : stage_of_) last = std::max(last, stage);
    return setting("pipeline_model_parallel_size").value_or(stage_of_.empty() ? 0 : last + 1);
  }

  std::uint32_t count_microbatches() const {
    if (options_.microbatches > 0) return options_.microbatches;
    if (micro_batches_ > 0) return micro_batches_;
    if (const auto n = setting("gradient_accumulation_steps"); n && !has_megatron_) return *n;
    const auto batch = setting("global_batch_size");
    const auto each = std::uint64_t{setting("micro_batch_size").value_or(0)} *
                      setting("data_parallel_size").value_or(0);
    return batch && each > 0 ? static_cast<std::uint32_t>(*batch / each) : 0;
  }

  /// Steps that a time of an interval is the sum of.
  std::uint32_t steps_of_interval() const {
    if (has_megatron_) return 1;
    if (const auto n = setting("steps_per_print")) return *n;
    return reports_ > 1 ? interval_ : 0;
  }

  /// Megatron's pipeline is the outermost dimension of its ranks, unless its data parallelism is.
  std::optional<std::uint32_t> stage_of(std::uint32_t rank, std::uint32_t stages) const {
    if (!has_megatron_) {
      const auto found = stage_of_.find(rank);
      if (found != stage_of_.end()) return found->second;
      return rank == 0 ? std::optional{0u} : std::nullopt;
    }
    auto ranks = setting("world_size").value_or(ranks_.rbegin()->first + 1);
    const auto use = settings_.find("use_tp_pp_dp_mapping");
    if (use != settings_.end() && use->second == "True")
      ranks /= std::max(setting("data_parallel_size").value_or(1), 1u);
    const auto each = ranks / stages;
    return each == 0 ? std::nullopt : std::optional{rank % ranks / each};
  }

  /// The mean over the ranks of each stage.
  result<times_of_steps> times_by_stage(std::uint32_t stages, std::uint32_t microbatches,
                                        found_run& made) const {
    auto intervals = intervals_max;
    std::vector<std::vector<const timed_rank*>> of_stage(stages);
    for (const auto& [rank, times] : ranks_) {
      const auto stage = stage_of(rank, stages);
      if (!stage || *stage >= stages)
        return error{fmt::format("expected ranks of {} stages, got rank {}", stages, rank)};
      intervals = std::min({intervals, times.forward.size(), times.backward.size()});
      of_stage[*stage].push_back(&times);
    }
    const auto steps = steps_of_interval();
    if (intervals == 0 || steps == 0)
      return error{
          "expected whole intervals with times of every rank, and for DeepSpeed two lines "
          "with \"steps:\", got fewer"};
    for (auto& list : of_stage) {
      if (!list.empty()) continue;
      if (has_megatron_ || of_stage.front().empty())
        return error{fmt::format("expected times of all {} stages, got none of some", stages)};
      list = of_stage.front();
    }
    if (ranks_.size() < stages)
      made.notes.push_back(fmt::format(
          "Only {} of {} stages printed timers, as DeepSpeed does; the others are assumed to take "
          "as long as the first.",
          ranks_.size(), stages));
    times_of_steps all(intervals, std::vector<mean_times>(stages));
    for (std::size_t i = 0; i < intervals; ++i)
      for (std::uint32_t s = 0; s < stages; ++s)
        for (const auto* rank : of_stage[s]) {
          const auto parts = static_cast<double>(of_stage[s].size()) * microbatches * steps;
          all[i][s].forward += rank->forward[i] / parts;
          all[i][s].backward += rank->backward[i] / parts;
        }
    return all;
  }

  /// What the log itself says about the steps.
  void compare(found_run& made) const {
    if (measured_.empty()) return;
    const auto steps = report::make_timeline(made.run, step_id{0}, step_id{~std::uint64_t{0}});
    const auto made_of = report::figures_of(steps.value()).step_ms;
    made.notes.push_back(fmt::format(
        "The log says {:.3f} ms for {} of a step (median), the steps made of the means take {:.3f} "
        "ms: the rest is what varies, messages, and work beside the tasks.",
        median(measured_), has_megatron_ ? "forward and backward" : "all", made_of));
  }

  const read_options& options_;
  std::map<std::uint32_t, timed_rank> ranks_;
  std::map<std::string, std::string, std::less<>> settings_;
  std::map<std::uint32_t, std::uint32_t> stage_of_;
  std::vector<double> measured_;  ///< steps, in milliseconds
  std::string timer_;
  std::uint32_t micro_batches_ = 0, interval_ = 0, reports_ = 0;
  bool has_megatron_ = false, has_deepspeed_ = false, has_extremes_ = false;
  bool is_new_ = false, is_empty_ = true;
};

}  // namespace

result<found_run> read_timer_logs(const std::vector<std::string>& files,
                                  const read_options& options) {
  timer_log log{options};
  for (const auto& file : files) {
    const auto take = [&](std::string_view line) -> status {
      log.add_line(line);
      return success();
    };
    if (auto read = read_lines(file, "a log", take); !read) return read.failure();
  }
  return log.make(files.front());
}

}  // namespace rrfp::foreign
