/// The tensors of a model, in one or several files: a .safetensors file, a folder with
/// model.safetensors, or a folder with model.safetensors.index.json, which maps each tensor to its
/// file:
///
///   {"metadata": {"total_size": 24}, "weight_map": {"weight": "model-00001-of-00002.safetensors"}}
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/safetensors/file.hpp>

namespace rrfp::safetensors {

inline constexpr std::string_view single_file_name = "model.safetensors";
inline constexpr std::string_view index_file_name = "model.safetensors.index.json";

/// A tensor and the file that holds it.
struct located_tensor {
  std::shared_ptr<const file> source;
  const tensor_info* info = nullptr;

  std::span<const std::byte> bytes() const { return source->bytes(*info); }
};

/// Immutable, so thread-safe.
class collection {
 public:
  /// Opens all files and reads their headers, not their data. Error, in one line with the file and
  /// the tensor: `path` is none of the above, a file is invalid, the index names a file that is
  /// missing or outside the folder, or a tensor is not in the file that the index names.
  static result<collection> open(const std::string& path);

  /// Keyed by name. With an index: only the tensors that it names.
  const std::map<std::string, located_tensor, std::less<>>& tensors() const { return tensors_; }
  /// Null if there is no such tensor.
  const located_tensor* find(std::string_view name) const;
  /// In the order of the file names.
  const std::vector<std::shared_ptr<const file>>& files() const { return files_; }

 private:
  static result<collection> open_file(const std::string& path);
  static result<collection> open_index(const std::string& path);

  std::map<std::string, located_tensor, std::less<>> tensors_;
  std::vector<std::shared_ptr<const file>> files_;
};

}  // namespace rrfp::safetensors
