/// Reads the timers that Megatron-LM and DeepSpeed print into their logs. Lines may have a prefix,
/// and others between them:
///
///   times across ranks (ms):                            Megatron-LM with --timing-log-level 2 and
///     forward-compute:                                  --timing-log-option all: of one step, the
///        rank  0: 120.31                                mean over a logging interval
///     global_batch_size ................. 512           its arguments
///   [Rank 0] time (ms) | fwd_microstep: 80.12 | ...     DeepSpeed with wall_clock_breakdown: sums
///   steps: 10 loss: 2.3 iter time (s): 0.512 ...        of all steps since the line before
///   ... CONFIG: micro_batches=8 micro_batch_size=2      its settings
///   ... RANK=4 STAGE=1 LAYERS=...
#pragma once

#include <string>
#include <vector>

#include <rrfp/foreign/read_traces.hpp>

namespace rrfp::foreign {

/// All files are of one job. `run` has the steps of mean_steps.hpp.
/// Errors: no timers in the files, not those of each rank, or numbers that neither the log nor the
/// options say.
result<found_run> read_timer_logs(const std::vector<std::string>& files,
                                  const read_options& options);

}  // namespace rrfp::foreign
