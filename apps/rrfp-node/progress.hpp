/// Progress of a training on standard output: on a terminal a bar and its line, which are
/// overwritten; elsewhere a plain line every few seconds.
#pragma once

#include <chrono>
#include <string>

#include <rrfp/actors/session.hpp>
#include <rrfp/job/job.hpp>

namespace rrfp::apps {

/// Not thread-safe: one thread reports the steps of a run.
class progress {
 public:
  /// The first `first` steps of the run were done before it resumed.
  progress(const job::job& run, std::uint64_t first);

  void step(const actors::step_summary& s);
  /// Prints a separate line after an evaluation.
  void evaluation(const actors::evaluation_summary& e);
  /// Prints a separate line, even if progress is switched off.
  void note(const std::string& text);
  /// Ends the line that is being overwritten.
  void finish();

 private:
  /// The parts that fit, the more important ones first.
  std::string line(const actors::step_summary& s, std::size_t columns_max) const;

  using clock = std::chrono::steady_clock;

  bool live_;  ///< standard output is a terminal
  bool silent_;
  bool has_loss_;  ///< an emulated device computes none
  std::string run_;
  std::uint64_t first_;
  std::uint64_t steps_;
  clock::time_point began_ = clock::now();
  clock::time_point printed_;
  std::size_t width_ = 0;
};

}  // namespace rrfp::apps
