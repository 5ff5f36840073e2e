#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include <rrfp/io/svg.hpp>

#include "losses.hpp"

namespace rrfp::apps {

namespace {

// In pixels.
constexpr double width = 740, left = 40, right = 600, top = svg::heading_height + 8, bottom = 340,
                 height = 390;
constexpr std::array colours{"#3f7fc8", "#4fa58a", "#8a93a3", "#e39234"};  ///< by way

constexpr std::string_view small = " font-size=\"10\" fill=\"#55606f\" text-anchor=\"middle\"";

/// Hours on a logarithmic axis; percent on a linear one.
struct axes {
  double least;
  double most;
  double floor;

  double x(double hours) const {
    return least == most ? (left + right) / 2
                         : left + std::log(hours / least) / std::log(most / least) * (right - left);
  }
  double y(double percent) const {
    return bottom - (percent - floor) / (100 - floor) * (bottom - top);
  }
};

axes axes_of(const std::vector<loss_row>& rows) {
  double least = 100;
  for (const auto& row : rows)
    if (row.why_not.empty()) least = std::min(least, row.costs.useful * 100);
  return {rows.front().mtbf_hours, rows.back().mtbf_hours,
          std::min(std::floor(least / 10) * 10, 90.0)};
}

}  // namespace

std::string chart_of(const loss_report& r) {
  const auto at = axes_of(r.rows);
  std::string body;
  for (auto percent = at.floor; percent <= 100; percent += 10)
    body += svg::line(left, at.y(percent), right, at.y(percent), svg::rule) +
            svg::text(left - 16, at.y(percent) + 4, fmt::format("{:g}", percent), small);
  for (std::size_t i = 0; i < r.rows.size(); i += colours.size())
    body += svg::text(at.x(r.rows[i].mtbf_hours), bottom + 16,
                      fmt::format("{:g}", r.rows[i].mtbf_hours), small);
  body += svg::text((left + right) / 2, bottom + 34, "mean time between two losses of one node, h",
                    small);
  for (const auto way : simulate::all_recovery_ways) {
    const auto colour = colours[static_cast<std::size_t>(way)];
    std::string points;
    std::string dots;
    for (const auto& row : r.rows) {
      if (row.way != way || !row.why_not.empty()) continue;
      const auto x = at.x(row.mtbf_hours);
      const auto y = at.y(row.costs.useful * 100);
      points += fmt::format("{:.1f},{:.1f} ", x, y);
      dots +=
          fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", x, y, colour);
    }
    if (points.empty()) continue;
    const auto row = top + 20 + 20 * static_cast<double>(way);
    body +=
        fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n{}",
                    points, colour, dots);
    body += svg::line(right + 20, row - 4, right + 40, row - 4, colour) +
            svg::text(right + 46, row, name(way));
  }
  return svg::picture(
      width, height, r.job,
      fmt::format("useful time, % of {} nodes' time, by what happens after a loss", r.model.nodes),
      body);
}

}  // namespace rrfp::apps
