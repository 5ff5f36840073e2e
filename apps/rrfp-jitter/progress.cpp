#include "progress.hpp"

#include <unistd.h>
#include <cstdio>

#include <fmt/format.h>

namespace rrfp::apps {

namespace {

constexpr std::chrono::milliseconds live_interval{100};
constexpr std::chrono::seconds line_interval{5};

}  // namespace

progress::progress(std::size_t cells) : cells_(cells), live_(::isatty(STDERR_FILENO) == 1) {}

void progress::cell_done() {
  ++done_;
  const auto now = clock::now();
  if (now - shown_ < (live_ ? live_interval : line_interval)) return;
  shown_ = now;
  show(now);
}

void progress::show(clock::time_point now) {
  const std::chrono::duration<double> passed = now - begun_;
  const auto left =
      passed.count() / static_cast<double>(done_) * static_cast<double>(cells_ - done_);
  fmt::print(stderr, "{}{} of {} cells, {:.0f} s left{}", live_ ? "\r" : "", done_, cells_, left,
             live_ ? "   " : "\n");
  std::fflush(stderr);
}

void progress::finish() {
  if (live_) fmt::print(stderr, "\r{:40}\r", "");
}

}  // namespace rrfp::apps
