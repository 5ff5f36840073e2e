/// The state of a pipeline. Its threads share it with the caller's, because they may never end.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <rrfp/actors/membership.hpp>
#include <rrfp/metrics/board.hpp>
#include <rrfp/pipeline.hpp>
#include <rrfp/plan/node_places.hpp>

#include "fed_source.hpp"
#include "hook_thread.hpp"
#include "model_parts.hpp"

namespace rrfp {

class pipeline::impl : public std::enable_shared_from_this<pipeline::impl> {
 public:
  impl(job::job j, pipeline_options options);
  impl(const impl&) = delete;
  impl& operator=(const impl&) = delete;

  /// Ends the run. A thread that cannot be ended keeps this state alive.
  void close();
  /// opening.cpp
  status open();
  result<step_result> pass(compute::step_purpose purpose,
                           std::vector<compute::microbatch> microbatches, step_options how);
  result<step_result> pass(compute::step_purpose purpose, const batch& rows, step_options how);
  std::uint64_t steps() const { return steps_; }
  bool leads() const { return members_ == nullptr || members_->node() == node_id{0}; }

  result<std::vector<compute::named_tensor>> state_dict();
  status load_state_dict(std::vector<compute::named_tensor> state);
  status save();
  result<actors::run_summary> finish();
  void interrupt() { session_->interrupt(); }
  void report(std::string why) { session_->report(std::move(why)); }
  std::string metrics_text() const;

 private:
  bool is_emulated() const { return job_.device.kind == job::device_kind::emulated; }

  /// Locks calls_. Error: the caller runs inside a step, or another call runs.
  result<std::unique_lock<std::mutex>> begin_call();
  /// Tells the other processes the line of the options.
  status exchange_lines();
  /// Calls `work(compute)` for each rank here, between steps. Returns the first failure.
  status for_each_compute(std::function<status(compute::rank_compute&)> work);

  /// Waits until nothing runs any more, up to a limit. False if something has not returned.
  bool wait_for_rest();

  // opening.cpp
  status join();
  /// With several processes: whether the first and the last part of the model are here.
  void find_ends(const plan::node_places& places, node_id here);

  result<actors::session_setup> make_setup();
  status choose_resume(actors::session_setup& setup);

  /// Notes failed saves and what hooks threw since the last call, and returns the latter.
  std::string report_failures();
  void note(const std::string& line);
  void on_step(const actors::step_summary& s);
  void run();

  /// Only the first call has an effect.
  void end(actors::run_result how);
  bool is_over();

  /// Why there is no result.
  error failure() const;
  static step_result result_of(const actors::step_summary& s, std::vector<at::Tensor> outputs);

  /// A step or an evaluation, and its number.
  using pass_name = std::pair<compute::step_purpose, std::uint64_t>;

  const job::job job_;
  pipeline_options options_;
  const std::shared_ptr<fed_source> data_;
  model_parts model_;
  std::unique_ptr<actors::membership> members_;
  actors::job_start start_;
  metrics::board board_;
  std::unique_ptr<actors::session> session_;
  std::thread runner_;
  std::uint64_t steps_ = 0;
  std::uint64_t evaluations_ = 0;
  bool accumulates_ = false;  ///< gradients wait for their update
  bool has_first_ = true;     ///< the first part of the model, or a copy of it, is here
  bool has_last_ = true;
  bool is_finished_ = false;

  std::mutex calls_;  ///< while a call uses the ranks

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<pass_name, actors::step_summary> summaries_;
  bool over_ = false;
  actors::run_result ended_;        ///< once over_
  bool is_at_rest_ = false;         ///< over_, and nothing runs any more
  std::string failed_save_;         ///< the last one
  std::vector<std::string> notes_;  ///< for on_note
  std::unique_ptr<hook_thread> hooks_;
};

}  // namespace rrfp
