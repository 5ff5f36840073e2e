/// The results of runs: JSON lines for every step and a summary, the table at the end, and lines
/// for the user.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <rrfp/actors/session.hpp>
#include <rrfp/base/result.hpp>
#include <rrfp/job/job.hpp>

namespace rrfp::apps {

/// "stage 2 rank 1 (node 3) is a straggler: ...".
std::string line_of(const actors::straggler_report& r);
/// "checkpoint: step 42 saved, 3 files, 12.0 MiB, 0.8 ms copy, 35 ms in the background", or the
/// reason of the failure.
std::string line_of(const actors::checkpoint_report& r);
/// "resumes after step 42 from DIR/step-00000042, written at 2026-01-31T12:00:00Z"
std::string line_of(const checkpoint::found_checkpoint& from);

/// JSON lines: {"event":"step",...} and {"event":"checkpoint",...} when they happen,
/// {"event":"resume",...} first if a run resumes, {"event":"recovery",...} when it goes on after a
/// loss, {"event":"straggler",...} when ranks turn out to be late, {"event":"summary",...} at the
/// end of each run.
/// Each line is flushed at once.
class json_log {
 public:
  /// An empty path gives a log that writes nothing. `appends`: to the lines of another process,
  /// without a part of a line at the end. Error: the file cannot be created.
  static result<std::unique_ptr<json_log>> open(const std::string& path, bool appends);
  ~json_log();

  void step(const job::job& run, const actors::step_summary& s);
  void evaluation(const job::job& run, const actors::evaluation_summary& e);
  void checkpoint(const job::job& run, const actors::checkpoint_report& r);
  void resume(const job::job& run, const checkpoint::found_checkpoint& from);
  /// `totals`: of all losses of the job. `absent`: the nodes that it goes on without.
  void recovery(const job::job& run, const actors::recovery_record& r,
                const recovery_totals& totals, const std::vector<node_id>& absent);
  void straggler(const job::job& run, const actors::straggler_report& r);
  void summary(const job::job& run, const actors::run_result& r);
  /// Error: a write failed, for example because the disk is full.
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

/// The table of runs, one line each.
std::string table_of(const std::vector<finished_run>& runs);

/// Whether two runs must have equal bits: they differ only in dispatch, stages, chunks, placement,
/// jitter, costs, [run] or [checkpoint].
bool must_agree(const job::job& a, const job::job& b);

}  // namespace rrfp::apps
