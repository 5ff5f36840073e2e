#include "parts.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include <fmt/format.h>

#include <rrfp/io/html.hpp>
#include <rrfp/io/svg.hpp>

namespace rrfp::experiment {

namespace {

using html::escaped;

// Units of a panel's viewBox, about one pixel each.
constexpr double panel_width = 480;
constexpr double row_height = 18;
constexpr double head_height = 20;
constexpr double foot_height = 4;
/// Width of a letter, slightly above the average.
constexpr double letter_width = 6.4;
constexpr double names_width_max = 190;
constexpr std::size_t letters_max = 29;
constexpr int panel_ticks_max = 7;
/// Spreads are drawn up to this multiple of the largest speed-up, so that one step cannot flatten
/// all others.
constexpr double spread_shown_max = 1.25;

/// Whether `c` is a continuation byte of UTF-8.
bool continues(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

std::size_t letters_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !continues(c); }));
}

/// Maps speed-ups to positions in a panel, from one tick to another.
struct scale {
  double from = 0;
  double to = 1;
  double tick = 1;
  double left = 0;
  double right = panel_width;

  double x(double value) const {
    return left + (std::clamp(value, from, to) - from) / (to - from) * (right - left);
  }
};

scale scale_for(double least, double most, double left, double right) {
  least = std::min(least, 1.0);
  most = std::max(most, least + 0.05);
  const auto tick = svg::tick_for(most - least, panel_ticks_max);
  return {std::floor(least / tick + 1e-9) * tick, std::ceil(most / tick - 1e-9) * tick, tick, left,
          right};
}

double names_width(const std::vector<std::string_view>& names) {
  std::size_t letters = 4;
  for (const auto n : names) letters = std::max(letters, letters_of(cut(n)));
  return std::min(names_width_max, static_cast<double>(letters) * letter_width + 10);
}

/// Lines at the ticks with their values above; the line at 1 is stronger.
std::string rules_of(const scale& s, double height) {
  const int decimals = s.tick < 0.1 ? 2 : s.tick < 1 ? 1 : 0;
  std::string out;
  for (int i = 0; s.from + i * s.tick <= s.to + s.tick / 2; ++i) {
    const auto value = s.from + i * s.tick;
    const bool is_one = std::abs(value - 1) < s.tick / 100;
    const auto at = s.x(value);
    out += fmt::format(
        R"(<line class="{}" x1="{:.1f}" x2="{:.1f}" y1="{}" y2="{}"/><text class="soft tick" x="{:.1f}" y="12">{:.{}f}</text>)",
        is_one ? "one" : "rule", at, at, head_height - 3, height - foot_height, at, value,
        decimals);
  }
  if (s.from < 1 && std::abs(std::remainder(1 - s.from, s.tick)) > s.tick / 100)
    out += fmt::format(R"(<line class="one" x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2}"/>)", s.x(1),
                       head_height - 3, height - foot_height);
  return out + "\n";
}

/// Background for every other row, below the lines.
std::string bands_of(std::size_t rows) {
  std::string out;
  for (std::size_t row = 1; row < rows; row += 2)
    out +=
        fmt::format(R"(<rect class="band" y="{}" width="{}" height="{}"/>)",
                    head_height + row_height * static_cast<double>(row), panel_width, row_height);
  return out;
}

std::string panel(std::string_view title, const scale& s, std::size_t rows,
                  const std::string& drawn) {
  const auto height = head_height + row_height * static_cast<double>(rows) + foot_height;
  return fmt::format(
      "<figure><figcaption>{0}</figcaption>\n<svg viewBox=\"0 0 {1} {2}\" role=\"img\" "
      "aria-label=\"{0}\">\n{3}{4}{5}</svg></figure>\n",
      escaped(title), panel_width, height, bands_of(rows), rules_of(s, height), drawn);
}

/// Opens a row: its group, tooltip, hover area and name.
std::string row_begin(std::size_t run, std::string_view kind, std::size_t row,
                      std::string_view tooltip, std::string_view name) {
  const auto top = head_height + row_height * static_cast<double>(row);
  return fmt::format(
      R"(<g class="run r{} {}"><title>{}</title><rect class="ground" y="{}" width="{}" height="{}"/><text x="2" y="{}">{}</text>)",
      run, kind, escaped(tooltip), top, panel_width, row_height, top + 13, escaped(cut(name)));
}

double middle_of(std::size_t row) {
  return head_height + row_height * (static_cast<double>(row) + 0.5);
}

std::string speed_up_row(const page_data& x, const measured& m, std::size_t run, const scale& s) {
  const auto& r = x.source().runs[run];
  const auto y = middle_of(run);
  auto tooltip =
      fmt::format("{}: {:.2f}x, {:.2f} to {:.2f} over all steps; {:.1f} ms a step", r.name,
                  m.aggregate.speed_up, m.speed_up.least, m.speed_up.most, m.aggregate.step_ms);
  if (m.paper > 0) tooltip += fmt::format("; paper {:.2f}x", m.paper);
  auto out = row_begin(run, r.mode, run, tooltip, r.name);
  out += fmt::format(R"(<line class="stem" x1="{:.1f}" x2="{:.1f}" y1="{}" y2="{}"/>)", s.x(1),
                     s.x(m.aggregate.speed_up), y, y);
  out +=
      fmt::format(R"(<path class="spread" d="M{0:.1f} {2}v6M{0:.1f} {3}H{1:.1f}M{1:.1f} {2}v6"/>)",
                  s.x(m.speed_up.least), s.x(m.speed_up.most), y - 3, y);
  out += fmt::format(R"(<circle cx="{:.1f}" cy="{}" r="4.2"/>)", s.x(m.aggregate.speed_up), y);
  if (m.paper > 0)
    out +=
        fmt::format(R"(<path class="paper" d="M{:.1f} {}l5 5l-5 5l-5 -5z"/>)", s.x(m.paper), y - 5);
  return out + fmt::format("<text class=\"value\" x=\"{}\" y=\"{}\">{:.2f}x</text></g>\n",
                           panel_width - 2, y + 4, m.aggregate.speed_up);
}

std::string ablation_row(const std::string& run, std::size_t number, std::size_t i, double before,
                         double now, const scale& s) {
  const auto y = middle_of(i);
  const auto gain = now / before;
  const bool worse = now < before;
  const auto tooltip =
      i == 0 ? run + ": the others are relative to it"
             : fmt::format("{}: {:.3f}x over the previous one, {:.3f}x in total", run, gain, now);
  auto out = row_begin(number, worse ? "worse" : "better", i, tooltip, run);
  if (i == 0)
    out += fmt::format(R"(<path class="spread" d="M{:.1f} {}v{}"/>)", s.x(1), y - 6, row_height);
  else
    out += fmt::format(
        R"(<rect class="step" x="{:.1f}" y="{}" width="{:.1f}" height="12"/><path class="spread" d="M{:.1f} {}v{}"/>)",
        s.x(std::min(before, now)), y - 6, std::max(1.0, std::abs(s.x(now) - s.x(before))),
        s.x(now), y - 6, row_height);
  const auto change = i == 0 ? "" : fmt::format("{:+.1f} %", 100 * (gain - 1));
  return out + fmt::format(
                   "<text class=\"value gain\" x=\"{}\" y=\"{}\">{}</text><text class=\"value\" "
                   "x=\"{}\" y=\"{}\">{:.2f}x</text></g>\n",
                   panel_width - 46, y + 4, change, panel_width - 2, y + 4, now);
}

}  // namespace

std::string cut(std::string_view text) {
  if (letters_of(text) <= letters_max) return std::string{text};
  std::size_t end = 0;
  for (std::size_t letters = 0; end < text.size(); ++end)
    if (!continues(text[end]) && ++letters == letters_max) break;
  return std::string{text.substr(0, end)} + "\u2026";
}

std::string speed_up_charts(const page_data& x, std::size_t weather) {
  const auto& e = x.source();
  double least = 1;
  double most = 1;
  spread whole{1, 1};
  for (std::size_t w = 0; w < x.workloads(); ++w)
    for (std::size_t r = 0; r < e.runs.size(); ++r) {
      const auto& m = x.at(w, weather, r);
      least = std::min(least, m.aggregate.speed_up);
      most = std::max({most, m.aggregate.speed_up, m.paper});
      whole = {std::min(whole.least, m.speed_up.least), std::max(whole.most, m.speed_up.most)};
    }
  std::vector<std::string_view> names;
  for (const auto& r : e.runs) names.push_back(r.name);
  const auto s = scale_for(std::max(whole.least, least / spread_shown_max),
                           std::min(whole.most, most * spread_shown_max), names_width(names),
                           panel_width - 52);
  std::string out = "<div class=\"panels\">\n";
  for (std::size_t w = 0; w < x.workloads(); ++w) {
    std::string rows;
    for (std::size_t r = 0; r < e.runs.size(); ++r)
      rows += speed_up_row(x, x.at(w, weather, r), r, s);
    out += panel(e.workloads[w].name, s, e.runs.size(), rows);
  }
  return out + "</div>\n";
}

std::string ablation_charts(const page_data& x, std::size_t weather) {
  const auto& e = x.source();
  if (e.ablation.empty()) return "";
  spread gains{1, 1};
  for (std::size_t w = 0; w < x.workloads(); ++w)
    for (std::size_t i = 0; i < e.ablation.size(); ++i) gains.include(x.gained(w, weather, i));
  const std::vector<std::string_view> names{e.ablation.begin(), e.ablation.end()};
  const auto s = scale_for(gains.least, gains.most, names_width(names), panel_width - 104);
  std::string out = "<div class=\"panels\">\n";
  for (std::size_t w = 0; w < x.workloads(); ++w) {
    std::string rows;
    for (std::size_t i = 0; i < e.ablation.size(); ++i)
      rows += ablation_row(e.ablation[i], e.run_index(e.ablation[i]), i,
                           i == 0 ? 1 : x.gained(w, weather, i - 1), x.gained(w, weather, i), s);
    out += panel(e.workloads[w].name, s, e.ablation.size(), rows);
  }
  return out + "</div>\n";
}

}  // namespace rrfp::experiment
