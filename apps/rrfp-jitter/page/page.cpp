#include "../page.hpp"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include <rrfp/base/check.hpp>
#include <rrfp/io/html.hpp>

#include "../agreement.hpp"
#include "parts.hpp"

namespace rrfp::experiment {

// The files, embedded.
extern const char* const page_css;
extern const char* const page_js;

namespace {

using html::escaped;

constexpr std::size_t buttons_max = 24;

std::string soft(const std::string& text) {
  return fmt::format("<p class=\"soft\">{}</p>\n", escaped(text));
}

std::string machine_text(const study::machine& m) {
  return fmt::format(
      "{} TFLOP/s, {} GiB at {} GB/s; {} on a node; {} GB/s and {} us within it, {} GB/s and {} us "
      "between nodes; kernels reach {:.0f} % of peak",
      m.tflops, m.memory_gib, m.memory_gb_s, m.group, m.within_gb_s, m.within_us, m.between_gb_s,
      m.between_us, 100 * m.efficiency);
}

/// One line for each distinct machine of the workloads.
std::string machines_of(const experiment& e) {
  std::map<std::string, std::vector<std::string>> by_machine;
  for (const auto& w : e.workloads)
    by_machine[study::options_of(w.job).cost.preset.empty()
                   ? "task times from the experiment file; bytes are not counted"
                   : machine_text(study::options_of(w.job).machine)]
        .push_back(w.name);
  std::string out;
  for (const auto& [text, workloads] : by_machine)
    out += soft("Devices" +
                (by_machine.size() == 1 ? "" : fmt::format(" of {}", fmt::join(workloads, ", "))) +
                ": " + text + ".");
  return out;
}

std::string head_of(const experiment& e, const std::vector<page_data>& parts,
                    const std::string& machine) {
  std::vector<std::string> engines, seeds;
  for (const auto& x : parts) {
    engines.emplace_back(name(x.engine()));
    if (x.engine() == engine_kind::processes)
      engines.back() += fmt::format(" of {} nodes", e.nodes);
    if (x.engine() != engine_kind::simulator)
      engines.back() += fmt::format(" (time scale {})", e.time_scale);
  }
  for (const auto s : e.seeds) seeds.push_back(std::to_string(s));
  const auto shown = parts.front().workloads();
  std::string out =
      soft(fmt::format("Workloads: {}. Weathers: {}. Runs: {}. Seeds: {}. Steps of a cell: {}. "
                       "Engine: {}.",
                       e.workloads.size(), e.weathers.size(), e.runs.size(), fmt::join(seeds, ", "),
                       e.steps, fmt::join(engines, ", "))) +
      soft("Speed-ups are over " + e.baseline + ". From " + e.source +
           (machine.empty() ? "." : "; ran on " + machine + ".")) +
      machines_of(e);
  if (shown < e.workloads.size())
    out += fmt::format(
        "<p class=\"note\">This page shows the first {} of {} workloads, the maximum for a page; "
        "results.csv and results.json hold all of them.</p>\n",
        shown, e.workloads.size());
  return out;
}

/// "weather measured", with the engine if there are several.
std::string title_of(const experiment& e, const std::vector<page_data>& parts, const page_data& x,
                     std::size_t weather) {
  return "weather " + e.weathers[weather].name +
         (parts.size() == 1 ? "" : ", " + std::string{name(x.engine())});
}

std::string anchor_of(std::size_t part, std::size_t weather) {
  return fmt::format("p{}w{}", part, weather);
}

std::string links_of(const experiment& e, const std::vector<page_data>& parts) {
  if (parts.size() * e.weathers.size() == 1) return "";
  std::string out = "<nav>";
  for (std::size_t p = 0; p < parts.size(); ++p)
    for (std::size_t k = 0; k < e.weathers.size(); ++k)
      out += fmt::format("<a href=\"#{}\">{}</a>", anchor_of(p, k),
                         escaped(title_of(e, parts, parts[p], k)));
  if (parts.size() > 1) out += "<a href=\"#agreement\">Wall clock and simulator</a>";
  return out + "<a href=\"#words\">Terms</a></nav>\n";
}

std::string summary_section(const experiment& e, const std::vector<page_data>& parts) {
  auto out = "<h2>Summary</h2>\n" +
             soft("For each run: the speed-up over " + e.baseline +
                  " (geometric mean, minimum and maximum over the workloads), and the mean "
                  "share of the devices' time in which no task ran.") +
             "<div class=\"pair\">\n";
  for (const auto& x : parts)
    for (std::size_t k = 0; k < e.weathers.size(); ++k) {
      html::table t{title_of(e, parts, x, k), {"run", "mean", "least", "most", "idle"}};
      for (std::size_t r = 0; r < e.runs.size(); ++r) {
        const auto all = overall_of(x, k, r);
        t.row(e.runs[r].name, fmt::format("run r{}", r));
        t.cell(fmt::format("<b>{:.2f}x</b>", all.mean));
        t.cell(fmt::format("{:.2f}x", all.range.least));
        t.cell(fmt::format("{:.2f}x", all.range.most));
        t.cell(fmt::format("{:.1f} %", 100 * all.idle));
      }
      out += t.finish();
    }
  return out + "</div>\n";
}

/// Hidden until the script runs.
std::string tools_of(const experiment& e) {
  std::string out = "<div id=\"tools\" hidden><span class=\"soft\">highlight:</span>";
  for (std::size_t r = 0; r < std::min(e.runs.size(), buttons_max); ++r)
    out += fmt::format("<button data-run=\"r{}\">{}</button>", r, escaped(e.runs[r].name));
  return out + "<span class=\"soft\">or click a run</span></div>\n";
}

std::string chart_legend() {
  std::string out = "<div class=\"legend\">";
  for (const auto* mode : {"blocking", "in-order", "ready"})
    out += html::swatch(fmt::format("var(--{});border-radius:50%", mode), mode);
  return out +
         "<span><svg class=\"swatch\" style=\"width:11px;height:11px;border:0\"><path "
         "class=\"paper\" d=\"M5.5 1l4.5 4.5l-4.5 4.5l-4.5 -4.5z\"/></svg>the paper's figure</span>"
         "<span><svg class=\"swatch\" style=\"width:18px;height:11px;border:0\"><path "
         "class=\"spread\" d=\"M1 2.5v6M1 5.5H17M17 2.5v6\"/></svg>minimum and maximum of all "
         "steps of all seeds</span></div>\n";
}

std::string section_of(const page_data& x, std::size_t weather, const std::string& title,
                       const std::string& anchor) {
  const auto& e = x.source();
  auto out = fmt::format("<h2 id=\"{}\">{}</h2>\n<h3>Speed-up over {}</h3>\n", anchor,
                         escaped(title), escaped(e.baseline)) +
             chart_legend() + speed_up_charts(x, weather);
  if (const auto rows = paper_rows(x, weather); !rows.empty())
    out +=
        "<h3>Comparison with the paper</h3>\n" +
        soft(
            "The paper's / ours: seconds per iteration, and speed-ups over it. GiB: memory held; ! "
            "marks more than the device has.") +
        rows;
  if (const auto charts = ablation_charts(x, weather); !charts.empty())
    out += "<h3>Gain of each ingredient</h3>\n" +
           soft(
               "Each bar goes from the speed-up without the ingredient to the speed-up with it. "
               "The numbers beside it are its gain, and the speed-up over " +
               e.ablation.front() + " with all ingredients so far.") +
           charts;
  return out + "<h3>Step times, device time, memory</h3>\n" + workload_tables(x, weather);
}

std::string glossary() {
  std::string out = "<h2 id=\"words\">Terms</h2>\n<dl class=\"words\">\n";
  const auto item = [&](std::string_view word, std::string_view what) {
    out += fmt::format("<dt>{}</dt><dd>{}</dd>\n", word, what);
  };
  item("blocking, in-order, ready",
       "In order with paired send and receive; in order with asynchronous messages; by readiness, "
       "with the order as a hint.");
  item("step ms",
       "Mean of all steps of all seeds, including the gradient exchange; minimum and maximum of "
       "them.");
  item(
      "speed-up",
      "The baseline's step time over this run's; both have the same disturbances in each step. The "
      "spread is that of single steps.");
  item(
      "device time",
      "Of all devices together. Computing. Blocked: the result of a finished task was not received "
      "yet (blocking sends only). Other idle time: waiting for an input or for memory, and the "
      "start and end of a step.");
  item("launch gap ms",
       "Per step, on the stage with the most: a device was free and its stage waited for nothing, "
       "while the runtime decided and launched. Wall clock only.");
  item("slots",
       "Peak number of microbatches held at once on the fullest stage, including pending weight "
       "gradients.");
  item("act. GiB, held GiB",
       "Peak of the activations on the fullest device, and the same with weights, gradients and "
       "optimizer state. ! marks more than the device has.");
  return out + "</dl>\n";
}

}  // namespace

std::string report_page(const experiment& e, const std::vector<engine_outcomes>& all,
                        const std::string& machine, std::size_t rows_max) {
  RRFP_CHECK(!all.empty(), "at least one engine must have run");
  std::vector<page_data> parts;
  for (const auto& made : all) parts.emplace_back(e, made, rows_max);
  html::document page;
  page.title = e.name;
  page.style = page_css;
  page.script = page_js;
  page.body =
      head_of(e, parts, machine) + links_of(e, parts) + summary_section(e, parts) + tools_of(e);
  for (std::size_t p = 0; p < parts.size(); ++p)
    for (std::size_t k = 0; k < e.weathers.size(); ++k)
      page.body += section_of(parts[p], k, title_of(e, parts, parts[p], k), anchor_of(p, k));
  if (all.size() > 1)
    page.body += "<h2 id=\"agreement\">Wall clock and simulator</h2>\n" +
                 soft(fmt::format(
                     "By how much the mean step of a cell on the {} differs from that on the {}, "
                     "as a share of the latter; |d| is this difference without its sign. Launch "
                     "gap (a device was free and its stage waited for nothing) and late tasks "
                     "(tasks took longer than simulated): medians. Explained: cells beyond {:.0f} "
                     "% that these two explain.",
                     name(all.back().engine), name(all.front().engine), 100 * agreed)) +
                 agreement_html(e, all.front().outcomes, all.back().outcomes);
  page.body += glossary();
  return html::text_of(page);
}

}  // namespace rrfp::experiment
