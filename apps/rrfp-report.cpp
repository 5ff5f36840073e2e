#include <CLI/CLI.hpp>

#include <algorithm>
#include <map>
#include <optional>

#include <fmt/format.h>

#include <rrfp/base/parse_number.hpp>
#include <rrfp/foreign/read_traces.hpp>
#include <rrfp/report/page.hpp>
#include <rrfp/report/picture.hpp>
#include <rrfp/report/profile.hpp>

#include "common/checks.hpp"
#include "common/console.hpp"
#include "common/output_file.hpp"
#include "common/program.hpp"
#include "common/trace_options.hpp"

namespace {

using namespace rrfp;

constexpr std::size_t runs_max = 8;

struct options {
  std::vector<std::string> traces;
  std::string out;
  std::string svg;
  std::vector<std::string> profiles;
  foreign::read_options log;
  double backward_share = 0.5;
  std::string steps;
  std::string step;
  std::vector<std::string> runs;
  std::string title = "rrfp report";
};

/// "3:7", or "3" for that step alone.
std::optional<report::step_range> range_of(std::string_view text) {
  const auto colon = text.find(':');
  const auto first = parse_number<std::uint64_t>(text.substr(0, colon));
  const auto last =
      colon == std::string_view::npos ? first : parse_number<std::uint64_t>(text.substr(colon + 1));
  if (!first || !last || *first > *last) return std::nullopt;
  return report::step_range{step_id{*first}, step_id{*last}};
}

/// The runs of all traces. If a title occurs more than once, the file is appended to it.
result<std::vector<report::traced_run>> read_runs(const options& wanted,
                                                  std::vector<std::string>& notes) {
  auto read = foreign::read_traces(wanted.traces, wanted.log);
  if (!read) return read.failure();
  std::map<std::string, int> titles;
  for (const auto& found : *read) ++titles[found.run.title];
  std::vector<report::traced_run> runs;
  for (auto& found : *read) {
    notes.insert(notes.end(), found.notes.begin(), found.notes.end());
    if (found.is_foreign)
      for (const auto& note : found.notes) apps::print("{}\n", note);
    if (titles[found.run.title] > 1 && wanted.traces.size() > 1)
      found.run.title += fmt::format(" ({})", found.file);
    runs.push_back(std::move(found.run));
  }
  return runs;
}

std::string titles_of(const std::vector<report::traced_run>& runs) {
  std::string all;
  for (const auto& run : runs) all += fmt::format("{}\"{}\"", all.empty() ? "" : ", ", run.title);
  return all;
}

/// The runs with these titles, in this order; all runs if there are no titles.
result<std::vector<report::traced_run>> choose(std::vector<report::traced_run> runs,
                                               const std::vector<std::string>& titles) {
  if (titles.empty()) {
    if (runs.size() <= runs_max) return runs;
    return error{fmt::format("expected at most {} runs, got {}: choose with --run from {}",
                             runs_max, runs.size(), titles_of(runs))};
  }
  std::vector<report::traced_run> chosen;
  for (const auto& title : titles) {
    const auto found =
        std::find_if(runs.begin(), runs.end(), [&](const auto& run) { return run.title == title; });
    if (found == runs.end())
      return error{fmt::format("--run: expected one of {}, got \"{}\"", titles_of(runs), title)};
    chosen.push_back(*found);
  }
  return chosen;
}

/// A file to write, and the message that reports it.
struct output {
  std::string option;
  std::string file;
  std::string text;
  std::string message;
};

/// The step of --step; without it, the typical step of the chosen steps.
result<std::optional<step_id>> shown_step(const options& wanted,
                                          const std::vector<report::traced_run>& runs,
                                          const std::optional<report::step_range>& range) {
  const auto [first, last] =
      range.value_or(report::step_range{step_id{0}, step_id{~std::uint64_t{0}}});
  if (wanted.step.empty()) return report::typical_step(runs, first, last);
  const auto n = parse_number<std::uint64_t>(wanted.step);
  if (!n) return error{fmt::format("--step: expected a step's number, got \"{}\"", wanted.step)};
  const step_id step{*n};
  for (const auto& run : runs)
    if (auto there = report::has_steps(run, step, step); !there)
      return error{"--step: " + there.message()};
  if (step < first || step > last)
    return error{fmt::format("--step: expected a step of --steps {}, got {}", wanted.steps, *n)};
  return std::optional{step};
}

result<output> make_picture(const options& wanted, const std::vector<report::traced_run>& runs,
                            const std::optional<step_id>& step) {
  if (!step) return error{"--svg: expected a step that every run has; choose runs with --run"};
  std::vector<report::timeline> lines;
  for (const auto& run : runs) {
    auto line = report::make_timeline(run, *step, *step);
    if (!line) return line.failure();
    lines.push_back(std::move(*line));
  }
  output svg{"--svg", wanted.svg, report::svg_of(wanted.title, lines), ""};
  svg.message =
      fmt::format("picture: {} ({:.1f} KiB, step {} of {} runs)\n", wanted.svg,
                  static_cast<double>(svg.text.size()) / 1024, step->value(), runs.size());
  return svg;
}

result<output> make_page(const options& wanted, const std::vector<report::traced_run>& runs,
                         const std::optional<report::step_range>& range,
                         const std::optional<step_id>& step, std::vector<std::string> notes) {
  const auto page = report::page_of(wanted.title, runs, std::move(notes), range, step);
  if (!page) return page.failure();
  if (!wanted.step.empty() && page->opens_on != step)
    return error{
        fmt::format("--step: the page does not show step {} of all runs, but the last "
                    "ones that fit: choose with --steps",
                    step->value())};
  output html{"--out", wanted.out, report::html_of(*page), ""};
  html.message = fmt::format("report: {} ({:.1f} MiB, {} runs; open it in a browser)\n", wanted.out,
                             static_cast<double>(html.text.size()) / (1 << 20), page->runs.size());
  return html;
}

bool is_durations(const std::string& file) { return file.ends_with(".csv"); }

/// Checks the options before any trace is read.
status check_options(const options& wanted) {
  if (wanted.out.empty() && wanted.svg.empty() && wanted.profiles.empty())
    return error{"expected --out PAGE.html, --svg PICTURE.svg or --profile FILE"};
  if (!wanted.step.empty() && wanted.out.empty() && wanted.svg.empty())
    return error{"--step: expected --svg or --out as well"};
  for (const auto& file : wanted.profiles)
    if (!is_durations(file) && !file.ends_with(".toml"))
      return error{fmt::format(
          "--profile: expected FILE.csv (task by task) or FILE.toml ([cost]), got \"{}\"", file)};
  return success();
}

result<std::vector<output>> make_profiles(const options& wanted,
                                          const std::vector<report::traced_run>& runs,
                                          const std::optional<report::step_range>& range) {
  if (runs.size() != 1)
    return error{fmt::format("--profile: expected one run, got {}: choose with --run from {}",
                             runs.size(), titles_of(runs))};
  const auto& run = runs.front();
  const auto all = report::steps_of(run);
  const auto [first, last] = range ? *range : report::step_range{all.front(), all.back()};
  const auto p = report::profile_of(run, first, last);
  if (!p) return p.failure();
  const auto source = fmt::format(
      "of {}, {} steps from {} to {}{}", p->title, p->steps.size(), p->steps.front().value(),
      p->steps.back().value(),
      p->cut_steps == 0 ? "" : fmt::format("; {} incomplete steps are skipped", p->cut_steps));
  std::vector<output> made;
  for (const auto& file : wanted.profiles)
    if (is_durations(file))
      made.push_back(
          {"--profile", file, report::durations_csv(*p),
           fmt::format("durations: {} (replica 0 {}; rrfp-sim JOB --durations {} --steps "
                       "{} replays them)\n",
                       file, source, file, p->steps.size())});
    else
      made.push_back({"--profile", file,
                      report::cost_toml(*p, wanted.traces.front(), wanted.backward_share),
                      fmt::format("cost: {} (medians {})\n", file, source)});
  return made;
}

status make_report(const options& wanted) {
  if (auto can = check_options(wanted); !can) return can;
  std::optional<report::step_range> range;
  if (!wanted.steps.empty()) {
    range = range_of(wanted.steps);
    if (!range)
      return error{fmt::format(
          "--steps: expected FIRST:LAST with 1 <= FIRST <= LAST, or one step, got \"{}\"",
          wanted.steps)};
  }
  std::vector<std::pair<std::string, std::string>> files{{"--out", wanted.out},
                                                         {"--svg", wanted.svg}};
  for (const auto& file : wanted.profiles) files.emplace_back("--profile", file);
  if (auto can = apps::check_outputs(wanted.traces, files); !can) return can;
  std::vector<std::string> notes;
  auto read = read_runs(wanted, notes);
  if (!read) return read.failure();
  const auto runs = choose(std::move(*read), wanted.runs);
  if (!runs) return runs.failure();

  std::vector<output> outputs;
  if (!wanted.profiles.empty()) {
    auto profiles = make_profiles(wanted, *runs, range);
    if (!profiles) return profiles.failure();
    outputs = std::move(*profiles);
  }
  if (!wanted.out.empty() || !wanted.svg.empty()) {
    const auto step = shown_step(wanted, *runs, range);
    if (!step) return step.failure();
    if (!wanted.out.empty()) {
      auto page = make_page(wanted, *runs, range, *step, std::move(notes));
      if (!page) return page.failure();
      outputs.push_back(std::move(*page));
    }
    if (!wanted.svg.empty()) {
      auto picture = make_picture(wanted, *runs, *step);
      if (!picture) return picture.failure();
      outputs.push_back(std::move(*picture));
    }
  }
  for (const auto& p : outputs)
    if (auto written = apps::write_output(p.option, p.file, p.text); !written) return written;
  for (const auto& p : outputs) apps::print("{}", p.message);
  return success();
}

int run(int argc, char** argv) {
  CLI::App app{
      "Makes an HTML page from traces (timelines, where the time went, memory, critical\n"
      "path), a picture of one step, or a profile of one run"};
  app.set_version_flag("--version", "rrfp-report " RRFP_VERSION);
  app.footer(
      "The page needs no network. It shows the runs of all traces side by side on one\n"
      "time scale, with ratios to the first run.\n"
      "A profile describes one run. FILE.csv holds the times of replica 0, including\n"
      "injected delays: of each task, on the slowest rank of its stage, and of each\n"
      "message that a stage waited for. FILE.toml holds [cost] without injected delays:\n"
      "medians over microbatches, steps and replicas, for a job or for the workload of\n"
      "an experiment. Incomplete steps are skipped.\n"
      "Exit codes: 0 done, 1 internal error or an output that could not be written,\n"
      "2 bad input.");
  options wanted;
  app.add_option("trace", wanted.traces,
                 "Traces of rrfp-node run --trace FILE, or of\n"
                 "torch.profiler, one for each rank (.json, .json.gz),\n"
                 "tables of nsys stats, logs with timers of Megatron-LM\n"
                 "or DeepSpeed, or CSV: stage, microbatch, kind, start,\n"
                 "end")
      ->required();
  app.add_option("--out", wanted.out, "Write the page, an HTML file");
  app.add_option("--svg", wanted.svg,
                 "Write the picture, an SVG file: one step of each run,\n"
                 "one above the other on one time scale");
  app.add_option("--step", wanted.step,
                 "The step that --svg shows and the page opens on\n"
                 "(default: the one nearest to the median duration of\n"
                 "each run)");
  app.add_option("--profile", wanted.profiles,
                 "Write the run's times as FILE.csv for rrfp-sim\n"
                 "--durations, or as [cost] in FILE.toml; may be\n"
                 "repeated")
      ->take_all()
      ->allow_extra_args(false);
  apps::add_trace_options(app, wanted.log);
  app.add_option("--backward-share", wanted.backward_share,
                 "For FILE.toml, if the run did not split backward: the\n"
                 "share that counts as backward_ms; the rest counts as\n"
                 "weight_ms")
      ->check(apps::between(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--steps", wanted.steps,
                 fmt::format("FIRST:LAST, or one step (default: all steps for a\n"
                             "profile; for a page, the last ones with at most {}\n"
                             "tasks of all runs together)",
                             report::shown_tasks_max));
  app.add_option("--run", wanted.runs,
                 "Only the run of this name; may be repeated. Ratios are\n"
                 "relative to the first one")
      ->take_all()
      ->allow_extra_args(false);
  app.add_option("--title", wanted.title, "The page's heading")->capture_default_str();
  if (const auto over = apps::parse_arguments(app, argc, argv)) return *over;
  const auto done = make_report(wanted);
  return done ? exit_done : apps::end_with(done.failure());
}

}  // namespace

int main(int argc, char** argv) { rrfp::apps::run_program("rrfp-report", argc, argv, &run); }
