/// Writes the weights of a checkpoint as the files of a Hugging Face model.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <rrfp/base/result.hpp>
#include <rrfp/hugging_face/config.hpp>
#include <rrfp/safetensors/collection.hpp>
#include <rrfp/safetensors/sharded_writer.hpp>
#include <rrfp/torch/tensors.hpp>

#include "commands.hpp"

namespace rrfp::apps {

/// Assembles one tensor at a time from the parts of the ranks, converts it to the shape and dtype
/// of the files, and writes it. So at most one whole tensor is in memory.
class exported_model {
 public:
  /// Creates the folder `options.out` and starts the files. `base` holds the tensors of the
  /// pretrained model: those that the checkpoint lacks are copied unchanged. If `base` is null, the
  /// `unused` parameters are written instead. Error: bad input.
  static result<exported_model> create(std::span<const compute::named_buffer> saved,
                                       std::shared_ptr<const safetensors::collection> base,
                                       const std::vector<hugging_face::unused_parameter>& unused,
                                       std::uint64_t step, const export_options& options);

  /// Error: the checkpoint's parts do not form whole tensors, or a write failed.
  status write();

  std::size_t tensors() const { return to_->order().size(); }
  std::size_t copied_from_base() const { return kept_.size(); }
  std::size_t files() const { return to_->files(); }
  std::uint64_t bytes() const { return to_->bytes(); }

 private:
  /// All pieces of a tensor, at least one.
  using pieces = std::vector<const compute::named_tensor*>;

  exported_model() = default;

  std::shared_ptr<const safetensors::collection> base_;
  std::vector<compute::named_tensor> saved_;   ///< by the checkpoint
  std::vector<compute::named_tensor> filled_;  ///< parameters that training does not use
  std::map<std::string, pieces> weights_;      ///< of saved_ and filled_
  std::map<std::string, safetensors::located_tensor> kept_;  ///< of base_
  at::ScalarType type_ = at::kFloat;
  std::unique_ptr<safetensors::sharded_writer> to_;
};

}  // namespace rrfp::apps
