#include <algorithm>

#include <fmt/format.h>

#include <rrfp/forecast/forecast.hpp>
#include <rrfp/io/svg.hpp>

namespace rrfp::forecast {

namespace {

// In pixels.
constexpr double width = 740, names_end = 210, bars_end = 580, row_height = 22, bar_height = 12;
constexpr std::string_view measured = "#8a93a3", in_order = "#e39234", ready = "#3f7fc8";

/// Bars from zero, one below the other.
class bars {
 public:
  explicit bars(double most) : most_(most) {}

  void add(std::string_view name, double ms, std::string_view colour, std::string_view value) {
    const auto end = names_end + ms / most_ * (bars_end - names_end);
    body_ += svg::text(names_end - 8, top_ + 10, name, " text-anchor=\"end\"") +
             svg::rect(names_end, top_, end - names_end, bar_height, colour) +
             svg::text(end + 8, top_ + 10, value);
    top_ += row_height;
  }
  const std::string& body() const { return body_; }
  double bottom() const { return top_; }

 private:
  double most_;
  double top_ = svg::heading_height;
  std::string body_;
};

std::string name_of(const outcome& o) {
  return o.policy + (o.slots == 0 ? "" : fmt::format(", {} slots", o.slots)) +
         (o.assumes_split ? " *" : "");
}

}  // namespace

std::string chart_of(const forecast& f, std::string_view run) {
  auto most = std::max(f.measured_ms, f.replayed_ms);
  bool assumes = false;
  for (const auto& o : f.outcomes) {
    most = std::max(most, o.step_ms);
    assumes = assumes || o.assumes_split;
  }
  bars all{most};
  all.add("measured", f.measured_ms, measured, fmt::format("{:.3f}", f.measured_ms));
  all.add("replayed", f.replayed_ms, measured, fmt::format("{:.3f}", f.replayed_ms));
  for (const auto& o : f.outcomes)
    all.add(name_of(o), o.step_ms, o.mode == dispatch_mode::ready ? ready : in_order,
            fmt::format("{:.3f} ({:+.1f} %)", o.step_ms, (o.step_ms / f.replayed_ms - 1) * 100));
  return svg::picture(width, all.bottom() + 8, run,
                      fmt::format("a step in ms, and its difference from the replay; blue: "
                                  "readiness{}",
                                  assumes ? "; *: splits backwards" : ""),
                      all.body());
}

}  // namespace rrfp::forecast
