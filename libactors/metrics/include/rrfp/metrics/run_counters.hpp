/// What one run counts on one node. The stages and ranks that are hosted there write their own
/// entries; entries are made before anybody writes and stay where they are.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>

#include <rrfp/metrics/counters.hpp>
#include <rrfp/schedule/event.hpp>
#include <rrfp/schedule/ids.hpp>
#include <rrfp/schedule/task.hpp>

namespace rrfp::metrics {

inline constexpr std::size_t choices = 4;
inline constexpr std::size_t wait_causes = 4;

/// Written by the supervisor of the stage.
struct stage_counters {
  replica_id replica;
  stage_id stage;
  counter steps;
  std::array<duration_histogram, task_kinds> tasks;  ///< on all ranks of the stage
  std::array<counter, choices> decisions;            ///< by reason
  counter skipped_hints;                             ///< tasks that the hint ranked before them
  std::array<counter, wait_causes> waited_ns;        ///< nothing to launch, by cause
  counter launch_gap_ns;                             ///< ranks were free, for no reason above
  duration_histogram tp_waits;                       ///< of inputs, from the first rank to the last
  gauge<std::uint32_t> ready;                        ///< tasks that could be launched if they fit
  gauge<std::uint32_t> outstanding;                  ///< launches not finished
  gauge<std::uint32_t> slots;                        ///< held
  gauge<std::uint32_t> slots_limit;                  ///< 0: none
  gauge<std::uint64_t> slot_bytes;                   ///< held
  gauge<std::uint64_t> slot_bytes_limit;             ///< 0: none
};

/// Written by the rank, its device and its collectives.
struct rank_counters {
  replica_id replica;
  stage_id stage;
  rank_id rank;
  counter sent;  ///< tensors to other ranks, in whatever way they travel
  counter sent_bytes;
  counter received;
  counter received_bytes;
  gauge<std::uint32_t> inputs_waiting;   ///< arrived and not launched
  gauge<std::int64_t> device_allocated;  ///< bytes in tensors on its device, which may be shared
  gauge<std::int64_t> device_reserved;   ///< bytes taken from its device; 0: it has no memory
  counter collectives;
  counter collective_ns;  ///< in collectives, most of it waiting for other ranks
};

/// Written by the job; of no meaning where it does not run.
struct job_counters {
  counter steps;
  counter tokens;
  gauge<std::uint64_t> first_step;
  gauge<double> loss;
  gauge<double> gradient_norm;
  gauge<double> lr;
  gauge<double> bubble_fraction;
  duration_histogram step_time;
  counter checkpoints;
  counter checkpoint_failures;
  gauge<std::uint64_t> checkpoint_step;  ///< of the last one that was saved
};

/// Of the transport between nodes, when asked.
struct transport_numbers {
  std::uint64_t sent = 0;
  std::uint64_t sent_bytes = 0;
  std::uint64_t received = 0;
  std::uint64_t received_bytes = 0;
  std::uint64_t dropped_duplicates = 0;
  std::uint64_t dropped_others = 0;
  std::uint64_t announced = 0;
  std::uint64_t inflight_bytes = 0;
};

/// Somebody to ask who comes late and leaves early. Thread-safe.
class transport_source {
 public:
  void set(std::function<transport_numbers()> ask) {
    const std::lock_guard lock{mutex_};
    ask_ = std::move(ask);
  }
  /// Zeroes while there is nobody.
  transport_numbers read() const {
    const std::lock_guard lock{mutex_};
    return ask_ ? ask_() : transport_numbers{};
  }

 private:
  mutable std::mutex mutex_;
  std::function<transport_numbers()> ask_;
};

struct run_counters {
  std::string run;
  bool leads = true;          ///< the job runs here
  double hang_timeout_s = 0;  ///< 0: never a hang
  std::deque<stage_counters> stages;
  std::deque<rank_counters> ranks;
  job_counters job;
  counter resent;                     ///< messages that were lost
  gauge<std::int64_t> last_progress;  ///< steady_now() of any sign of life
  gauge<std::int64_t> last_step;      ///< steady_now() of the end of a step; 0: none yet
  gauge<bool> over;                   ///< nothing more will happen
  transport_source transport;

  void note_progress() { last_progress.set(steady_now()); }
};

}  // namespace rrfp::metrics
