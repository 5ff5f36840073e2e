#include "kineto.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include <rrfp/io/stream_json.hpp>

namespace rrfp::foreign {

namespace {

constexpr std::string_view expected = "expected a trace of torch.profiler";

struct function_name {
  std::string_view file;
  std::string_view function;
  task_kind kind;
};
constexpr std::array<function_name, 7> functions{
    {{"torch/distributed/pipelining/stage.py", "forward_one_chunk", task_kind::forward},
     {"torch/distributed/pipelining/stage.py", "backward_one_chunk", task_kind::backward_weight},
     {"torch/distributed/pipelining/stage.py", "backward_weight_one_chunk", task_kind::weight},
     {"deepspeed/runtime/pipe/engine.py", "_exec_forward_pass", task_kind::forward},
     {"deepspeed/runtime/pipe/engine.py", "_exec_backward_pass", task_kind::backward_weight},
     {"megatron/core/pipeline_parallel/schedules.py", "forward_step", task_kind::forward},
     {"megatron/core/pipeline_parallel/schedules.py", "backward_step",
      task_kind::backward_weight}}};

/// The members of an event that are used.
struct chrome_event {
  std::string phase, category, name;
  double ts = 0, dur = 0;
  std::uint64_t thread = 0, id = 0, correlation = 0;
};

/// Sums of a base, a begin and a duration stay far below the largest number. Clocks count from 1970
/// at most.
constexpr nanoseconds time_max = 2'500'000'000'000'000'000;

nanoseconds nanoseconds_of(double microseconds) {
  return std::llround(std::clamp(microseconds, 0.0, static_cast<double>(time_max) / 1000) * 1000);
}

/// The task that a Python function of a framework runs: "torch/.../stage.py(737): NAME".
std::optional<task_kind> marked_function(std::string_view name) {
  const auto paren = name.find('(');
  const auto colon = name.find("): ");
  if (paren == std::string_view::npos || colon == std::string_view::npos) return std::nullopt;
  const auto file = name.substr(0, paren);
  const auto function = name.substr(colon + 3);
  for (const auto& known : functions)
    if (file.ends_with(known.file) && function == known.function) return known.kind;
  return std::nullopt;
}

class kineto_events final : public json_events_base {
 public:
  explicit kineto_events(rank_trace& into) : into_(into), filler_(into) {}

  bool has_events() const { return has_events_; }

  bool number_integer(number_integer_t n) override {
    return number(static_cast<double>(n), static_cast<std::uint64_t>(n));
  }
  bool number_unsigned(number_unsigned_t n) override { return number(static_cast<double>(n), n); }
  bool number_float(number_float_t n, const string_t&) override { return number(n, 0); }

  bool string(string_t& text) override {
    if (is_event_member()) {
      if (key_ == "ph") event_.phase = text;
      if (key_ == "cat") event_.category = text;
      if (key_ == "name") event_.name = text;
      // Some writers put identities into texts.
      if (key_ == "id" || key_ == "tid") number(0, std::hash<std::string>{}(text));
    } else if (in_groups() && (key_ == "pg_desc" || key_ == "pg_name")) {
      if (key_ == "pg_desc") description_ = text;
    }
    return true;
  }
  bool key(string_t& text) override {
    key_ = text;
    if (depth_ == 1) section_ = text;
    return true;
  }
  bool start_object(std::size_t) override {
    ++depth_;
    if (section_ == "traceEvents" && depth_ == 3) event_ = {};
    if (in_groups() && depth_ == 4) {
      description_.clear();
      group_.clear();
    }
    return true;
  }
  bool end_object() override {
    if (section_ == "traceEvents" && depth_ == 3) keep();
    if (in_groups() && depth_ == 4) end_group();
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override {
    ++depth_;
    has_events_ = has_events_ || (section_ == "traceEvents" && depth_ == 2);
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }

  void finish() {
    filler_.finish(base_);
    if (into_.pipeline.empty() && groups_ == 1) into_.pipeline = std::move(last_group_);
  }

 private:
  bool is_event_member() const { return section_ == "traceEvents" && depth_ == 3; }
  bool in_groups() const { return section_ == "distributedInfo" && depth_ >= 3; }

  bool number(double value, std::uint64_t whole) {
    if (is_event_member()) {
      if (key_ == "ts") event_.ts = value;
      if (key_ == "dur") event_.dur = value;
      if (key_ == "tid") event_.thread = whole;
      if (key_ == "id") event_.id = whole;
    } else if (section_ == "traceEvents" && depth_ == 4) {
      if (key_ == "correlation") event_.correlation = whole;
    } else if (section_ == "baseTimeNanoseconds" && depth_ == 1) {
      base_ = static_cast<nanoseconds>(std::min<std::uint64_t>(whole, time_max));
    } else if (section_ == "distributedInfo") {
      if (depth_ == 2 && key_ == "rank" && whole < report::traced_lanes_max)
        into_.rank = static_cast<std::uint32_t>(whole);
      if (depth_ == 5 && key_ == "ranks" && group_.size() < report::traced_lanes_max)
        group_.push_back(static_cast<std::uint32_t>(whole));
    }
    return true;
  }

  /// torchtitan and DeviceMesh name the group of a pipeline "mesh_pp" or "pp".
  void end_group() {
    ++groups_;
    const bool is_pipeline = description_ == "pp" || description_.ends_with("_pp");
    const bool is_member = !into_.rank || std::ranges::find(group_, *into_.rank) != group_.end();
    if (is_pipeline && is_member) into_.pipeline = group_;
    last_group_ = std::move(group_);
    group_.clear();
  }

  void keep() {
    const auto& e = event_;
    const auto at = nanoseconds_of(e.ts);
    if (e.category == "fwdbwd") {
      if (e.phase == "s") filler_.forward_of(e.id, at);
      if (e.phase == "f") filler_.backward_of(e.id, at);
      return;
    }
    if (e.phase != "X") return;
    const interval time{at, at + nanoseconds_of(e.dur)};
    if (e.category == "user_annotation") {
      filler_.annotation(time, e.name);
    } else if (e.category == "cpu_op") {
      filler_.operation(time, e.name, e.thread);
    } else if (e.category == "python_function") {
      if (const auto kind = marked_function(e.name)) filler_.function(time, *kind);
    } else if (e.category == "kernel" || e.category.starts_with("gpu_mem")) {
      filler_.kernel({time, e.correlation, e.name.starts_with("nccl")});
    } else if ((e.category == "cuda_runtime" || e.category == "cuda_driver") &&
               e.correlation != 0 &&
               (e.name.find("Launch") != std::string::npos ||
                e.name.find("Mem") != std::string::npos)) {
      filler_.launch({at, e.correlation});
    }
  }

  rank_trace& into_;
  rank_trace_filler filler_;
  int depth_ = 0;
  std::string section_;  ///< the key of the outermost object
  std::string key_;
  chrome_event event_;
  std::string description_;
  std::vector<std::uint32_t> group_, last_group_;
  std::size_t groups_ = 0;
  std::int64_t base_ = 0;
  bool has_events_ = false;
};

}  // namespace

result<rank_trace> read_kineto(const std::string& file) {
  auto source = io::byte_source::open(file);
  if (!source) return source.failure();
  rank_trace made;
  made.file = file;
  kineto_events events{made};
  try {
    if (const auto fault = stream_json(*source, events))
      return error{fmt::format("{}: {}, got {}", file, expected, fault->message())};
  } catch (const rank_trace_filler::too_many&) {
    return rank_trace_filler::too_many_in(file);
  }
  if (!events.has_events())
    return error{fmt::format("{}: {}, got JSON without \"traceEvents\"", file, expected)};
  events.finish();
  if (!made.rank) made.rank = rank_in(file);
  return made;
}

}  // namespace rrfp::foreign
