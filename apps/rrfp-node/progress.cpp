#include "progress.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

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

/// Of the terminal; it may be resized while a job runs.
std::size_t columns() {
  winsize size{};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

std::string bar(std::uint64_t done, std::uint64_t all) {
  constexpr std::uint64_t cells = 20;
  const auto full = std::min(cells, done * cells / std::max<std::uint64_t>(all, 1));
  return "[" + std::string(full, '#') + std::string(cells - full, '-') + "]";
}

}  // namespace

progress::progress(job::progress_kind kind, std::string run, std::uint64_t first,
                   std::uint64_t steps)
    : live_(kind == job::progress_kind::automatic && isatty(STDOUT_FILENO) != 0),
      silent_(kind == job::progress_kind::none),
      run_(std::move(run)),
      first_(first),
      steps_(steps) {}

void progress::step(const actors::step_summary& s) {
  if (silent_) return;
  const auto now = clock::now();
  const bool edge = s.step == first_ + 1 || s.step == steps_;
  if (!edge && now - printed_ < (live_ ? clock::duration{live_period} : line_period)) return;
  printed_ = now;
  if (!live_) return print("{}\n", line(s));
  // A line that reaches the last column would wrap, and could not be overwritten.
  const auto text = (bar(s.step, steps_) + " " + line(s)).substr(0, columns() - 1);
  print("\r{:<{}}", text, std::exchange(width_, text.size()));
}

std::string progress::line(const actors::step_summary& s) const {
  const std::chrono::duration<double> elapsed = clock::now() - began_;
  const auto rest =
      elapsed.count() / static_cast<double>(s.step - first_) * static_cast<double>(steps_ - s.step);
  return fmt::format("{}  step {}/{}  loss {:.4f}  {:.0f} tokens/s  bubble {:.0f} %  ETA {}", run_,
                     s.step, steps_, s.loss, static_cast<double>(s.tokens) / s.step_ms * 1e3,
                     s.bubble_fraction * 100, minutes_and_seconds(rest));
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
