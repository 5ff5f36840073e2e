/// The tensors of a model, in one file or spread over several: a .safetensors file, or a folder
/// with model.safetensors, or one with model.safetensors.index.json, which says which of its files
/// holds which tensor:
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

/// A tensor and the file that it lies in.
struct located_tensor {
  std::shared_ptr<const file> in;
  const tensor_info* what = nullptr;

  std::span<const std::byte> bytes() const { return in->bytes(*what); }
};

/// Immutable, so thread-safe.
class collection {
 public:
  /// Opens every file at once: headers are read, data is not. Error: one line that names the file
  /// and the tensor: none of the above at `path`, a file that is not valid, one that the index
  /// names and that is not there or lies outside of the folder, a tensor that the index names and
  /// its file lacks.
  static result<collection> open(const std::string& path);

  /// By name. Of a folder with an index: those that it names.
  const std::map<std::string, located_tensor, std::less<>>& tensors() const { return tensors_; }
  /// Null if there is none.
  const located_tensor* find(std::string_view name) const;
  /// In the order of their names.
  const std::vector<std::shared_ptr<const file>>& files() const { return files_; }

 private:
  static result<collection> open_file(const std::string& path);
  static result<collection> open_index(const std::string& path);

  std::map<std::string, located_tensor, std::less<>> tensors_;
  std::vector<std::shared_ptr<const file>> files_;
};

}  // namespace rrfp::safetensors
