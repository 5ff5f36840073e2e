#include "from_trace.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <rrfp/forecast/forecast.hpp>
#include <rrfp/policies/registry.hpp>

namespace rrfp::apps {

namespace {

std::string slots_of(std::uint32_t slots) { return slots == 0 ? "-" : std::to_string(slots); }

std::string table_of(const foreign::found_run& found, const forecast::forecast& f,
                     double backward_share) {
  const auto& shape = found.run.shape;
  auto text = fmt::format("{}: {} stages, {} chunks, {} microbatches, {} steps; order {}\n",
                          found.run.title, shape.stages, shape.chunks, shape.microbatches,
                          f.steps.size(), f.schedule.empty() ? "of its own" : f.schedule);
  for (const auto& note : found.notes) text += note + "\n";
  text += fmt::format("Between tasks {:.3f} ms, messages {:.3f} ms (medians).\n\n", f.launch_ms,
                      f.message_ms);
  constexpr std::string_view row = "{:<24}{:>10}{:>7}{:>12}{:>10}{:>9}\n";
  text += fmt::format(fmt::runtime(row), "", "", "slots", "step ms", "bubble %", "gain %");
  const auto add = [&](const std::string& name, std::string_view mode, const std::string& slots,
                       double ms, const std::string& bubble, const std::string& gain) {
    text +=
        fmt::format(fmt::runtime(row), name, mode, slots, fmt::format("{:.3f}", ms), bubble, gain);
  };
  add("measured", "", slots_of(f.slots), f.measured_ms, fmt::format("{:.1f}", f.bubble * 100), "");
  add("replayed", "in order", slots_of(f.slots), f.replayed_ms, "", "");
  bool assumes = false;
  for (const auto& o : f.outcomes) {
    assumes = assumes || o.assumes_split;
    add(o.policy + (o.assumes_split ? " *" : ""),
        o.mode == dispatch_mode::ready ? "ready" : "in order", slots_of(o.slots), o.step_ms,
        fmt::format("{:.1f}", o.bubble * 100), fmt::format("{:.1f}", f.gain_percent(o)));
  }
  if (assumes)
    text += fmt::format(
        "* splits backwards that the run did not split; {} of each is assumed to be "
        "B.\n",
        backward_share);
  for (const auto& note : f.notes) text += note + "\n";
  return text + fmt::format("\nThe replay is {:.1f} % off the measured steps (median).\n{}\n",
                            f.error_percent, forecast::sentence_of(f));
}

std::string json_of(const foreign::found_run& found, const forecast::forecast& f) {
  using json = nlohmann::ordered_json;
  const auto& shape = found.run.shape;
  auto notes = found.notes;
  notes.insert(notes.end(), f.notes.begin(), f.notes.end());
  json steps = json::array();
  for (const auto& s : f.steps)
    steps.push_back({{"step", s.step.value()},
                     {"measured_ms", s.measured_ms},
                     {"replayed_ms", s.replayed_ms},
                     {"error_percent", s.error_percent()}});
  json outcomes = json::array();
  for (const auto& o : f.outcomes)
    outcomes.push_back({{"policy", o.policy},
                        {"mode", name(o.mode)},
                        {"slots", o.slots},
                        {"step_ms", o.step_ms},
                        {"bubble", o.bubble},
                        {"gain_percent", f.gain_percent(o)},
                        {"assumes_split", o.assumes_split}});
  return json{{"run", found.run.title},
              {"stages", shape.stages},
              {"chunks", shape.chunks},
              {"microbatches", shape.microbatches},
              {"schedule", f.schedule},
              {"slots", f.slots},
              {"measured_ms", f.measured_ms},
              {"replayed_ms", f.replayed_ms},
              {"error_percent", f.error_percent},
              {"bubble", f.bubble},
              {"launch_ms", f.launch_ms},
              {"message_ms", f.message_ms},
              {"notes", notes},
              {"steps", steps},
              {"outcomes", outcomes},
              {"sentence", forecast::sentence_of(f)}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

result<forecast_texts> forecasts_from(const std::vector<std::string>& traces,
                                      const foreign::read_options& log, double backward_share) {
  const auto runs = foreign::read_traces(traces, log);
  if (!runs) return runs.failure();
  forecast_texts made;
  for (const auto& found : *runs) {
    const auto f = forecast::make_forecast(found.run, policies::registry(), backward_share);
    if (!f) return within(found.file, f.failure());
    made.table += (made.table.empty() ? "" : "\n") + table_of(found, *f, backward_share);
    made.json += json_of(found, *f) + "\n";
    made.charts.push_back(forecast::chart_of(*f, found.run.title));
  }
  return made;
}

}  // namespace rrfp::apps
