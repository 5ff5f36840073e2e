/// Between the tensors of a rank and the files of a checkpoint.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <rrfp/checkpoint/manifest.hpp>
#include <rrfp/checkpoint/ring.hpp>
#include <rrfp/compute/rank_compute.hpp>
#include <rrfp/safetensors/dtype.hpp>
#include <rrfp/schedule/ids.hpp>
#include <rrfp/schedule/result.hpp>

namespace rrfp::actors {

/// What the elements of the tensor are called in files. Error: there is no word for it.
result<safetensors::dtype> dtype_of(const at::Tensor& t);

/// The bytes of a contiguous tensor on the host.
std::span<const std::byte> bytes_of(const at::Tensor& t);

/// Copies on the host, contiguous: what trains on may change its own meanwhile.
std::vector<compute::named_tensor> copy_to_host(std::vector<compute::named_tensor> tensors);

/// Writes what copy_to_host() gave for a rank after `step` steps into `folder`, under
/// checkpoint::file_name(). The file is on the disk then. Error: names the file.
result<checkpoint::file_entry> write_rank(const std::string& folder, stage_id stage, rank_id rank,
                                          std::uint64_t step,
                                          std::span<const compute::named_tensor> tensors);

/// The tensors of all files of a checkpoint, mapped: nothing is read before it is looked at.
/// Immutable, so thread-safe.
class checkpoint_tensors {
 public:
  /// Error: a file is no valid safetensors file, or has parts that are none; names it.
  static result<std::shared_ptr<const checkpoint_tensors>> open(const checkpoint::found& from);

  /// Valid as long as any of them is; must not be written to.
  std::span<const compute::named_tensor> all() const { return all_; }

 private:
  checkpoint_tensors() = default;

  std::vector<compute::named_tensor> all_;
};

}  // namespace rrfp::actors
