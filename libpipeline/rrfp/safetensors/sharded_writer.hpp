/// Writes a model into a folder in the layout of model hubs: shards of a limited size
/// (model-00001-of-00003.safetensors, ...) and model.safetensors.index.json. A model that fits into
/// one file becomes model.safetensors, without an index. collection::open() reads both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <rrfp/safetensors/writer.hpp>

namespace rrfp::safetensors {

/// Not thread-safe. Until finish() succeeds the folder holds no model; without it the destructor
/// removes the files written so far.
class sharded_writer {
 public:
  /// Creates the folder if it does not exist. A file holds at most `shard_bytes_max` bytes of data,
  /// unless a single tensor is larger. Error: as writer::create(); or the folder already holds a
  /// model, since readers could not tell which of the two is meant.
  static result<std::unique_ptr<sharded_writer>> create(const std::string& folder,
                                                        std::vector<tensor_spec> tensors,
                                                        string_map metadata,
                                                        std::uint64_t shard_bytes_max);
  sharded_writer(const sharded_writer&) = delete;
  sharded_writer& operator=(const sharded_writer&) = delete;
  ~sharded_writer();

  /// The names in the order in which they must be written.
  const std::vector<std::string>& order() const { return order_; }
  /// As writer::write().
  status write(std::string_view name, std::span<const std::byte> bytes);
  /// Commits the last file and writes the index.
  status finish();

  std::size_t files() const { return shards_.size(); }
  std::uint64_t bytes() const { return bytes_; }  ///< of data, in all files

 private:
  struct shard {
    std::string file;
    std::vector<tensor_info> tensors;  ///< in the order of the file
  };
  using shards = std::vector<shard>;

  sharded_writer(std::string folder, string_map metadata, shards all);
  static result<shards> divide(std::vector<tensor_spec> tensors, std::uint64_t shard_bytes_max);
  std::string path_of(std::string_view file) const;
  /// Finishes all earlier shards and begins shard `number`.
  status advance_to(std::size_t number);
  status finish_shard();
  std::string index_text() const;

  const std::string folder_;
  const string_map metadata_;
  const shards shards_;
  std::vector<std::string> order_;
  std::unordered_map<std::string_view, std::size_t> shard_of_;
  std::uint64_t bytes_ = 0;
  std::size_t shards_begun_ = 0;
  std::unique_ptr<writer> open_;
  std::vector<std::string> committed_paths_;
  bool finished_ = false;
};

}  // namespace rrfp::safetensors
