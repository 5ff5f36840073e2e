/// Progress of a training on standard output: on a terminal a bar and its line, which are
/// overwritten; elsewhere a plain line every few seconds.
#pragma once

#include <chrono>
#include <string>

#include <rrfp/actors/session.hpp>
#include <rrfp/job/options.hpp>

namespace rrfp::apps {

/// Not thread-safe: one thread reports the steps of a run.
class progress {
 public:
  /// The run has `steps` steps; the first `first` of them were done before it resumed.
  progress(job::progress_kind kind, std::string run, std::uint64_t first, std::uint64_t steps);

  void step(const actors::step_summary& s);
  /// Prints a separate line after an evaluation.
  void evaluation(const actors::evaluation_summary& e);
  /// Prints a separate line, even if progress is switched off.
  void note(const std::string& text);
  /// Ends the line that is being overwritten.
  void finish();

 private:
  std::string line(const actors::step_summary& s) const;

  using clock = std::chrono::steady_clock;

  bool live_;  ///< standard output is a terminal
  bool silent_;
  std::string run_;
  std::uint64_t first_;
  std::uint64_t steps_;
  clock::time_point began_ = clock::now();
  clock::time_point printed_;
  std::size_t width_ = 0;
};

}  // namespace rrfp::apps
