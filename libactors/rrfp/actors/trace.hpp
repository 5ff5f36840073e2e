/// Records every task and every wait of a run, with times and reasons, for trace viewers.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/base/ids.hpp>
#include <rrfp/base/result.hpp>
#include <rrfp/compute/step_measures.hpp>
#include <rrfp/core/event.hpp>
#include <rrfp/core/memory.hpp>

namespace rrfp::actors {

/// One task on one rank. Times in nanoseconds since the run began.
struct task_record {
  replica_id replica;
  stage_id stage;
  rank_id rank;
  step_id step;
  launch launched;
  std::int64_t decided = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  /// Part of [begin, end] that was injected jitter.
  std::int64_t delay = 0;
  /// Memory use of the stage when the task had ended.
  memory_use memory;
  /// Measured activation memory of the rank at that time, in bytes.
  std::int64_t held_bytes = 0;
  /// Device memory at that time, allocated and reserved; 0 if the device has none of its own.
  compute::memory_counts device_memory = {};
};

/// An interval in which a stage had nothing to launch.
struct wait_record {
  replica_id replica;
  stage_id stage;
  step_id step;
  wait waiting;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// A training step as the job on node 0 saw it: the table of runs is made of the same figures.
struct step_record {
  step_id step;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  /// Measured activation memory of the rank that held most.
  std::int64_t peak_bytes = 0;
};

/// A loss of a node after which the job continued.
struct recovery_record {
  std::string lost;                  ///< the message that reported the loss
  std::uint64_t step = 0;            ///< complete steps from which the job continued
  bool from_copies = false;          ///< from copies in memory, not from a checkpoint
  std::uint64_t repeated_steps = 0;  ///< complete before the loss, and run again
  double held_s = 0;                 ///< from the loss until all nodes had joined again
};

struct trace_records {
  std::vector<task_record> tasks;
  std::vector<wait_record> waits;
  std::vector<step_record> steps;
  std::vector<recovery_record> recoveries;  ///< a few
  std::uint64_t dropped = 0;                ///< beyond the limit
};

/// Thread-safe. Holds at most `records_max` records of each kind and counts the rest as dropped.
class trace_recorder {
 public:
  static constexpr std::size_t records_max = 4'000'000;

  void add(const task_record& r);
  void add(const wait_record& r);
  void add(const step_record& r);
  void add(const recovery_record& r);

  trace_records records() const;

  /// Encodes the tasks and waits for add_bytes() in another process of the same build. Those beyond
  /// `bytes_max` are left out and count as dropped.
  std::string to_bytes(std::size_t bytes_max) const;
  void add_bytes(std::string_view bytes);

 private:
  template <class Record>
  void keep(std::vector<Record>& all, const Record& r);

  mutable std::mutex mutex_;
  trace_records records_;
};

struct titled_trace {
  std::string title;
  const trace_recorder* trace = nullptr;
};

/// Writes the Trace Event Format (JSON) that Perfetto and chrome://tracing read: one process per
/// stage, one thread per rank, one more thread for waits, counters for slots and bytes; the first
/// stage also has a thread for the steps. Several runs are shown side by side, each with its own
/// processes and time 0. The file is written under a temporary name and then renamed, so `path` is
/// never incomplete. Error: the file cannot be written.
status write_chrome_json(const std::string& path, const std::vector<titled_trace>& runs);

}  // namespace rrfp::actors
