#include "progress.hpp"

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
  const auto text = line(s);
  if (live_) {
    print("\r{:<{}}", text, std::exchange(width_, text.size()));
  } else {
    print("{}\n", text);
  }
}

std::string progress::line(const actors::step_summary& s) const {
  const std::chrono::duration<double> elapsed = clock::now() - began_;
  const auto rest =
      elapsed.count() / static_cast<double>(s.step - first_) * static_cast<double>(steps_ - s.step);
  return fmt::format("{}  step {}/{}  loss {:.4f}  {:.0f} tokens/s  bubble {:.0f} %  ETA {}", run_,
                     s.step, steps_, s.loss, static_cast<double>(s.tokens) / s.step_ms * 1e3,
                     s.bubble_fraction * 100, minutes_and_seconds(rest));
}

void progress::note(const std::string& text) {
  if (live_) print("\r{:<{}}\r", "", std::exchange(width_, 0));
  print("{}\n", text);
}

void progress::finish() {
  if (live_ && width_ > 0) print("\n");
}

}  // namespace rrfp::apps
