/// The counters of one run on one node. The stages and ranks on this node write their own entries.
/// All entries are created before the first write and never move.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>

#include <rrfp/base/ids.hpp>
#include <rrfp/core/event.hpp>
#include <rrfp/core/message_header.hpp>
#include <rrfp/core/task.hpp>
#include <rrfp/core/transport_core.hpp>
#include <rrfp/metrics/counters.hpp>

namespace rrfp::metrics {

inline constexpr std::size_t choices = 4;

/// Written by the stage supervisor.
struct stage_counters {
  replica_id replica;
  stage_id stage;
  counter steps;
  std::array<duration_histogram, task_kinds> tasks;  ///< over all ranks of the stage
  std::array<counter, choices> decisions;            ///< by reason
  counter skipped_hints;                             ///< tasks ranked before the chosen ones
  std::array<counter, wait_causes> waited_ns;        ///< no task could be launched, by cause
  counter launch_gap_ns;                             ///< ranks were free without such a cause
  duration_histogram tp_waits;                       ///< from an input's first rank to its last
  gauge<std::uint32_t> ready;             ///< tasks that could be launched if memory allowed
  gauge<std::uint32_t> outstanding;       ///< launches not finished
  gauge<std::uint32_t> slots;             ///< held
  gauge<std::uint32_t> slots_limit;       ///< 0: none
  gauge<std::uint64_t> slot_bytes;        ///< held
  gauge<std::uint64_t> slot_bytes_limit;  ///< 0: none
};

/// Written by the rank, its device and its collectives.
struct rank_counters {
  rank_address at;
  counter sent;  ///< tensors to other ranks, over any path
  counter sent_bytes;
  counter received;
  counter received_bytes;
  gauge<std::uint32_t> inputs_waiting;   ///< arrived and not launched
  gauge<std::int64_t> device_allocated;  ///< tensor bytes on its device, which may be shared
  gauge<std::int64_t> device_reserved;   ///< bytes taken from its device; 0: no device memory
  counter collectives;
  counter collective_ns;  ///< time in collectives, most of it waiting for other ranks
};

/// How late a rank is; see rrfp/core/stragglers.hpp.
struct late_counter {
  rank_address at;
  gauge<std::int64_t> late_ns;  ///< in all steps so far
  gauge<double> lateness;       ///< of a straggler: share of the time of the last steps; else 0
};

/// Written by the job actor; meaningless on other nodes.
struct job_counters {
  counter steps;
  counter tokens;
  gauge<std::uint64_t> first_step;
  gauge<double> loss;
  gauge<double> gradient_norm;
  gauge<double> lr;
  gauge<double> bubble_fraction;
  duration_histogram step_time;
  std::deque<late_counter> late;            ///< filled before the run
  std::deque<gauge<std::uint32_t>> shares;  ///< by replica; filled before the run
  counter evaluations;
  gauge<double> eval_loss;
  counter checkpoints;
  counter checkpoint_failures;
  gauge<std::uint64_t> checkpoint_step;  ///< step of the last saved checkpoint
  // Of the whole job, before this run began.
  gauge<std::uint64_t> restarts;        ///< losses of nodes after which it went on
  gauge<double> held_s;                 ///< until all nodes had joined again
  gauge<std::uint64_t> repeated_steps;  ///< complete before a loss, and made again
};

/// Reads the transport's counters; the transport may be set late and removed early. Thread-safe.
class transport_source {
 public:
  void set(std::function<messaging::transport_counts()> read) {
    const std::lock_guard lock{mutex_};
    read_ = std::move(read);
  }
  /// Zeroes while no transport is set.
  messaging::transport_counts read() const {
    const std::lock_guard lock{mutex_};
    return read_ ? read_() : messaging::transport_counts{};
  }

 private:
  mutable std::mutex mutex_;
  std::function<messaging::transport_counts()> read_;
};

struct run_counters {
  std::string run;
  bool leads = true;          ///< the job actor runs on this node
  double hang_timeout_s = 0;  ///< 0: no limit
  std::deque<stage_counters> stages;
  std::deque<rank_counters> ranks;
  job_counters job;
  gauge<std::int64_t> last_progress;  ///< steady_now() of the last progress
  gauge<std::int64_t> last_step;      ///< steady_now() of the end of the last step; 0: none yet
  gauge<bool> over;                   ///< the run has ended
  transport_source transport;

  void note_progress() { last_progress.set(steady_now()); }
};

}  // namespace rrfp::metrics
