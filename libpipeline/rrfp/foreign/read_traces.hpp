/// Reads the traces of any training job, as the structures of rrfp/report/trace.hpp.
///
/// Kinds of files, recognised by their content:
///
///   rrfp        rrfp-node run --trace; each file has runs of its own
///   profiler    torch.profiler's Chrome trace, .json or .json.gz; all files together are one run,
///               one file for each rank
///   nsys        tables of nsys stats: ranges of NVTX, and kernels (nvtx.hpp); as the profiler's
///   log         timers of Megatron-LM or DeepSpeed (timer_log.hpp); all files together are one run
///   CSV         one run: rank or stage, chunk, microbatch, kind, step, start, end (any_csv.hpp)
///
/// A trace of the profiler is read event by event: memory holds what concerns the pipeline, not the
/// file. docs/analyze.md says what is found in which framework.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <rrfp/report/trace.hpp>

namespace rrfp::foreign {

/// A run, and where it came from.
struct found_run {
  report::traced_run run;
  std::string file;  ///< the first of its files
  /// Whether another framework scheduled it.
  bool is_foreign = false;
  /// What was found, how, and what was not; one sentence each.
  std::vector<std::string> notes;
};

/// What logs may leave out; 0: as they say.
struct read_options {
  std::uint32_t stages = 0;
  std::uint32_t microbatches = 0;
};

/// Errors: a file that is none of these, is broken or cut off, or has no pipeline in it; ranks that
/// do not fit together. One line, which names the file.
result<std::vector<found_run>> read_traces(const std::vector<std::string>& files,
                                           const read_options& options = {});

}  // namespace rrfp::foreign
