/// Progress of an experiment on stderr: a live line on a terminal, a line every few seconds
/// elsewhere.
#pragma once

#include <chrono>
#include <cstddef>
#include <mutex>
#include <string>

namespace rrfp::apps {

/// Thread-safe.
class progress {
 public:
  /// `cells` is the number of cells to run, `engine` names the engine, and `work` is the sum of all
  /// arguments of cell_done().
  progress(std::string engine, std::size_t cells, double work);

  /// `work`: the share of this cell, in any unit.
  void cell_done(double work);
  /// Clears the line.
  void finish();

 private:
  using clock = std::chrono::steady_clock;

  void show(clock::time_point now);

  const std::string engine_;
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
