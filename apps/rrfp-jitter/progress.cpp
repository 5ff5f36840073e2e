#include "progress.hpp"

#include <unistd.h>

#include "../common/console.hpp"

namespace rrfp::apps {

namespace {

constexpr std::chrono::milliseconds live_interval{100};
constexpr std::chrono::seconds line_interval{5};

}  // namespace

progress::progress(std::string engine, std::size_t cells, double work)
    : engine_(std::move(engine)), cells_(cells), work_(work), live_(::isatty(STDERR_FILENO) == 1) {}

void progress::cell_done(double work) {
  const std::lock_guard lock{mutex_};
  ++done_;
  work_done_ += work;
  const auto now = clock::now();
  if (now - shown_ < (live_ ? live_interval : line_interval)) return;
  shown_ = now;
  show(now);
}

void progress::show(clock::time_point now) {
  const std::chrono::duration<double> passed = now - begun_;
  const auto left = work_done_ > 0 ? passed.count() * (work_ / work_done_ - 1) : 0;
  print_error("{}{}: {} of {} cells, {:.0f} s left{}", live_ ? "\r" : "", engine_, done_, cells_,
              left, live_ ? "   " : "\n");
}

void progress::finish() {
  const std::lock_guard lock{mutex_};
  if (live_) print_error("\r{:60}\r", "");
}

}  // namespace rrfp::apps
