/// The parts of the user's model that this process hosts.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <rrfp/job/job.hpp>
#include <rrfp/pipeline.hpp>
#include <rrfp/torch/stage_module.hpp>

#include "fed_source.hpp"

namespace rrfp {

/// The part of the model that each parameter belongs to. Checkpoints identify it by name only.
using parts_by_name = std::map<std::string, std::uint32_t>;

/// Calls the factories of the options.
class model_parts {
 public:
  /// `options` must outlive this. `seed`: of libtorch's generator while a part is made.
  model_parts(const pipeline_options& options, std::uint64_t seed,
              std::shared_ptr<fed_source> data);

  using chunk = result<std::unique_ptr<compute::stage_module>>;
  chunk make(const pipeline_shape& shape, virtual_stage_id vs,
             std::shared_ptr<compute::rank_group> group);
  /// The names of the parameters, as bytes for other processes.
  std::string names() const;
  /// Checks that the parts of all processes have different parameter names. `all`: names() of each.
  static status compare_names(const std::vector<std::string>& all);

 private:
  chunk make_by_user(const pipeline_shape& shape, const stage_place& place) const;

  const pipeline_options& options_;
  const std::uint64_t seed_;
  const std::shared_ptr<fed_source> data_;
  parts_by_name owners_;
  using weak_tensor = c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>;
  struct owner {
    std::pair<std::uint32_t, std::string> part_and_name;
    weak_tensor tensor;  ///< so that no other one gets its address
  };
  std::map<const at::TensorImpl*, owner> owner_of_;
};

}  // namespace rrfp
