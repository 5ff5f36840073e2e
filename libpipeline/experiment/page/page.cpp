#include <rrfp/experiment/page.hpp>

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include <rrfp/html/html.hpp>
#include <rrfp/schedule/check.hpp>

#include "page/assets.hpp"
#include "page/charts.hpp"
#include "page/tables.hpp"

namespace rrfp::experiment {

namespace {

using html::escaped;

constexpr std::size_t buttons_max = 24;

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& w : words) text += (text.empty() ? "" : ", ") + w;
  return text;
}

std::string soft(const std::string& text) {
  return fmt::format("<p class=\"soft\">{}</p>\n", escaped(text));
}

std::string machine_text(const machine_options& m) {
  return fmt::format(
      "{} TFLOP/s, {} GiB at {} GB/s; {} on a node; {} GB/s and {} us within it, {} GB/s and {} us "
      "between nodes; kernels reach {:.0f} % of the peaks",
      m.tflops, m.memory_gib, m.memory_gb_s, m.group, m.within_gb_s, m.within_us, m.between_gb_s,
      m.between_us, 100 * m.efficiency);
}

/// What the workloads run on, a line for each that differs.
std::string machines_of(const experiment& e) {
  std::map<std::string, std::vector<std::string>> of;
  for (const auto& w : e.workloads)
    of[w.is.preset.empty() ? "task times as the experiment gives them; bytes are not counted"
                           : machine_text(w.machine)]
        .push_back(w.is.name);
  std::string out;
  for (const auto& [text, workloads] : of)
    out += soft("Devices" + (of.size() == 1 ? "" : " of " + join(workloads)) + ": " + text + ".");
  return out;
}

std::string head_of(const experiment& e, const std::vector<examined>& parts,
                    const std::string& machine) {
  std::vector<std::string> engines, seeds;
  for (const auto& x : parts) {
    engines.emplace_back(name(x.engine()));
    if (x.engine() == engine_kind::wall_clock)
      engines.back() += fmt::format(" (time scale {})", e.time_scale);
  }
  for (const auto s : e.seeds) seeds.push_back(std::to_string(s));
  const auto shown = parts.front().workloads();
  std::string out =
      soft(fmt::format("{} workloads, {} weathers, {} runs; seeds {}; {} steps each. Engine: {}.",
                       e.workloads.size(), e.weathers.size(), e.runs.size(), join(seeds), e.steps,
                       join(engines))) +
      soft("Speed-ups are over " + e.baseline + ". From " + e.source +
           (machine.empty() ? "." : "; ran on " + machine + ".")) +
      machines_of(e);
  if (shown < e.workloads.size())
    out += fmt::format(
        "<p class=\"note\">Shown are the first {} of {} workloads, as many as a page may hold; "
        "results.csv and results.json have all.</p>\n",
        shown, e.workloads.size());
  return out;
}

/// "measured weather", with the engine where there are several.
std::string title_of(const experiment& e, const std::vector<examined>& parts, const examined& x,
                     std::size_t weather) {
  return e.weathers[weather].name + " weather" +
         (parts.size() == 1 ? "" : ", " + std::string{name(x.engine())});
}

std::string anchor_of(std::size_t part, std::size_t weather) {
  return fmt::format("p{}w{}", part, weather);
}

std::string links_of(const experiment& e, const std::vector<examined>& parts) {
  if (parts.size() * e.weathers.size() == 1) return "";
  std::string out = "<nav>";
  for (std::size_t p = 0; p < parts.size(); ++p)
    for (std::size_t k = 0; k < e.weathers.size(); ++k)
      out += fmt::format("<a href=\"#{}\">{}</a>", anchor_of(p, k),
                         escaped(title_of(e, parts, parts[p], k)));
  if (parts.size() > 1) out += "<a href=\"#agreement\">Agreement</a>";
  return out + "<a href=\"#words\">Words</a></nav>\n";
}

std::string in_short(const experiment& e, const std::vector<examined>& parts) {
  auto out = "<h2>In short</h2>\n" +
             soft("Of each run the speed-up over " + e.baseline +
                  ": geometric mean of the workloads, the least and the most of them; and the mean "
                  "share of the devices' time in which no task ran.") +
             "<div class=\"pair\">\n";
  for (const auto& x : parts)
    for (std::size_t k = 0; k < e.weathers.size(); ++k) {
      html::table t{title_of(e, parts, x, k), {"run", "mean", "least", "most", "idle"}};
      for (std::size_t r = 0; r < e.runs.size(); ++r) {
        const auto all = overall_of(x, k, r);
        t.row(e.runs[r].name, fmt::format("run r{}", r));
        t.cell(fmt::format("<b>{:.2f}x</b>", all.mean));
        t.cell(fmt::format("{:.2f}x", all.of.least));
        t.cell(fmt::format("{:.2f}x", all.of.most));
        t.cell(fmt::format("{:.1f} %", 100 * all.idle));
      }
      out += t.finish();
    }
  return out + "</div>\n";
}

/// Hidden until the script runs.
std::string tools_of(const experiment& e) {
  std::string out = "<div id=\"tools\" hidden><span class=\"soft\">pick out:</span>";
  for (std::size_t r = 0; r < std::min(e.runs.size(), buttons_max); ++r)
    out += fmt::format("<button data-run=\"r{}\">{}</button>", r, escaped(e.runs[r].name));
  return out + "<span class=\"soft\">or click a run</span></div>\n";
}

std::string chart_legend() {
  std::string out = "<div class=\"legend\">";
  for (const auto mode : {run_mode::blocking, run_mode::in_order, run_mode::ready})
    out += html::swatch(fmt::format("var(--{});border-radius:50%", name(mode)), name(mode));
  return out +
         "<span><svg class=\"swatch\" style=\"width:11px;height:11px;border:0\"><path "
         "class=\"paper\" d=\"M5.5 1l4.5 4.5l-4.5 4.5l-4.5 -4.5z\"/></svg>the paper's figure</span>"
         "<span><svg class=\"swatch\" style=\"width:18px;height:11px;border:0\"><path "
         "class=\"spread\" d=\"M1 2.5v6M1 5.5H17M17 2.5v6\"/></svg>least and most of all steps of "
         "all seeds</span></div>\n";
}

std::string section_of(const examined& x, std::size_t weather, const std::string& title,
                       const std::string& anchor) {
  const auto& e = x.of();
  auto out = fmt::format("<h2 id=\"{}\">{}</h2>\n<h3>Speed-up over {}</h3>\n", anchor,
                         escaped(title), escaped(e.baseline)) +
             chart_legend() + speed_up_charts(x, weather);
  if (const auto rows = paper_rows(x, weather); !rows.empty())
    out += "<h3>Beside the paper</h3>\n" +
           soft(
               "The paper's / ours: seconds of an iteration, and speed-ups over it. GiB: held, ! "
               "where the device has less.") +
           rows;
  if (const auto charts = ablation_charts(x, weather); !charts.empty())
    out += "<h3>What each ingredient adds</h3>\n" +
           soft(
               "Each bar goes from the speed-up without the ingredient to the one with it; "
               "beside it what it adds, and the speed-up over " +
               e.ablation.front() + " with all so far.") +
           charts;
  return out + "<h3>Step times, device time, memory</h3>\n" + workload_tables(x, weather);
}

std::string words() {
  std::string out = "<h2 id=\"words\">Words</h2>\n<dl class=\"words\">\n";
  const auto item = [&](std::string_view word, std::string_view what) {
    out += fmt::format("<dt>{}</dt><dd>{}</dd>\n", word, what);
  };
  item("blocking, in-order, ready",
       "In order, send and receive meet; in order, messages fly; by readiness, the order is a "
       "hint.");
  item("step ms",
       "Mean of all steps of all seeds, the exchange of gradients included; least and most of "
       "them.");
  item("speed-up",
       "The baseline's step time over this run's; both meet the same weather, step by step. Its "
       "spread is of single steps.");
  item("device time",
       "Of all devices together: computing; blocked, a finished task's result was not received "
       "yet (blocking sends alone); other idle time, for want of an input, of memory, or at the "
       "ends of a step.");
  item(
      "launch gap ms",
      "Of a step on the stage with most of it: a device was free and its stage waited for nothing, "
      "while the runtime decided and launched. On the wall clock alone.");
  item("slots", "Microbatches that the fullest stage held at once, pending weight gradients too.");
  item("act. GiB, held GiB",
       "Activations at their peak on the fullest device; with weights, gradients and optimizer "
       "state. ! where the device has less.");
  return out + "</dl>\n";
}

}  // namespace

std::string report_page(const experiment& e, const std::vector<engine_outcomes>& all,
                        const std::string& machine, std::size_t rows_max) {
  RRFP_CHECK(!all.empty(), "at least one engine ran");
  std::vector<examined> parts;
  for (const auto& made : all) parts.emplace_back(e, made, rows_max);
  html::document page;
  page.title = e.name;
  page.style = page_css;
  page.script = page_js;
  page.body = head_of(e, parts, machine) + links_of(e, parts) + in_short(e, parts) + tools_of(e);
  for (std::size_t p = 0; p < parts.size(); ++p)
    for (std::size_t k = 0; k < e.weathers.size(); ++k)
      page.body += section_of(parts[p], k, title_of(e, parts, parts[p], k), anchor_of(p, k));
  if (all.size() > 1)
    page.body += "<h2 id=\"agreement\">Agreement</h2>\n" +
                 soft(fmt::format(
                     "How far the mean steps of the {} are from those of the {}, cell by cell, "
                     "as shares of the latter. Launch gap: median over the cells of the time in "
                     "which a device was free and its stage waited for nothing.",
                     name(all.back().engine), name(all.front().engine))) +
                 agreement_rows(e, all.front().outcomes, all.back().outcomes);
  page.body += words();
  return html::text_of(page);
}

}  // namespace rrfp::experiment
