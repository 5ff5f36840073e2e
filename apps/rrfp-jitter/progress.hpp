/// How far an experiment is, on stderr: live on a terminal, a line every few seconds elsewhere.
#pragma once

#include <chrono>
#include <cstddef>
#include <mutex>
#include <string>

namespace rrfp::apps {

/// Thread-safe.
class progress {
 public:
  /// `cells` still have to run, on what `where` names; `work` is the sum of what cell_done() will
  /// be told.
  progress(std::string where, std::size_t cells, double work);

  /// `work`: how much of all this cell was, in any unit.
  void cell_done(double work);
  /// Clears the line.
  void finish();

 private:
  using clock = std::chrono::steady_clock;

  void show(clock::time_point now);

  const std::string where_;
  const std::size_t cells_;
  const double work_;
  const bool live_;
  const clock::time_point begun_ = clock::now();
  std::mutex mutex_;
  std::size_t done_ = 0;
  double work_done_ = 0;
  clock::time_point shown_ = begun_;
};

}  // namespace rrfp::apps
