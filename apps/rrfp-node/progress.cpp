#include "progress.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <vector>

#include <fmt/format.h>

#include "../common/console.hpp"

namespace rrfp::apps {

namespace {

constexpr std::chrono::milliseconds live_period{100};
constexpr std::chrono::seconds line_period{5};

std::string minutes_and_seconds(double seconds) {
  const auto whole = static_cast<std::int64_t>(seconds + 0.5);
  if (whole >= 3600)
    return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{:02}:{:02}", whole / 60, whole % 60);
}

/// Returns the width of the terminal, which may be resized while a job runs.
std::size_t columns() {
  winsize size{};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

constexpr std::size_t bar_columns = 22;

std::string bar(std::uint64_t done, std::uint64_t all) {
  constexpr std::uint64_t cells = bar_columns - 2;
  const auto full = std::min(cells, done * cells / std::max<std::uint64_t>(all, 1));
  return "[" + std::string(full, '#') + std::string(cells - full, '-') + "]";
}

}  // namespace

progress::progress(const job::job& run, std::uint64_t first)
    : live_(run.run.progress == job::progress_kind::automatic && isatty(STDOUT_FILENO) != 0),
      silent_(run.run.progress == job::progress_kind::none),
      has_loss_(run.device.kind != job::device_kind::emulated),
      run_(run.name),
      first_(first),
      steps_(run.train.steps) {}

void progress::step(const actors::step_summary& s) {
  if (silent_) return;
  const auto now = clock::now();
  const bool edge = s.step == first_ + 1 || s.step == steps_;
  if (!edge && now - printed_ < (live_ ? clock::duration{live_period} : line_period)) return;
  printed_ = now;
  if (!live_) return print("{}\n", line(s, std::numeric_limits<std::size_t>::max()));
  // A line that reaches the last column would wrap, and could not be overwritten.
  const auto room = columns() - 1;
  const auto beside = room - std::min(room, bar_columns + 1);
  const auto text = (bar(s.step, steps_) + " " + line(s, beside)).substr(0, room);
  print("\r{:<{}}", text, std::exchange(width_, text.size()));
}

std::string progress::line(const actors::step_summary& s, std::size_t columns_max) const {
  const std::chrono::duration<double> elapsed = clock::now() - began_;
  const auto rest =
      elapsed.count() / static_cast<double>(s.step - first_) * static_cast<double>(steps_ - s.step);
  struct part {
    std::string text;
    int weight;  ///< the least goes first if the line is too long
  };
  std::vector<part> parts{{run_, 1}, {fmt::format("step {}/{}", s.step, steps_), 5}};
  if (has_loss_) parts.push_back({fmt::format("loss {:.4f}", s.loss), 2});
  parts.push_back(
      {fmt::format("{:.0f} tokens/s", static_cast<double>(s.tokens) / s.step_ms * 1e3), 0});
  parts.push_back({fmt::format("bubble {:.0f} %", s.bubble_fraction * 100), 3});
  parts.push_back({"ETA " + minutes_and_seconds(rest), 4});
  const auto lighter = [](const part& x, const part& y) { return x.weight < y.weight; };
  for (;;) {
    std::string text;
    for (const auto& p : parts) text += (text.empty() ? "" : "  ") + p.text;
    if (text.size() <= columns_max || parts.size() == 1) return text;
    parts.erase(std::min_element(parts.begin(), parts.end(), lighter));
  }
}

void progress::evaluation(const actors::evaluation_summary& e) {
  if (silent_) return;
  note(fmt::format("{}  step {}/{}  held-out loss {:.4f}  {} tokens in {:.1f} s", run_, e.step,
                   steps_, e.loss, e.tokens, e.seconds));
}

void progress::note(const std::string& text) {
  if (live_) print("\r{:<{}}\r", "", std::exchange(width_, 0));
  print("{}\n", text);
}

void progress::finish() {
  if (live_ && width_ > 0) print("\n");
}

}  // namespace rrfp::apps
