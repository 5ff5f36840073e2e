#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <rrfp/io/svg.hpp>

#include "../page.hpp"
#include "parts.hpp"

namespace rrfp::experiment {

namespace {

// In pixels.
constexpr double figure_width = 740, names_end = 210, bars_end = 600, panel_head = 40, bar_row = 20,
                 panel_foot = 12;
constexpr int figure_ticks_max = 8;

/// Speed-ups from 0 to `to`, with a line at each tick.
struct speed_axis {
  double to = 1;
  double tick = 1;

  double x(double value) const {
    return names_end + std::clamp(value / to, 0.0, 1.0) * (bars_end - names_end);
  }
};

speed_axis axis_of(const page_data& x) {
  double most = 1;
  for (std::size_t w = 0; w < x.workloads(); ++w)
    for (std::size_t k = 0; k < x.source().weathers.size(); ++k)
      for (std::size_t r = 0; r < x.source().runs.size(); ++r) {
        const auto& s = x.at(w, k, r).aggregate;
        most = std::max(most, s.speed_up + s.speed_up_deviation);
      }
  const auto tick = svg::tick_for(most, figure_ticks_max);
  return {std::ceil(most / tick - 1e-9) * tick, tick};
}

std::string_view colour_of(std::string_view mode) {
  return mode == "blocking" ? "#8a93a3" : mode == "in-order" ? "#e39234" : "#3f7fc8";
}

std::string axis_lines(const speed_axis& axis, double top, double bottom) {
  std::string out;
  for (int i = 0; i * axis.tick <= axis.to + axis.tick / 2; ++i) {
    const auto value = i * axis.tick;
    const auto at = axis.x(value);
    out += svg::line(at, top, at, bottom,
                     std::abs(value - 1) < axis.tick / 100 ? svg::soft : svg::rule);
    out += svg::text(at, top - 4, fmt::format("{:g}", value),
                     " font-size=\"10\" fill=\"#55606f\" text-anchor=\"middle\"");
  }
  return out;
}

std::string run_row(const speed_axis& axis, const run_entry& run, const summary& s, double top) {
  const auto middle = top + bar_row / 2;
  const auto deviation = s.speed_up_deviation;
  auto out = svg::text(names_end - 8, middle + 4, cut(run.name), " text-anchor=\"end\"") +
             svg::rect(axis.x(0), top + 4, axis.x(s.speed_up) - axis.x(0), bar_row - 8,
                       colour_of(run.mode));
  auto value = fmt::format("{:.2f}x", s.speed_up);
  if (deviation > 0) {
    out += fmt::format(
        "<path d=\"M{0:.1f} {2:.1f}v6m0 -3H{1:.1f}m0 -3v6\" fill=\"none\" "
        "stroke=\"#1c2330\"/>\n",
        axis.x(s.speed_up - deviation), axis.x(s.speed_up + deviation), middle - 3);
    value += fmt::format(" \u00b1 {:.2f}", deviation);
  }
  return out + svg::text(bars_end + 10, middle + 4, value);
}

}  // namespace

std::string figure_svg(const experiment& e, const engine_outcomes& made, std::size_t rows_max) {
  const page_data x{e, made, rows_max};
  const auto axis = axis_of(x);
  std::string panels;
  auto top = svg::heading_height;
  for (std::size_t k = 0; k < e.weathers.size(); ++k)
    for (std::size_t w = 0; w < x.workloads(); ++w) {
      const auto rows = top + panel_head;
      const auto end = rows + bar_row * static_cast<double>(e.runs.size());
      panels += svg::text(0, top + 14, e.workloads[w].name + " - weather " + e.weathers[k].name,
                          " font-weight=\"bold\"") +
                axis_lines(axis, rows, end);
      for (std::size_t r = 0; r < e.runs.size(); ++r)
        panels += run_row(axis, e.runs[r], x.at(w, k, r).aggregate,
                          rows + bar_row * static_cast<double>(r));
      top = end + panel_foot;
    }
  auto what = fmt::format("speed-up over {}; {}", e.baseline, name(made.engine));
  what += e.seeds.size() == 1
              ? std::string{", one seed"}
              : fmt::format(", with the standard deviation over {} seeds", e.seeds.size());
  if (x.workloads() < e.workloads.size())
    what += fmt::format("; the first {} of {} workloads", x.workloads(), e.workloads.size());
  return svg::picture(figure_width, top, e.name, what, panels);
}

}  // namespace rrfp::experiment
