/// The actor of a process: spawns the stages that the job gives it, and ends them with itself.
#pragma once

#include <memory>
#include <vector>

#include "caf_compat.hpp"
#include "messages.hpp"
#include "run_context.hpp"
#include "stage_supervisor.hpp"

namespace rrfp::actors {

class node_actor : public actor_base {
 public:
  /// `parts` is indexed by stage; stages that other nodes host are null.
  node_actor(caf::actor_config& config, std::vector<std::shared_ptr<stage_parts>> parts,
             std::shared_ptr<run_context> context)
      : actor_base(config), parts_(std::move(parts)), context_(std::move(context)) {}

  /// Node, stages and job refer to each other in a circle; a detached actor's thread ends only when
  /// nobody refers to it any more.
  void on_exit() override { stages_.clear(); }

  caf::behavior make_behavior() override {
    return {
        [this](const host& m) {
          hosted answer;
          for (const auto stage : m.stages) {
            auto& parts = parts_.at(stage.value());
            stages_.push_back(spawn_detached<stage_supervisor>(system(), std::move(parts), m.job,
                                                               context_));
            answer.stages.push_back({stage, stages_.back()});
          }
          post(m.job, std::move(answer));
        },
        [this](const stop& m) {
          // The job tells its stages too, but one that ended early may never have heard of them.
          for (const auto& stage : stages_) post(stage, m);
          quit();
        },
    };
  }

 private:
  std::vector<std::shared_ptr<stage_parts>> parts_;
  const std::shared_ptr<run_context> context_;
  std::vector<caf::actor> stages_;
};

}  // namespace rrfp::actors
