/// The state of a pipeline. Threads of the loop share it with the caller's, because they may never
/// end.
#pragma once

#include <memory>
#include <vector>

#include <rrfp/actors/training_loop.hpp>
#include <rrfp/pipeline.hpp>

#include "fed_source.hpp"
#include "model_parts.hpp"

namespace rrfp {

class pipeline::impl : public std::enable_shared_from_this<pipeline::impl> {
 public:
  impl(job::job j, pipeline_options options);
  impl(const impl&) = delete;
  impl& operator=(const impl&) = delete;

  status open();
  result<step_result> pass(compute::step_purpose purpose,
                           std::vector<compute::microbatch> microbatches, step_options how);
  result<step_result> pass(compute::step_purpose purpose, const batch& rows, step_options how);

  result<std::vector<compute::named_tensor>> state_dict();
  status load_state_dict(std::vector<compute::named_tensor> state);
  status recover();
  status save();
  result<actors::run_summary> finish();
  actors::training_loop& loop() const { return *loop_; }

 private:
  /// Which parts of the model are here.
  void note_places();
  /// How the replicas share the microbatches of a step.
  result<microbatch_counts> counts_of(std::size_t microbatches, const step_options& how) const;
  bool is_emulated() const { return job_.device.kind == job::device_kind::emulated; }
  /// Locks out other calls. Error: the caller runs inside a step, or another call runs.
  result<std::unique_lock<std::mutex>> begin_call();
  result<actors::session_setup> make_setup();
  static step_result result_of(actors::passed_step passed, std::vector<at::Tensor> outputs);

  const job::job job_;
  pipeline_options options_;
  std::shared_ptr<actors::training_loop> loop_;
  std::shared_ptr<fed_source> data_;
  std::unique_ptr<model_parts> model_;
  bool has_first_ = true;  ///< the first part of the model, or a copy of it, is here
  bool has_last_ = true;
};

}  // namespace rrfp
