#include <rrfp/report/picture.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include <fmt/format.h>

#include <rrfp/base/units.hpp>
#include <rrfp/io/html.hpp>
#include <rrfp/io/svg.hpp>
#include <rrfp/report/breakdown.hpp>

namespace rrfp::report {

namespace {

/// Tenths of a pixel. Every coordinate is rounded once, so that intervals that touch in time touch
/// in the picture.
using tenths = std::int64_t;

constexpr int width = 960, right = 18, character = 6;
constexpr int title_height = 24, panel_gap = 12, axis_height = 20, legend_row = 17;
constexpr std::size_t title_characters_max = 72;

using svg::rule, svg::soft;
constexpr std::string_view ink = "#1c2330", ground = "#f1f3f6";

struct appearance {
  std::string_view colour;
  /// Colour of text on it.
  std::string_view ink;
  std::string_view meaning;
};

/// By task_kind.
constexpr std::array<appearance, task_kinds> tasks{
    {{"#1b4f8f", "#fff", "forward"},
     {"#f3b23e", ink, "backward, input gradient"},
     {"#4fa58a", ink, "weight gradient"},
     {"#bf4a22", "#fff", "backward + weight gradient"}}};

enum class waiting : std::uint8_t { input, memory, ranks };
constexpr std::array<appearance, 3> waits{{{"#b4bcc8", ink, "waiting for an input"},
                                           {"#a05fc0", ink, "waiting for memory"},
                                           {"#5b6470", ink, "waiting for other ranks"}}};

constexpr std::string_view delay_meaning = "injected delay";

std::optional<waiting> waiting_in(const gap& g) {
  switch (g.why) {
    case idle_cause::activation:
    case idle_cause::gradient: return waiting::input;
    case idle_cause::memory: return waiting::memory;
    case idle_cause::ranks_behind: return waiting::ranks;
    case idle_cause::launch_gap:
    case idle_cause::head:
    case idle_cause::tail:
    case idle_cause::between_steps: return std::nullopt;
  }
  return std::nullopt;
}

std::string pixels(tenths t) {
  const auto size = std::abs(t);
  auto text = (t < 0 ? "-" : "") + std::to_string(size / 10);
  return size % 10 == 0 ? text : text + fmt::format(".{}", size % 10);
}

/// The text escaped for XML, truncated to `characters_max` characters.
std::string text_of(const std::string& text, std::size_t characters_max = 1000) {
  std::string kept;
  std::size_t characters = 0;
  for (const char c : text) {
    const bool begins = (static_cast<unsigned char>(c) & 0xc0U) != 0x80U;
    if (begins && ++characters > characters_max) {
      kept += "\u2026";
      break;
    }
    kept += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
  }
  return html::escaped(kept);
}

/// Bars of one colour, drawn as strokes as wide as the bars are high: half as much text as
/// rectangles. The bars of one row must be added in order of time.
class bars {
 public:
  void add(tenths begin, tenths end, std::string_view y) {
    if (end <= begin) return;
    if (open_ && y == y_ && begin <= end_) {
      end_ = std::max(end_, end);
      return;
    }
    flush();
    open_ = true;
    begin_ = begin;
    end_ = end;
    y_ = y;
  }

  bool empty() const { return path_.empty() && !open_; }

  std::string path() {
    flush();
    return path_;
  }

 private:
  void flush() {
    if (open_) path_ += fmt::format("M{} {}h{}", pixels(begin_), y_, pixels(end_ - begin_));
    open_ = false;
  }

  std::string path_;
  std::string y_;
  tenths begin_ = 0;
  tenths end_ = 0;
  bool open_ = false;
};

/// The colours that the legend has to explain.
struct legend_content {
  std::array<bool, task_kinds> kinds{};
  std::array<bool, waits.size()> waiting{};
  bool delay = false;
};

struct scale {
  int left = 0;
  nanoseconds longest = 1;

  tenths x(nanoseconds since_begin) const {
    const double per_nanosecond = 10.0 * (width - right - left) / static_cast<double>(longest);
    return left * 10 + std::llround(static_cast<double>(since_begin) * per_nanosecond);
  }
};

/// In ms.
double tick_of(const scale& s) { return svg::tick_for(milliseconds(s.longest), 10); }

/// Calls `mark` with the x and the ms of each tick.
template <class Mark>
void for_ticks(const scale& s, Mark mark) {
  const double tick = tick_of(s);
  for (int n = 0; n * tick <= milliseconds(s.longest) * 1.0001; ++n)
    mark(s.x(std::llround(n * tick * 1e6)), n * tick);
}

std::string row_name(const lane& l, const traced_run& run) {
  if (l.rank != rank_id{0}) return fmt::format("rank {}", l.rank.value());
  return stage_name(run, l.replica, l.stage);
}

/// One run: its title and one row per rank.
class panel {
 public:
  panel(const timeline& line, const scale& s, int top, legend_content& legend)
      : line_(line), scale_(s), top_(top + title_height), legend_(legend) {
    const auto rows = line.lanes.size();
    height_ = rows <= 8 ? 22 : rows <= 16 ? 15 : rows <= 48 ? 10 : 6;
    pitch_ = height_ + (rows <= 16 ? 2 : 1);
    for (std::size_t i = 0; i < rows; ++i) add(i);
  }

  int bottom() const { return top_ + pitch_ * static_cast<int>(line_.lanes.size()); }

  std::size_t tasks_count() const { return tasks_; }
  /// Number of tasks with enough room for their microbatch number.
  std::size_t labels_count() const { return labels_; }

  std::string drawn(const timeline& first, bool compared, bool numbered) {
    std::string out = title(first, compared);
    std::string rules;
    for_ticks(scale_, [&](tenths x, double) {
      rules += fmt::format("M{} {}V{}", pixels(x), top_ - 2, bottom());
    });
    out += fmt::format("<path stroke=\"{}\" d=\"{}\"/>\n", rule, rules);
    out += fmt::format("<g stroke-width=\"{}\">\n", height_);
    out += stroked(ground, ground_);
    for (std::size_t k = 0; k < tasks.size(); ++k) out += stroked(tasks[k].colour, kinds_[k]);
    out += stroked("url(#delay)", delays_);
    out += "</g>\n";
    std::string thin;
    for (std::size_t w = 0; w < waits.size(); ++w) thin += stroked(waits[w].colour, waits_[w]);
    if (!thin.empty())
      out += fmt::format("<g stroke-width=\"{}\">\n{}</g>\n", std::max(2, height_ / 4), thin);
    if (!borders_.empty())
      out += fmt::format("<path stroke=\"#fff\" stroke-width=\".7\" d=\"{}\"/>\n", borders_);
    const auto end = pixels(scale_.x(line_.wall()));
    out += fmt::format("<path stroke=\"{}\" d=\"M{} {}V{}\"/>\n", ink, end, top_ - 2, bottom());
    for (const auto& [colour, text] : {std::pair{ink, &dark_}, {"#fff", &light_}})
      if (numbered && !text->empty())
        out += fmt::format(
            "<g fill=\"{}\" stroke=\"none\" font-size=\"9\" text-anchor=\"middle\">{}</g>\n",
            colour, *text);
    return out +
           fmt::format("<g fill=\"{}\" stroke=\"none\" text-anchor=\"end\">{}</g>\n", soft, names_);
  }

 private:
  std::string title(const timeline& first, bool compared) const {
    auto numbers = fmt::format("step {}: {:.{}f} ms", line_.steps.front().step.value(),
                               milliseconds(line_.wall()), scale_.longest >= 10'000'000 ? 1 : 3);
    if (compared)
      numbers += fmt::format(", speed-up {:.2f}x",
                             static_cast<double>(first.wall()) /
                                 static_cast<double>(std::max<nanoseconds>(line_.wall(), 1)));
    numbers += fmt::format(", bubble {:.1f} %", 100 * figures_of(line_).bubble);
    return fmt::format(
        "<g fill=\"{}\" stroke=\"none\" font-size=\"13\"><text x=\"{}\" y=\"{}\" "
        "font-weight=\"600\">{}</text><text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text></g>\n",
        ink, scale_.left, top_ - 8, text_of(line_.run->title, title_characters_max), width - right,
        top_ - 8, numbers);
  }

  static std::string stroked(std::string_view colour, bars& b) {
    return b.empty() ? "" : fmt::format("<path stroke=\"{}\" d=\"{}\"/>\n", colour, b.path());
  }

  void add(std::size_t row) {
    const auto& l = line_.lanes[row];
    const int above = top_ + pitch_ * static_cast<int>(row);
    const auto middle = pixels(above * 10 + height_ * 5);
    // If rows are lower than letters, only some of them get a name.
    if (static_cast<int>(row) % (1 + 10 / (pitch_ + 1)) == 0)
      names_ += fmt::format("<text x=\"{}\" y=\"{}\">{}</text>", scale_.left - 7,
                            above + height_ / 2 + 4, row_name(l, *line_.run));
    const auto at = [&](nanoseconds t) { return scale_.x(t - line_.begin()); };
    ground_.add(at(line_.begin()), at(line_.end()), middle);
    tenths before = -1;
    for (const auto* t : l.tasks) {
      const auto begin = at(t->begin), end = at(t->end);
      const auto kind = static_cast<std::size_t>(t->what.kind);
      kinds_[kind].add(begin, end, middle);
      legend_.kinds[kind] = true;
      if (t->delay > 0) {
        delays_.add(at(t->end - t->delay), end, middle);
        legend_.delay = true;
      }
      if (begin - before < 4 && before >= 0 && end - begin > 30)
        borders_ += fmt::format("M{} {}v{}", pixels(begin), above, height_);
      before = end;
      label(*t, begin, end, above);
    }
    for (const auto& g : l.gaps)
      if (const auto w = waiting_in(g)) {
        waits_[static_cast<std::size_t>(*w)].add(at(g.begin), at(g.end), middle);
        legend_.waiting[static_cast<std::size_t>(*w)] = true;
      }
  }

  void label(const traced_task& t, tenths begin, tenths end, int above) {
    ++tasks_;
    auto text = std::to_string(t.what.mb.value());
    if (line_.run->shape.chunks > 1) text += fmt::format(".{}", t.what.chunk.value());
    if (height_ < 12 || end - begin < static_cast<tenths>(text.size()) * 55 + 20) return;
    ++labels_;
    auto& to = tasks[static_cast<std::size_t>(t.what.kind)].ink == ink ? dark_ : light_;
    to += fmt::format("<text x=\"{}\" y=\"{}\">{}</text>", pixels((begin + end) / 2),
                      above + height_ / 2 + 3, text);
  }

  const timeline& line_;
  const scale& scale_;
  int top_;
  legend_content& legend_;
  int height_;
  int pitch_;
  bars ground_;
  std::array<bars, task_kinds> kinds_;
  std::array<bars, waits.size()> waits_;
  bars delays_;
  std::string borders_;
  std::string dark_;
  std::string light_;
  std::size_t tasks_ = 0;
  std::size_t labels_ = 0;
  std::string names_;
};

/// Draws the legend at `top` and moves `top` below it.
std::string legend_text(const legend_content& all, int left, int& top) {
  std::string out = fmt::format("<g fill=\"{}\" stroke=\"none\">\n", ink);
  int x = left;
  const auto item = [&](std::string_view colour, int height, std::string_view meaning,
                        std::string_view over = {}) {
    const int wide = 22 + static_cast<int>(meaning.size()) * character + 14;
    if (x + wide > width && x > left) {
      x = left;
      top += legend_row;
    }
    const auto box = [&](std::string_view fill) {
      out += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"16\" height=\"{}\" fill=\"{}\"{}/>", x,
                         top + (11 - height) / 2, height, fill,
                         fill == ground ? " stroke=\"#b4bcc8\" stroke-width=\".6\"" : "");
    };
    box(colour);
    if (!over.empty()) box(over);
    out += fmt::format("<text x=\"{}\" y=\"{}\">{}</text>\n", x + 21, top + 9, meaning);
    x += wide;
  };
  for (std::size_t k = 0; k < tasks.size(); ++k)
    if (all.kinds[k]) item(tasks[k].colour, 11, tasks[k].meaning);
  if (all.delay) item(tasks[0].colour, 11, delay_meaning, "url(#delay)");
  for (std::size_t w = 0; w < waits.size(); ++w)
    if (all.waiting[w]) item(waits[w].colour, 5, waits[w].meaning);
  item(ground, 11, "other idle time");
  top += legend_row;
  return out + "</g>\n";
}

std::string axis_text(const scale& s, int top) {
  auto out = fmt::format(
      "<g fill=\"{}\" stroke=\"none\" text-anchor=\"middle\"><text x=\"{}\" y=\"{}\" "
      "text-anchor=\"end\">ms</text>",
      soft, s.left - 7, top + 13);
  const auto digits = static_cast<int>(std::max(0.0, std::ceil(-std::log10(tick_of(s)) - 1e-9)));
  for_ticks(s, [&](tenths x, double ms) {
    out += fmt::format("<text x=\"{}\" y=\"{}\">{:.{}f}</text>", pixels(x), top + 13, ms, digits);
  });
  return out + "</g>\n";
}

}  // namespace

std::string svg_of(const std::string& title, const std::vector<timeline>& runs) {
  scale s;
  std::size_t name_characters = 0;
  for (const auto& t : runs) {
    s.longest = std::max(s.longest, t.wall());
    for (const auto& l : t.lanes)
      name_characters = std::max(name_characters, row_name(l, *t.run).size());
  }
  s.left = static_cast<int>(name_characters) * character + 16;
  legend_content legend;
  std::vector<panel> panels;
  std::size_t tasks_count = 0, labels_count = 0;
  int top = 6;
  for (const auto& t : runs) {
    const auto& p = panels.emplace_back(t, s, top, legend);
    tasks_count += p.tasks_count();
    labels_count += p.labels_count();
    top = p.bottom() + panel_gap;
  }
  // If few bars have room for their number, numbers are only noise.
  const bool numbered = 3 * labels_count >= tasks_count;
  std::string body, summary;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto& t = runs[i];
    body += panels[i].drawn(runs.front(), i > 0, numbered);
    summary += fmt::format("{}{}: step {} takes {:.3f} ms", summary.empty() ? "" : "; ",
                           t.run->title, t.steps.front().step.value(), milliseconds(t.wall()));
  }
  top -= panel_gap;
  body += axis_text(s, top);
  top += axis_height + 6;
  body += legend_text(legend, s.left, top);
  const int height = top + 2;
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 "
             "{0} {1}\" role=\"img\" fill=\"none\" font-family=\"system-ui, -apple-system, 'Segoe "
             "UI', Roboto, 'DejaVu Sans', Helvetica, Arial, sans-serif\" font-size=\"11\">\n"
             "<title>{2}</title>\n<desc>{3}</desc>\n",
             width, height, text_of(title), text_of(summary)) +
         // Light lines beside dark ones are visible on every colour.
         "<defs><pattern id=\"delay\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" "
         "patternTransform=\"rotate(45)\"><path stroke=\"#fff\" stroke-opacity=\".45\" "
         "stroke-width=\"1.3\" d=\"M1 0v5\"/><path stroke=\"#000\" stroke-opacity=\".3\" "
         "stroke-width=\"1.3\" d=\"M2.3 0v5\"/></pattern></defs>\n" +
         fmt::format("<rect width=\"{}\" height=\"{}\" fill=\"#fff\"/>\n", width, height) + body +
         "</svg>\n";
}

}  // namespace rrfp::report
