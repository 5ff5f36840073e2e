#include <algorithm>

#include <fmt/format.h>

#include <rrfp/base/units.hpp>
#include <rrfp/io/html.hpp>

#include "parts.hpp"

namespace rrfp::report {

namespace {

using html::escaped;
using html::table;
using runs_list = std::vector<examined_run>;

std::string percent(double part) { return fmt::format("{:.1f} %", part * 100); }

/// Milliseconds with a precision that suits the longest time.
std::string time_text(nanoseconds t, nanoseconds longest) {
  const int decimals = longest >= 1'000'000'000 ? 1 : longest >= 10'000'000 ? 2 : 4;
  return fmt::format("{:.{}f}", milliseconds(t), decimals);
}

nanoseconds longest_wall(const runs_list& runs) {
  nanoseconds longest = 0;
  for (const auto& r : runs) longest = std::max(longest, r.line->wall());
  return longest;
}

std::string variable(std::string_view word) {
  std::string name{word};
  std::replace(name.begin(), name.end(), ' ', '-');
  return "var(--" + name + ")";
}

std::string swatch(std::string_view word) { return html::swatch(variable(word), word); }

std::string bars_of(const examined_run& r, nanoseconds longest) {
  std::string out = "<div class=\"bars\">\n";
  for (std::size_t s = 0; s < r.by_stage.size(); ++s) {
    const auto& b = r.by_stage[s];
    out += fmt::format("<span>{}</span><div class=\"bar\">", r.name_of(s));
    const auto part = [&](std::string_view word, nanoseconds t) {
      if (t == 0) return;
      const auto width = share(t, longest * b.ranks) * 100;
      out += fmt::format(
          "<i style=\"width:{:.4f}%;background:{}\" title=\"{}: {} ms, {} of the wall time\"></i>",
          width, variable(word), word, time_text(t / b.ranks, longest), percent(share(t, b.wall)));
    };
    for (std::size_t k = 0; k < task_kinds; ++k)
      part(name(static_cast<task_kind>(k)), b.busy_by_kind[k]);
    for (std::size_t c = 0; c < idle_causes; ++c)
      part(name(static_cast<idle_cause>(c)), b.idle_by_cause[c]);
    out += "</div>\n";
  }
  return out + "</div>\n";
}

std::string load_table(const examined_run& r, nanoseconds longest) {
  table t{"Load: busy ms by kind", {"stage", "tasks"}};
  for (int k = 0; k < task_kinds; ++k) t.head(name(static_cast<task_kind>(k)));
  for (const auto* head : {"busy", "% of wall", "injected delay", "slots", "held MiB"})
    t.head(head);
  for (std::size_t s = 0; s < r.by_stage.size(); ++s) {
    const auto& b = r.by_stage[s];
    t.row(r.name_of(s));
    t.cell(std::to_string(b.tasks));
    for (const auto busy : b.busy_by_kind) t.cell(time_text(busy / b.ranks, longest));
    t.cell(time_text(b.busy() / b.ranks, longest));
    t.cell(percent(share(b.busy(), b.wall)));
    t.cell(time_text(b.delay / b.ranks, longest));
    t.cell(std::to_string(r.peak_of(&held::slots, s)));
    const auto bytes = r.peak_of(&held::bytes, s);
    t.cell(bytes == 0 ? "-" : fmt::format("{:.2f}", mebibytes(bytes)));
  }
  return t.finish();
}

std::string idle_table(const examined_run& r, nanoseconds longest) {
  table t{"Idle: ms by cause", {"stage"}};
  for (std::size_t c = 0; c < idle_causes; ++c) t.head(name(static_cast<idle_cause>(c)));
  for (const auto* head : {"idle", "% of wall", "another task ready"}) t.head(head);
  const auto cells = [&](const breakdown& b) {
    for (const auto idle : b.idle_by_cause) t.cell(time_text(idle / b.ranks, longest));
    t.cell(time_text(b.idle() / b.ranks, longest));
    t.cell(percent(share(b.idle(), b.wall)));
    t.cell(time_text(b.other_ready / b.ranks, longest));
  };
  for (std::size_t s = 0; s < r.by_stage.size(); ++s) {
    t.row(r.name_of(s));
    cells(r.by_stage[s]);
  }
  t.row("mean", "sum");
  cells(r.total);
  return t.finish();
}

std::string path_table(const examined_run& r, nanoseconds longest) {
  const auto& p = r.path;
  table t{r.line->run->title, {"part", "tasks"}};
  for (int k = 0; k < task_kinds; ++k) t.head(name(static_cast<task_kind>(k)));
  for (const auto* head : {"injected delay", "ms", "% of path"}) t.head(head);
  const auto sum = [&](nanoseconds part) {
    t.cell(time_text(part, longest));
    t.cell(percent(share(part, p.length())));
  };
  for (std::size_t s = 0; s < p.by_stage.size(); ++s) {
    const auto& stage = p.by_stage[s];
    t.row(fmt::format("compute of stage {}", s));
    t.cell(std::to_string(stage.tasks));
    for (const auto c : stage.compute_by_kind) t.cell(time_text(c, longest));
    t.cell(time_text(stage.delay, longest));
    sum(stage.compute());
  }
  const auto plain = [&](std::string_view what, nanoseconds part, std::string_view kind = {}) {
    t.row(what, kind);
    for (int empty = 0; empty < task_kinds + 2; ++empty) t.cell("");
    sum(part);
  };
  plain("transfer", p.transfer);
  plain("launch gaps", p.launch_gap);
  plain("start of steps", p.step_begin);
  plain("between steps", p.between_steps);
  plain("sum", p.length(), "sum");
  return t.finish();
}

}  // namespace

std::int64_t examined_run::peak_of(std::int64_t held::*what, std::size_t stage) const {
  std::int64_t most = 0;
  for (const auto& h : held_by_stage[stage]) most = std::max(most, h.*what);
  return most;
}

std::string_view meaning(idle_cause s) {
  constexpr std::array<std::string_view, idle_causes> meanings{
      "No task could be launched: an activation of the previous stage was missing.",
      "No task could be launched: an output gradient of the next stage was missing.",
      "A task was ready, but no memory slot was free for it.",
      "Another tensor-parallel rank of the stage had not finished the task, or an input had "
      "not arrived on it.",
      "A task was ready, but the rank had not begun it: decision, message, wake-up.",
      "From the start of the step to the decision for the rank's first task: the pipeline "
      "fills.",
      "From the rank's last task to the end of the step's last task anywhere: the pipeline "
      "drains.",
      "From the end of a step to the start of the next, equal on every rank: gradient "
      "exchange, optimizer, evaluations, the job's barrier. Not part of the bubble."};
  return meanings[static_cast<std::size_t>(s)];
}

std::string cards_of(const runs_list& runs) {
  std::string out = "<div class=\"cards\">\n";
  for (const auto& r : runs) {
    out += fmt::format("<div class=\"card\"><h3>{}</h3><dl class=\"num\">",
                       escaped(r.line->run->title));
    const auto item = [&](std::string_view what, const std::string& value) {
      out += fmt::format("<dt>{}</dt><dd>{}</dd>", what, value);
    };
    const auto& f = r.figures;
    item("step ms", fmt::format("{:.{}f}", f.step_ms, f.step_ms < 1 ? 4 : 1));
    if (runs.size() > 1)
      item("speed-up", fmt::format("{:.2f}x", runs.front().figures.step_ms / f.step_ms));
    item("bubble", percent(f.bubble));
    item("slots", std::to_string(f.slots_peak));
    // The traces of others do not say it.
    if (f.bytes_peak > 0) item("peak MiB", fmt::format("{:.1f}", mebibytes(f.bytes_peak)));
    out += "</dl></div>\n";
  }
  return out + "</div>\n";
}

std::string stages_of(const runs_list& runs) {
  const auto longest = longest_wall(runs);
  std::string out =
      "<p class=\"soft\">Mean over the ranks of a stage; busy and idle time add up to the wall "
      "time. All bars share one scale.</p>\n" +
      legend();
  for (const auto& r : runs)
    out += fmt::format("<h3>{}</h3>\n", escaped(r.line->run->title)) + bars_of(r, longest) +
           "<div class=\"pair\">" + load_table(r, longest) + idle_table(r, longest) + "</div>\n";
  return out;
}

std::string paths_of(const runs_list& runs) {
  const auto longest = longest_wall(runs);
  std::string out =
      "<p class=\"soft\">From the end of the last task back, from each task to the one that it "
      "waited for: the sender of its input, or the previous launch on its stage. Shortening a part "
      "of this path shortens the run, until another path is longer.</p>\n<div class=\"pair\">\n";
  for (const auto& r : runs) out += path_table(r, longest);
  return out + "</div>\n";
}

std::string legend() {
  std::string out = "<div class=\"legend\">";
  for (int k = 0; k < task_kinds; ++k) out += swatch(name(static_cast<task_kind>(k)));
  out +=
      "<span><svg class=\"swatch\" style=\"width:11px;height:11px;background:var(--F)\"><rect "
      "width=\"11\" height=\"11\" fill=\"url(#hatch)\"/></svg>injected delay</span>";
  for (std::size_t c = 0; c < idle_causes; ++c) out += swatch(name(static_cast<idle_cause>(c)));
  return out +
         "<span><i class=\"swatch\" style=\"background:var(--path)\"></i>critical path</span>"
         "</div>\n";
}

std::string glossary() {
  std::string out = "<dl class=\"words\">\n";
  const auto item = [&](std::string_view word, std::string_view what) {
    out += fmt::format("<dt>{}</dt><dd>{}</dd>\n", word, what);
  };
  item("F, B, W, BW",
       "Tasks: forward, backward (the input gradient alone), weight gradient, fused backward; the "
       "number is the microbatch, after a dot the chunk.");
  item("injected delay", "The hatched end of a task: jitter that the job injects.");
  for (std::size_t c = 0; c < idle_causes; ++c) {
    const auto why = static_cast<idle_cause>(c);
    item(name(why), meaning(why));
  }
  item("another task ready",
       "The part of the waits for an activation or a gradient in which in-order dispatch followed "
       "its sequence although another task was ready.");
  item("transfer",
       "On the critical path: from the end of the sending task to the decision for the receiving "
       "one.");
  item("step ms", "Median time of a step, with the gradient exchange and the optimizer.");
  item("bubble",
       "Share of the time without a task, from the first task of each step to its last. The idle "
       "time by cause also has the time before the first task and between steps.");
  item("slots, peak MiB",
       "Most microbatches that a stage held at once, and most activation memory of a rank. The "
       "table of rrfp-node has the same four figures, over all steps of a run.");
  item(
      "held MiB",
      "Most activation memory of a rank of the stage at the end of a task; within a task it may be "
      "more.");
  return out + "</dl>\n";
}

}  // namespace rrfp::report
