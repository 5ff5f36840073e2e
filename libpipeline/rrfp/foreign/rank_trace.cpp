#include "rank_trace.hpp"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

namespace rrfp::foreign {

namespace {

std::optional<std::uint32_t> leading_number(std::string_view& text) {
  std::uint32_t n = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (failed != std::errc{} || n >= report::traced_microbatches_max) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return n;
}

struct action_name {
  std::string_view word;
  std::optional<task_kind> kind;  ///< nothing: a message
  bool is_forward;
  bool has_stage = true;  ///< "PP:" and the virtual stage come before it
};
constexpr action_name actions[] = {{"RECV_F", std::nullopt, true},
                                   {"RECV_B", std::nullopt, false},
                                   {"SEND_F", std::nullopt, true},
                                   {"SEND_B", std::nullopt, false},
                                   {"F", task_kind::forward, true},
                                   {"B", task_kind::backward_weight, false},
                                   {"I", task_kind::backward, false},
                                   {"W", task_kind::weight, false},
                                   {"Forward ", task_kind::forward, true, false},
                                   {"Backward ", task_kind::backward_weight, false, false}};

template <class Record>
void order(std::vector<Record>& list, nanoseconds base) {
  for (auto& record : list) {
    record.begin += base;
    record.end += base;
  }
  std::ranges::stable_sort(list, {}, &Record::begin);
}

/// The task or message in a name of torch.distributed.pipelining.
std::optional<marked_range> marked_name(std::string_view name) {
  std::optional<std::uint32_t> stage;
  if (name.starts_with("PP:")) {
    name.remove_prefix(3);
    stage = leading_number(name);
    if (!stage || *stage >= report::traced_stages_max) return std::nullopt;
  }
  for (const auto& action : actions) {
    if (action.has_stage != stage.has_value() || !name.starts_with(action.word)) continue;
    auto rest = name.substr(action.word.size());
    const auto mb = leading_number(rest);
    if (mb && rest.empty())
      return marked_range{{}, action.kind, action.is_forward, stage.value_or(unnamed), *mb};
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::uint32_t> rank_in(const std::string& file) {
  const auto name = file.substr(file.rfind('/') + 1);
  auto at = name.rfind("rank");
  if (at == std::string::npos) return std::nullopt;
  at = name.find_first_of("0123456789", at);
  if (at == std::string::npos) return std::nullopt;
  auto rest = std::string_view{name}.substr(at);
  return leading_number(rest);
}

error rank_trace_filler::too_many_in(const std::string& file) {
  return error{
      fmt::format("{}: expected at most {} records of the pipeline, got more: record fewer steps",
                  file, kept_records_max)};
}

void rank_trace_filler::count() {
  if (++kept_ > kept_records_max) throw too_many{};
}

void rank_trace_filler::annotation(interval time, std::string_view name) {
  if (name == "gloo:send" || name == "gloo:recv") return message({time, name == "gloo:send"});
  if (name.starts_with("Optimizer.step#")) return push(into_.updates, time.end);
  if (name.starts_with("PP:(")) ++into_.overlapped;
  // What it sends tells no more than what its neighbour receives.
  if (auto range = marked_name(name); range && name.find("SEND") == std::string_view::npos) {
    static_cast<interval&>(*range) = time;
    push(into_.named, *range);
  }
}

bool rank_trace_filler::operation(interval time, std::string_view name, std::uint64_t thread) {
  if (name == "c10d::send" || name == "c10d::recv_") {
    push(into_.posts, {time, name == "c10d::send"});
    return false;
  }
  if (name.starts_with("c10d::") || name == "record_param_comms") return false;
  // record_function() of a thread without user annotations.
  if (marked_name(name)) {
    annotation(time, name);
    return false;
  }
  // Operators inside others are many, and say nothing more.
  auto& end = operator_ends_[thread];
  if (time.end <= end) return false;
  end = time.end;
  if (name == "aten::tensor_split") {
    push(into_.splits, time.end);
    return false;
  }
  // The gradient of a loss, with which its backward begins.
  const bool is_seed = name == "aten::ones_like";
  push(into_.operators, {time, is_seed || name.starts_with("autograd::engine::")});
  return true;
}

void rank_trace_filler::finish(nanoseconds base) {
  for (const auto& [id, forward] : link_begins_)
    if (const auto found = link_ends_.find(id); found != link_ends_.end())
      into_.links.push_back({forward + base, found->second + base});
  std::ranges::sort(into_.links, {}, &gradient_link::backward);
  order(into_.named, base);
  order(into_.functions, base);
  order(into_.posts, base);
  order(into_.transfers, base);
  order(into_.operators, base);
  order(into_.kernels, base);
  for (auto& l : into_.launches) l.at += base;
  std::ranges::sort(into_.launches, {}, &kernel_launch::at);
  for (auto* ends : {&into_.splits, &into_.updates}) {
    for (auto& end : *ends) end += base;
    std::ranges::sort(*ends);
  }
}

}  // namespace rrfp::foreign
