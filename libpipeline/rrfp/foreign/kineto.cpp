#include "kineto.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <unordered_map>

#include <fmt/format.h>

#include <rrfp/io/stream_json.hpp>

namespace rrfp::foreign {

namespace {

constexpr std::string_view expected = "expected a trace of torch.profiler";

std::optional<std::uint32_t> leading_number(std::string_view& text) {
  std::uint32_t n = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (failed != std::errc{} || n >= report::traced_microbatches_max) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return n;
}

struct action_name {
  std::string_view word;
  marked what;
  bool is_forward;
};
/// The longer words first.
constexpr std::array<action_name, 8> actions{{{"RECV_F", marked::receive, true},
                                              {"RECV_B", marked::receive, false},
                                              {"SEND_F", marked::send, true},
                                              {"SEND_B", marked::send, false},
                                              {"F", marked::forward, true},
                                              {"B", marked::backward_weight, false},
                                              {"I", marked::backward, false},
                                              {"W", marked::weight, false}}};

struct function_name {
  std::string_view file;
  std::string_view function;
  marked what;
};
constexpr std::array<function_name, 7> functions{
    {{"torch/distributed/pipelining/stage.py", "forward_one_chunk", marked::forward},
     {"torch/distributed/pipelining/stage.py", "backward_one_chunk", marked::backward_weight},
     {"torch/distributed/pipelining/stage.py", "backward_weight_one_chunk", marked::weight},
     {"deepspeed/runtime/pipe/engine.py", "_exec_forward_pass", marked::forward},
     {"deepspeed/runtime/pipe/engine.py", "_exec_backward_pass", marked::backward_weight},
     {"megatron/core/pipeline_parallel/schedules.py", "forward_step", marked::forward},
     {"megatron/core/pipeline_parallel/schedules.py", "backward_step", marked::backward_weight}}};

/// The members of an event that are used.
struct chrome_event {
  std::string phase, category, name;
  double ts = 0, dur = 0;
  std::uint64_t thread = 0, id = 0, correlation = 0;

  void clear() {
    phase.clear();
    category.clear();
    name.clear();
    ts = dur = 0;
    thread = id = correlation = 0;
  }
};

/// Sums of a base, a begin and a duration stay far below the largest number. Clocks count from 1970
/// at most.
constexpr nanoseconds time_max = 2'500'000'000'000'000'000;

nanoseconds nanoseconds_of(double microseconds) {
  return std::llround(std::clamp(microseconds, 0.0, static_cast<double>(time_max) / 1000) * 1000);
}

/// Thrown to end the parse; caught in read_kineto().
struct too_many {};

class kineto_events final : public json_events_base {
 public:
  explicit kineto_events(rank_trace& into) : into_(into) {}

  bool has_events() const { return has_events_; }
  std::int64_t base() const { return base_; }

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
    if (section_ == "traceEvents" && depth_ == 3) event_.clear();
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
    for (const auto& [id, forward] : link_begins_)
      if (const auto found = link_ends_.find(id); found != link_ends_.end())
        into_.links.push_back({forward, found->second});
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
      if (depth_ == 2 && key_ == "world_size")
        into_.world = static_cast<std::uint32_t>(std::min(whole, report::traced_lanes_max));
      if (depth_ == 5 && key_ == "ranks" && group_.size() < report::traced_lanes_max)
        group_.push_back(static_cast<std::uint32_t>(whole));
    }
    return true;
  }

  /// torchtitan and DeviceMesh name the group of a pipeline "mesh_pp" or "pp".
  void end_group() {
    ++groups_;
    const bool is_pipeline = description_ == "pp" || description_.ends_with("_pp");
    const bool is_member =
        !into_.rank || std::find(group_.begin(), group_.end(), *into_.rank) != group_.end();
    if (is_pipeline && is_member) into_.pipeline = group_;
    last_group_ = std::move(group_);
    group_.clear();
  }

  template <class Record>
  void push(std::vector<Record>& list, Record record) {
    if (++kept_ > kept_records_max) throw too_many{};
    list.push_back(std::move(record));
  }

  void keep() {
    const auto& e = event_;
    const auto at = nanoseconds_of(e.ts);
    if (e.category == "fwdbwd") {
      if (e.phase != "s" && e.phase != "f") return;
      if (++kept_ > kept_records_max) throw too_many{};
      (e.phase == "s" ? link_begins_ : link_ends_)[e.id] = at;
      return;
    }
    if (e.phase != "X") return;
    const interval time{at, at + nanoseconds_of(e.dur)};
    if (e.category == "user_annotation")
      keep_annotation(time);
    else if (e.category == "cpu_op")
      keep_operator(time);
    else if (e.category == "python_function")
      keep_function(time);
    else if (e.category == "kernel" || e.category.starts_with("gpu_mem"))
      push(into_.kernels, {time, e.correlation, e.name.starts_with("nccl")});
    else if ((e.category == "cuda_runtime" || e.category == "cuda_driver") && e.correlation != 0 &&
             (e.name.find("Launch") != std::string::npos ||
              e.name.find("Mem") != std::string::npos))
      push(into_.launches, {at, e.correlation});
  }

  void keep_annotation(interval time) {
    const auto& name = event_.name;
    if (name == "gloo:send" || name == "gloo:recv")
      return push(into_.transfers, {time, name == "gloo:send"});
    if (name.starts_with("PP:(")) ++into_.overlapped;
    if (auto range = marked_name(name)) {
      static_cast<interval&>(*range) = time;
      push(into_.named, *range);
    }
  }

  void keep_operator(interval time) {
    const auto& name = event_.name;
    if (name == "c10d::send" || name == "c10d::recv_")
      return push(into_.posts, {time, name == "c10d::send"});
    if (name.starts_with("c10d::") || name == "record_param_comms") return;
    // record_function() of a thread without user annotations.
    if (const auto range = marked_name(name)) return keep_annotation(time);
    // Operators inside others are many, and say nothing more. The trace has the outer one first.
    auto& end = operator_ends_[event_.thread];
    if (time.end <= end) return;
    end = time.end;
    if (name == "aten::tensor_split") {
      push(into_.splits, time.end);
      return;
    }
    // The gradient of a loss, with which its backward begins.
    const bool is_seed = name == "aten::ones_like";
    push(into_.operators, {time, is_seed || name.starts_with("autograd::engine::")});
  }

  void keep_function(interval time) {
    const auto what = marked_function(event_.name);
    if (!what) return;
    marked_range range;
    static_cast<interval&>(range) = time;
    range.what = *what;
    push(into_.functions, range);
  }

  rank_trace& into_;
  int depth_ = 0;
  std::string section_;  ///< the key of the outermost object
  std::string key_;
  chrome_event event_;
  std::string description_;
  std::vector<std::uint32_t> group_, last_group_;
  std::size_t groups_ = 0;
  std::int64_t base_ = 0;
  std::size_t kept_ = 0;
  bool has_events_ = false;
  std::unordered_map<std::uint64_t, nanoseconds> link_begins_, link_ends_, operator_ends_;
};

/// "trace_rank3.json.gz", "rank3_trace.json": the number after the last "rank".
std::optional<std::uint32_t> rank_in(const std::string& file) {
  const auto name = file.substr(file.rfind('/') + 1);
  auto at = name.rfind("rank");
  if (at == std::string::npos) return std::nullopt;
  at = name.find_first_of("0123456789", at);
  if (at == std::string::npos) return std::nullopt;
  auto rest = std::string_view{name}.substr(at);
  return leading_number(rest);
}

template <class Record>
void order(std::vector<Record>& list) {
  std::stable_sort(list.begin(), list.end(),
                   [](const auto& a, const auto& b) { return a.begin < b.begin; });
}

}  // namespace

std::optional<marked_range> marked_name(std::string_view name) {
  marked_range range;
  for (const auto& [word, what] :
       {std::pair{std::string_view{"Forward "}, marked::forward},
        std::pair{std::string_view{"Backward "}, marked::backward_weight}})
    if (name.starts_with(word)) {
      auto rest = name.substr(word.size());
      const auto mb = leading_number(rest);
      if (!mb || !rest.empty()) return std::nullopt;
      range.what = what;
      range.is_forward = what == marked::forward;
      range.microbatch = *mb;
      return range;
    }
  if (!name.starts_with("PP:")) return std::nullopt;
  name.remove_prefix(3);
  const auto stage = leading_number(name);
  if (!stage || *stage >= report::traced_stages_max) return std::nullopt;
  for (const auto& action : actions) {
    if (!name.starts_with(action.word)) continue;
    auto rest = name.substr(action.word.size());
    const auto mb = leading_number(rest);
    if (!mb || !rest.empty()) continue;
    range.what = action.what;
    range.is_forward = action.is_forward;
    range.virtual_stage = *stage;
    range.microbatch = *mb;
    return range;
  }
  return std::nullopt;
}

std::optional<marked> marked_function(std::string_view name) {
  const auto paren = name.find('(');
  const auto colon = name.find("): ");
  if (paren == std::string_view::npos || colon == std::string_view::npos) return std::nullopt;
  const auto file = name.substr(0, paren);
  const auto function = name.substr(colon + 3);
  for (const auto& known : functions)
    if (file.ends_with(known.file) && function == known.function) return known.what;
  return std::nullopt;
}

result<rank_trace> read_kineto(const std::string& file) {
  auto source = files::byte_source::open(file);
  if (!source) return source.failure();
  rank_trace made;
  made.file = file;
  kineto_events events{made};
  try {
    if (const auto fault = stream_json(*source, events))
      return error{fmt::format("{}: {}, got {}", file, expected, fault->message())};
  } catch (const too_many&) {
    return error{
        fmt::format("{}: expected at most {} records of the pipeline, got more: record fewer steps",
                    file, kept_records_max)};
  }
  if (!events.has_events())
    return error{fmt::format("{}: {}, got JSON without \"traceEvents\"", file, expected)};
  events.finish();
  if (!made.rank) made.rank = rank_in(file);
  const auto shift = [&](auto& list) {
    for (auto& record : list) {
      record.begin += events.base();
      record.end += events.base();
    }
    order(list);
  };
  shift(made.named);
  shift(made.functions);
  shift(made.posts);
  shift(made.transfers);
  shift(made.operators);
  shift(made.kernels);
  for (auto& l : made.launches) l.at += events.base();
  std::sort(made.launches.begin(), made.launches.end(),
            [](const auto& a, const auto& b) { return a.at < b.at; });
  for (auto& s : made.splits) s += events.base();
  std::sort(made.splits.begin(), made.splits.end());
  for (auto& l : made.links) {
    l.forward += events.base();
    l.backward += events.base();
  }
  std::sort(made.links.begin(), made.links.end(),
            [](const auto& a, const auto& b) { return a.backward < b.backward; });
  return made;
}

}  // namespace rrfp::foreign
