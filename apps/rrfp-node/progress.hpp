/// What a person sees on standard output while a job trains: one line that is written over on a
/// terminal, a plain line now and then elsewhere.
#pragma once

#include <chrono>
#include <string>

#include <rrfp/actors/session.hpp>
#include <rrfp/job/options.hpp>

namespace rrfp::apps {

/// Not thread-safe: one run's steps are told by one thread.
class progress {
 public:
  /// Of `steps` steps in all, those before `first` were done before.
  progress(job::progress_kind kind, std::string run, std::uint64_t first, std::uint64_t steps);

  void step(const actors::step_summary& s);
  /// A line of its own, also where there is no progress to see.
  void note(const std::string& text);
  /// Ends the line that is being written over.
  void finish();

 private:
  std::string line(const actors::step_summary& s) const;

  using clock = std::chrono::steady_clock;

  bool live_;
  bool silent_;
  std::string run_;
  std::uint64_t first_;
  std::uint64_t steps_;
  clock::time_point began_ = clock::now();
  clock::time_point printed_;
  std::size_t width_ = 0;
};

}  // namespace rrfp::apps
