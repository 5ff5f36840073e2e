#include "parts.hpp"

#include <cmath>

#include <fmt/format.h>

#include <rrfp/base/units.hpp>
#include <rrfp/io/html.hpp>

#include "../agreement.hpp"

namespace rrfp::experiment {

namespace {

/// Milliseconds with a precision that suits their size.
std::string time_text(double ms) { return fmt::format("{:.{}f}", ms, ms < 10 ? 3 : 1); }

std::string percent(double part) { return fmt::format("{:.1f} %", 100 * part); }

/// A cell with the memory held by a device, marked if it has less.
void held_cell(html::table& t, const workload_entry& w, std::uint64_t held) {
  const auto text = memory_text(w, held);
  t.cell(text, text.ends_with('!') ? "above" : "");
}

std::string share_bar(const summary& s) {
  std::string out = "<div class=\"bar\">";
  const auto part = [&](std::string_view word, std::string_view colour, double share) {
    if (share > 0)
      out += fmt::format("<i style=\"width:{:.2f}%;background:var(--{})\" title=\"{}: {}\"></i>",
                         100 * share, colour, word, percent(share));
  };
  part("computing", "busy", 1 - s.idle);
  part("blocked in a send", "blocked", s.blocked);
  part("other idle time", "idle", s.idle - s.blocked);
  return out + "</div>";
}

/// The CSS class of a speed-up that is compared with the paper's.
std::string_view verdict(const measured& m) {
  return m.paper <= 0 ? "" : m.aggregate.speed_up >= m.paper ? "better" : "worse";
}

std::string workload_table(const page_data& x, std::size_t workload, std::size_t weather) {
  const auto& e = x.source();
  const auto& w = e.workloads[workload];
  const bool has_bytes = !study::options_of(w.job).cost.preset.empty();
  html::table t{w.name,
                {"run", "step ms", "least", "most", "speed-up", "paper", "device time", "computing",
                 "blocked", "other idle", "slots"}};
  const bool has_gaps = x.engine() != engine_kind::simulator;
  if (has_gaps) t.head("launch gap ms");
  bool has_ranks = false;
  for (std::size_t r = 0; r < e.runs.size(); ++r)
    has_ranks = has_ranks || x.at(workload, weather, r).aggregate.has_rank_waits();
  if (has_ranks)
    for (const auto* head : {"for ranks", "gathering", "deferred", "deferrals"}) t.head(head);
  if (has_bytes)
    for (const auto* head : {"act. GiB", "held GiB"}) t.head(head);
  for (std::size_t r = 0; r < e.runs.size(); ++r) {
    const auto& m = x.at(workload, weather, r);
    t.row(e.runs[r].name, fmt::format("run r{}", r));
    t.cell(time_text(m.aggregate.step_ms));
    t.cell(time_text(m.step_ms.least));
    t.cell(time_text(m.step_ms.most));
    t.cell(fmt::format("{:.2f}x", m.aggregate.speed_up), verdict(m));
    t.cell(figure_text(m.paper));
    t.cell(share_bar(m.aggregate), "share");
    t.cell(percent(1 - m.aggregate.idle));
    t.cell(percent(m.aggregate.blocked));
    t.cell(percent(m.aggregate.idle - m.aggregate.blocked));
    t.cell(std::to_string(m.aggregate.slots_peak));
    if (has_gaps) t.cell(time_text(m.aggregate.launch_gap_ms));
    if (has_ranks) {
      for (const auto share : {m.aggregate.ranks, m.aggregate.gathering, m.aggregate.deferred})
        t.cell(percent(share));
      t.cell(percent(m.aggregate.deferral_share()));
    }
    if (!has_bytes) continue;
    t.cell(
        fmt::format("{:.1f}", static_cast<double>(m.aggregate.activation_bytes_peak) / gibibyte));
    held_cell(t, w, m.aggregate.held_bytes_peak);
  }
  return t.finish();
}

/// The paper's figure, if given, and ours.
std::string beside(const std::string& paper, const std::string& ours) {
  return paper.empty() ? ours : fmt::format("<span class=\"soft\">{} /</span> {}", paper, ours);
}

}  // namespace

std::string paper_rows(const page_data& x, std::size_t weather) {
  const auto& e = x.source();
  std::vector<std::size_t> runs;
  for (std::size_t r = 0; r < e.runs.size(); ++r)
    for (std::size_t w = 0; w < x.workloads(); ++w)
      if (x.at(w, weather, r).paper > 0) {
        runs.push_back(r);
        break;
      }
  if (runs.empty()) return "";
  html::table t{"", {"workload", "1F1B s"}};
  for (const auto r : runs) {
    t.head(e.runs[r].name);
    t.head("GiB");
  }
  std::vector<paper_score> scores(runs.size());
  for (std::size_t w = 0; w < x.workloads(); ++w) {
    const auto& of = e.workloads[w];
    t.row(of.name);
    t.cell(beside(
        figure_text(of.paper.in_order_s),
        fmt::format("{:.2f}", x.at(w, weather, e.run_index(e.baseline)).aggregate.step_ms / 1e3)));
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const auto& m = x.at(w, weather, runs[i]);
      t.cell(beside(figure_text(m.paper), fmt::format("{:.2f}", m.aggregate.speed_up)), verdict(m));
      held_cell(t, of, m.aggregate.held_bytes_peak);
      scores[i].add(m.paper, m.aggregate.speed_up);
    }
  }
  t.row("geometric mean", "sum");
  t.cell("");
  for (const auto& s : scores) {
    t.cell(beside(s.mean(s.paper_log), s.mean(s.ours_log)));
    t.cell("");
  }
  t.row("at or above the paper's");
  t.cell("");
  for (const auto& s : scores) {
    t.cell(fmt::format("{} of {}", s.reached, s.rows));
    t.cell("");
  }
  return t.finish();
}

std::string workload_tables(const page_data& x, std::size_t weather) {
  std::string out = "<div class=\"legend\">" + html::swatch("var(--busy)", "computing") +
                    html::swatch("var(--blocked)", "blocked in a send") +
                    html::swatch("var(--idle)", "other idle time") +
                    "</div>\n<div class=\"blocks\">\n";
  for (std::size_t w = 0; w < x.workloads(); ++w) out += workload_table(x, w, weather);
  return out + "</div>\n";
}

std::string agreement_html(const experiment& e, const std::vector<outcome>& simulated,
                           const std::vector<outcome>& measured) {
  const auto rows = agreement_rows(e, simulated, measured);
  html::table t{"", {rows[0].begin(), rows[0].end()}};
  for (std::size_t r = 1; r < rows.size(); ++r) {
    t.row(rows[r][0], r + 1 < rows.size() ? fmt::format("run r{}", r - 1) : "sum");
    for (auto cell = rows[r].begin() + 1; cell != rows[r].end(); ++cell) t.cell(*cell);
  }
  return t.finish();
}

overall overall_of(const page_data& x, std::size_t weather, std::size_t run) {
  overall all;
  double logs = 0;
  for (std::size_t w = 0; w < x.workloads(); ++w) {
    const auto& s = x.at(w, weather, run).aggregate;
    logs += std::log(s.speed_up);
    all.idle += s.idle / static_cast<double>(x.workloads());
    all.range.include(s.speed_up);
  }
  all.mean = std::exp(logs / static_cast<double>(x.workloads()));
  return all;
}

}  // namespace rrfp::experiment
