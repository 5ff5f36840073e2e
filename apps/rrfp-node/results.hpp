/// What a run leaves: a line of JSON a step and a summary, and the table at the end.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <rrfp/actors/session.hpp>
#include <rrfp/job/job.hpp>
#include <rrfp/schedule/result.hpp>

namespace rrfp::apps {

/// JSON lines: {"event":"step",...} and {"event":"checkpoint",...} as they come,
/// {"event":"summary",...} at the end of each run, {"event":"resume",...} where one does not begin
/// with the first step.
/// Every line is written whole.
class json_log {
 public:
  /// An empty path: a log that goes nowhere. Error: the file cannot be made.
  static result<std::unique_ptr<json_log>> open(const std::string& path);
  ~json_log();

  void step(const job::job& run, const actors::step_summary& s);
  void checkpoint(const job::job& run, const actors::checkpoint_report& r);
  void resume(const job::job& run, const checkpoint::found_checkpoint& from);
  void summary(const job::job& run, const actors::run_result& r);
  /// Error: something could not be written (the disk is full, say).
  status close();

 private:
  json_log(std::string path, std::FILE* file) : path_(std::move(path)), file_(file) {}
  void write(const std::string& line);

  std::string path_;
  std::FILE* file_;
  int failure_ = 0;  ///< errno of the first write that failed
};

struct finished_run {
  job::job run;
  actors::run_summary summary;
};

/// The table of runs, and whether they gave the same losses and weights.
std::string table_of(const std::vector<finished_run>& runs);

/// Runs that differ only in dispatch, stages, chunks, placement or jitter must agree to the last bit.
bool must_agree(const job::job& a, const job::job& b);

}  // namespace rrfp::apps
