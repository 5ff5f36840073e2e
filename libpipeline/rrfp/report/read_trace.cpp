#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include <rrfp/base/parse_number.hpp>
#include <rrfp/io/byte_source.hpp>

#include "trace_fields.hpp"

namespace rrfp::report {

namespace {

using nlohmann::json;

constexpr std::string_view expected = "expected a trace of rrfp-node run --trace";

/// Removes `word` and the number after it from the end of `text`, and returns the number.
std::optional<std::uint32_t> take_number(std::string& text, std::string_view word) {
  const auto at = text.rfind(word);
  if (at == std::string::npos) return std::nullopt;
  const auto digits = text.substr(at + word.size());
  const auto number = digits.size() > 6 ? std::nullopt : parse_number<std::uint32_t>(digits);
  if (number) text.resize(at);
  return number;
}

/// The run, replica and stage of a process in the trace.
struct process {
  std::size_t run = 0;
  replica_id replica;
  stage_id stage;
};

/// Whether the last stage runs the second chunk of a microbatch before the first stage does.
bool turns_back(const traced_run& run) {
  if (run.shape.chunks != 2) return false;
  std::map<std::tuple<step_id, microbatch_id>, nanoseconds> on_last;
  const auto each = [&](std::uint32_t stage, auto visit) {
    for (const auto& t : run.tasks)
      if (t.stage.value() == stage && t.what.kind == task_kind::forward &&
          t.what.chunk.value() == 1)
        visit(std::tuple{t.step, t.what.mb}, t.begin);
  };
  each(run.shape.stages - 1, [&](auto key, nanoseconds begin) { on_last.emplace(key, begin); });
  std::int64_t earlier = 0;
  each(0, [&](auto key, nanoseconds begin) {
    if (const auto last = on_last.find(key); last != on_last.end())
      earlier += last->second < begin ? 1 : -1;
  });
  return earlier > 0;
}

class reader {
 public:
  /// Reads one event. Events must come in the order of the file.
  void read_event(const json& event) {
    if (!event.is_object()) throw malformed{"expected an event, got " + fields::shown(event)};
    const fields e{event};
    const auto phase = e.text("ph");
    if (phase == "M") return read_name(e);
    if (phase == "C") return read_counter(e);
    if (phase == "i") return read_step(e);
    if (phase == "X" && e.object("args").has("evaluation")) return skip_evaluation(e);
    if (phase == "X") {
      const auto category = e.text("cat");
      if (category == "recovery") return read_recovery(e);
      if (category == "plan") return;  // of older versions
      return category == "wait" ? read_wait(e) : read_task(e);
    }
    throw malformed{fmt::format("expected an event with \"ph\" M, X, C or i, got {}",
                                fields::shown(event.at("ph")))};
  }

  std::vector<traced_run> finish() {
    std::erase_if(runs_, [](const auto& run) { return run.tasks.empty(); });
    if (runs_.empty()) throw malformed{"got one without tasks"};
    for (auto& run : runs_) {
      sort(run);
      find_shape(run);
    }
    return std::move(runs_);
  }

 private:
  void read_name(const fields& e) {
    if (e.text("name") != "process_name") return;
    auto title = e.object("args").text("name");
    const auto whole_name = title;
    const auto stage = take_number(title, "stage ");
    std::uint32_t replica = 0;
    if (title.ends_with(' ')) {
      title.pop_back();
      if (const auto number = take_number(title, "replica "))
        replica = *number;
      else
        title += ' ';
    }
    if (!stage || *stage >= traced_stages_max || replica >= traced_stages_max ||
        !title.ends_with(": "))
      throw malformed{fmt::format("expected a process named as \"title: stage 0\", got \"{}\"",
                                  printable(whole_name))};
    title.resize(title.size() - 2);
    const auto id = e.index("pid");
    // The same title, replica and stage again begin another run.
    if (runs_.empty() || runs_.back().title != title || !places_.emplace(replica, *stage).second) {
      runs_.emplace_back().title = title;
      places_ = {{replica, *stage}};
    }
    if (!processes_.emplace(id, process{runs_.size() - 1, replica_id{replica}, stage_id{*stage}})
             .second)
      throw malformed{fmt::format("process {} is named twice", id)};
  }

  const process& process_of(const fields& e) {
    const auto found = processes_.find(e.index("pid"));
    if (found == processes_.end())
      throw malformed{fmt::format("process {} has no name", e.index("pid"))};
    return found->second;
  }

  void read_task(const fields& e) {
    const auto& at = process_of(e);
    const auto args = e.object("args");
    traced_task t;
    t.replica = at.replica;
    t.stage = at.stage;
    t.rank = rank_id{e.index("tid", traced_ranks_max - 1)};
    t.step = args.step();
    t.seq = launch_seq{args.whole("seq", std::uint64_t{1} << 52)};
    t.what = e.task_named("name");
    t.why = {args.named("reason", {choice::hint_head, choice::skipped_not_ready,
                                   choice::memory_bound, choice::only_choice}),
             args.index("skipped", ~std::uint32_t{0})};
    if (args.has("pieces")) {
      t.piece.count = args.index("pieces", traced_pieces_max);
      t.piece.number = args.index("piece", traced_pieces_max);
      if (t.piece.number >= t.piece.count) throw malformed{"expected \"piece\" below \"pieces\""};
    }
    if (args.has("pass")) t.pass = args.named("pass", {forward_pass::early, forward_pass::again});
    t.begin = e.time("ts");
    t.end = t.begin + e.time("dur");
    t.decided = std::min(args.time("decided_us"), t.begin);
    t.delay = std::min(args.added_time("delay_us"), t.end - t.begin);
    last_task_[e.index("pid")] = runs_[at.run].tasks.size();
    runs_[at.run].tasks.push_back(t);
  }

  /// Evaluations are not steps; the counters that follow are skipped, too.
  void skip_evaluation(const fields& e) { last_task_[e.index("pid")] = std::nullopt; }

  /// A counter holds the memory at the end of the preceding task.
  void read_counter(const fields& e) {
    auto& tasks = runs_[process_of(e).run].tasks;
    const auto found = last_task_.find(e.index("pid"));
    if (found == last_task_.end()) throw malformed{"a counter before the first task"};
    if (!found->second) return;
    const auto held = e.object("args").bytes("held");
    const auto which = e.text("name");
    if (which == "slots") tasks[*found->second].slots = held;
    if (which == "activation bytes") tasks[*found->second].bytes = held;
  }

  void read_wait(const fields& e) {
    const auto& at = process_of(e);
    const auto args = e.object("args");
    const auto step = args.step();
    wait what;
    what.why = e.named("name", std::span<const wait_cause>{all_wait_causes}, "wait: ");
    if (what.why != wait_cause::complete) what.head = args.task_named("for");
    const auto begin = e.time("ts");
    runs_[at.run].waits.push_back({at.replica, at.stage, step, what, begin, begin + e.time("dur")});
  }

  void read_step(const fields& e) {
    const auto args = e.object("args");
    runs_[process_of(e).run].steps.push_back(
        {args.step(), args.time("took_us"), args.bytes("peak_bytes")});
  }

  void read_recovery(const fields& e) {
    constexpr std::uint64_t steps_max = 1'000'000'000'000;
    const auto args = e.object("args");
    runs_[process_of(e).run].recoveries.push_back(
        {printable(args.text("lost")), args.whole("step", steps_max),
         args.whole("from_copies", 1) == 1, args.whole("repeated_steps", steps_max),
         args.time("held_us")});
  }

  static void sort(traced_run& run) {
    const auto place = [](const traced_task& t) {
      return std::tuple{t.replica, t.stage, t.rank, t.begin, t.end, t.seq};
    };
    std::ranges::sort(run.tasks, {}, place);
    for (std::size_t i = 1; i < run.tasks.size(); ++i) {
      const auto& a = run.tasks[i - 1];
      const auto& b = run.tasks[i];
      if (std::tie(a.replica, a.stage, a.rank) == std::tie(b.replica, b.stage, b.rank) &&
          b.begin < a.end)
        throw malformed{
            fmt::format("got run \"{}\", stage {} rank {}, {} and {} of step {} overlapping",
                        printable(run.title), a.stage.value(), a.rank.value(), to_string(a.what),
                        to_string(b.what), b.step.value())};
    }
    std::ranges::stable_sort(run.waits, {}, [](const traced_wait& w) {
      return std::tuple{w.replica, w.stage, w.begin};
    });
  }

  static void find_shape(traced_run& run) {
    auto& shape = run.shape;
    shape = {0, 0, 0, placement::linear};
    const auto grow = [](auto& size, auto id) { size = std::max(size, id.value() + 1); };
    for (const auto& t : run.tasks) {
      grow(run.replicas, t.replica);
      grow(run.ranks, t.rank);
      grow(shape.stages, t.stage);
      grow(shape.chunks, t.what.chunk);
      grow(shape.microbatches, t.what.mb);
    }
    for (const auto& w : run.waits) {
      grow(run.replicas, w.replica);
      grow(shape.stages, w.stage);
    }
    const auto lanes = std::uint64_t{run.replicas} * shape.stages * run.ranks;
    if (lanes > traced_lanes_max)
      throw malformed{
          fmt::format("expected at most {} ranks in all stages and replicas, got {} in run \"{}\"",
                      traced_lanes_max, lanes, printable(run.title))};
    shape.layout = infer_placement(run);
  }

  std::vector<traced_run> runs_;
  std::set<std::pair<std::uint32_t, std::uint32_t>> places_;
  std::map<std::uint32_t, process> processes_;
  /// Index of the last task by process; empty if that was an evaluation.
  std::map<std::uint32_t, std::optional<std::size_t>> last_task_;
};

std::string broken(std::string_view text, const std::string& file, json_fault fault) {
  const auto last = text.find_last_not_of(" \t\r\n");
  const bool cut_off = last == std::string_view::npos || last + 1 < fault.byte;
  fault.reason = fmt::format("{}, got {}", expected,
                             text.empty() ? "an empty file"
                             : cut_off    ? "JSON that ends too early"
                                          : "text that is " + fault.reason);
  return fault.message_in(file);
}

}  // namespace

placement infer_placement(const traced_run& run) {
  if (run.shape.chunks == 1) return placement::linear;
  return turns_back(run) ? placement::v : placement::interleaved;
}

result<trace_file> parse_trace(std::string_view text, const std::string& file) {
  reader events;
  std::size_t count = 0;
  std::string key;
  bool has_events = false;
  // Each event is processed as soon as it is parsed and then dropped: a trace may be large.
  const auto each = [&](int depth, json::parse_event_t what, json& parsed) {
    if (what == json::parse_event_t::key && depth == 1) key = parsed.get<std::string>();
    const bool is_event =
        depth == 2 && key == "traceEvents" &&
        (what == json::parse_event_t::object_end || what == json::parse_event_t::value);
    if (depth == 1 && what == json::parse_event_t::array_end && key == "traceEvents")
      has_events = true;
    if (!is_event) return true;
    ++count;
    events.read_event(parsed);
    return false;
  };
  try {
    const auto parsed = parse_json(text, each);
    if (const auto* fault = std::get_if<json_fault>(&parsed))
      return error{broken(text, file, *fault)};
    const auto& whole_file = std::get<json>(parsed);
    if (!whole_file.is_object() || !has_events)
      return error{fmt::format("{}: {}, got JSON without \"traceEvents\"", file, expected)};
    trace_file read;
    if (const auto other = whole_file.find("otherData");
        other != whole_file.end() && other->is_object() && other->contains("records_dropped"))
      read.dropped = fields{*other}.whole("records_dropped", ~std::uint64_t{0});
    count = 0;
    read.runs = events.finish();
    return read;
  } catch (const malformed& m) {
    if (count == 0) return error{fmt::format("{}: {}, {}", file, expected, m.what)};
    return error{fmt::format("{}: {}; event {}: {}", file, expected, count, m.what)};
  }
}

result<trace_file> read_trace(const std::string& file) {
  const auto text = io::head_of(file, trace_bytes_max + 1);
  if (!text) return text.failure();
  if (text->size() > trace_bytes_max)
    return error{
        fmt::format("{}: expected a trace of at most {} bytes, got more", file, trace_bytes_max)};
  return parse_trace(*text, file);
}

}  // namespace rrfp::report
