/// The weights of a checkpoint as the files of a model that others read.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <rrfp/actors/checkpoint_tensors.hpp>
#include <rrfp/hugging_face/config.hpp>
#include <rrfp/safetensors/collection.hpp>
#include <rrfp/safetensors/sharded_writer.hpp>
#include <rrfp/schedule/result.hpp>

#include "commands.hpp"

namespace rrfp::apps {

/// One tensor after another is joined from the parts of the ranks, brought into the form and type
/// that the files hold, and written: no more than one is in memory.
class exported_model {
 public:
  /// Makes the folder `options.out` and begins. `base` are the tensors of the model that was
  /// trained on: those that the checkpoint lacks go along as they are. Null if there is none: then
  /// the `unused` ones go along. Error: the user's to mend.
  static result<exported_model> create(std::shared_ptr<const actors::checkpoint_tensors> saved,
                                       std::shared_ptr<const safetensors::collection> base,
                                       const std::vector<hugging_face::unused_parameter>& unused,
                                       std::uint64_t step, const export_options& options);

  /// Error: the checkpoint's parts are not whole tensors, or the disk.
  status write();

  std::size_t tensors() const { return to_->order().size(); }
  std::size_t taken_from_base() const { return kept_.size(); }
  std::size_t files() const { return to_->files(); }
  std::uint64_t bytes() const { return to_->bytes(); }

 private:
  /// All pieces of a tensor, at least one.
  using pieces = std::vector<const compute::named_tensor*>;

  exported_model() = default;

  std::shared_ptr<const actors::checkpoint_tensors> saved_;
  std::shared_ptr<const safetensors::collection> base_;
  std::vector<compute::named_tensor> filled_;  ///< what a model has and no training touches
  std::map<std::string, pieces> weights_;      ///< of saved_ and filled_
  std::map<std::string, safetensors::located_tensor> kept_;  ///< of base_
  at::ScalarType type_ = at::kFloat;
  std::unique_ptr<safetensors::sharded_writer> to_;
};

}  // namespace rrfp::apps
