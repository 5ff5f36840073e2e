#include <algorithm>
#include <cstdlib>
#include <ranges>
#include <unordered_map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "parts.hpp"

namespace rrfp::report {

namespace {

using nlohmann::ordered_json;

constexpr std::array choices{choice::hint_head, choice::skipped_not_ready, choice::memory_bound,
                             choice::only_choice};

/// Microseconds with at most one decimal: there may be many times, so their texts must be short.
void put_time(std::string& out, nanoseconds t) {
  const auto tenths = (std::abs(t) + 50) / 100;
  if (t < 0 && tenths != 0) out += '-';
  fmt::format_to(std::back_inserter(out), "{}", tenths / 10);
  if (tenths % 10 != 0) fmt::format_to(std::back_inserter(out), ".{}", tenths % 10);
}

class run_writer {
 public:
  run_writer(std::string& out, const examined_run& run)
      : out_(out), run_(run), line_(*run.line), begin_(line_.begin()) {}

  void write() {
    const auto& traced = *line_.run;
    put("{{\"title\":{},\"ranks\":{},",
        ordered_json(traced.title).dump(-1, ' ', false, ordered_json::error_handler_t::replace),
        traced.ranks);
    put("\"wall\":");
    put_time(out_, line_.wall());
    put(",\"shown\":");
    put_time(out_, run_.shown_until - begin_);
    put(",\"steps\":[");
    list(line_.steps, [&](const step_span& s) {
      put("[{},", s.step.value());
      times({s.begin - begin_, s.end - begin_});
      put("]");
    });
    put("],\"lanes\":[");
    list(line_.lanes, [&](const lane& l) { write(l); });
    put("],\"path\":[");
    write_path();
    put("],\"held\":[");
    std::size_t stage = 0;
    list(run_.held_by_stage, [&](const auto& series) { write(series, stage++); });
    put("]}}");
  }

 private:
  template <class... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }

  template <class Items, class Write>
  void list(Items&& items, Write write_one) {
    bool first = true;
    for (const auto& item : items) {
      if (!std::exchange(first, false)) out_ += ',';
      write_one(item);
    }
  }

  void times(std::initializer_list<nanoseconds> all) {
    list(all, [&](nanoseconds t) { put_time(out_, t); });
  }

  void write(const lane& l) {
    const auto stage = line_.number_of(l.replica, l.stage, l.rank) / line_.run->ranks;
    const auto name = run_.name_of(stage);
    const auto full =
        line_.run->ranks == 1 ? name : fmt::format("{} rank {}", name, l.rank.value());
    const bool first = l.rank == rank_id{0};
    put(R"({{"name":"{}","full":"{}","first":{},"stage":{},"tasks":[)",
        first ? name : fmt::format("    rank {}", l.rank.value()), full, first, stage);
    std::size_t count = 0;
    const auto is_shown = [&](const auto* t) { return t->begin < run_.shown_until; };
    list(l.tasks | std::views::take_while(is_shown), [&](const auto* t) {
      write(*t);
      drawn_[t] = {line_.number_of(l.replica, l.stage, l.rank), count++};
    });
    put("],\"gaps\":[");
    const auto is_drawn = [&](const gap& g) {
      return g.begin < run_.shown_until && g.why != idle_cause::launch_gap;
    };
    list(l.gaps | std::views::filter(is_drawn), [&](const gap& g) {
      put("[{},", static_cast<int>(g.why));
      times({g.begin - begin_, g.end - g.begin});
      if (g.head) put(",\"{}\",{}", to_string(*g.head), g.other_ready ? 1 : 0);
      put("]");
    });
    put("]}}");
  }

  void write(const traced_task& t) {
    put("[{},{},{},{},", static_cast<int>(t.what.kind), t.what.mb.value(), t.what.chunk.value(),
        t.step.value());
    times({t.begin - begin_, t.end - t.begin, t.delay, t.begin - t.decided});
    put(",{},{}]", static_cast<int>(t.why.why), t.why.skipped);
  }

  void write_path() {
    const auto is_drawn = [&](const path_task& p) { return drawn_.contains(p.task); };
    list(run_.path.tasks | std::views::filter(is_drawn), [&](const path_task& p) {
      const auto [lane, place] = drawn_.at(p.task);
      put("[{},{},{}]", lane, place, static_cast<int>(p.why));
    });
  }

  void write(const std::vector<held>& series, std::size_t stage) {
    put(R"({{"name":"{}","slots":{},"bytes":{},"series":[)", run_.name_of(stage),
        run_.peak_of(&held::slots, stage), run_.peak_of(&held::bytes, stage));
    const auto is_shown = [&](const held& h) { return h.at <= run_.shown_until; };
    list(series | std::views::take_while(is_shown), [&](const held& h) {
      put("[");
      put_time(out_, h.at - begin_);
      put(",{},{}]", h.slots, h.bytes);
    });
    put("]}}");
  }

  std::string& out_;
  const examined_run& run_;
  const timeline& line_;
  nanoseconds begin_;
  std::unordered_map<const traced_task*, std::pair<std::size_t, std::size_t>> drawn_;
};

}  // namespace

std::string data_of(const std::vector<examined_run>& runs) {
  ordered_json words;
  nanoseconds longest = 0;
  for (const auto& r : runs) longest = std::max(longest, r.line->wall());
  words["wall"] = std::max(static_cast<double>(longest) / 1000, 0.001);
  for (int k = 0; k < task_kinds; ++k) words["kinds"].push_back(name(static_cast<task_kind>(k)));
  for (std::size_t s = 0; s < idle_causes; ++s) {
    const auto why = static_cast<idle_cause>(s);
    words["causes"].push_back(name(why));
    words["meanings"][std::string(name(why))] = meaning(why);
  }
  for (const auto c : choices) words["reasons"].push_back(name(c));
  words["holds"] = {"it waited for the task that sent its input",
                    "it waited for the previous launch on its stage",
                    "it waited for the step to begin"};
  auto out = words.dump();
  out.back() = ',';
  out += "\"runs\":[";
  for (const auto& r : runs) {
    if (&r != &runs.front()) out += ",\n";
    run_writer{out, r}.write();
  }
  out += "]}";
  // A title must not close the <script>.
  for (std::size_t at = 0; (at = out.find('<', at)) != std::string::npos;)
    out.replace(at, 1, "\\u003c");
  return out;
}

}  // namespace rrfp::report
