/// How far an experiment is, on stderr: live on a terminal, a line every few seconds elsewhere.
#pragma once

#include <chrono>
#include <cstddef>

namespace rrfp::apps {

class progress {
 public:
  /// `cells` still have to run.
  explicit progress(std::size_t cells);

  void cell_done();
  /// Clears the line.
  void finish();

 private:
  using clock = std::chrono::steady_clock;

  void show(clock::time_point now);

  std::size_t cells_;
  std::size_t done_ = 0;
  bool live_;
  clock::time_point begun_ = clock::now();
  clock::time_point shown_ = begun_;
};

}  // namespace rrfp::apps
