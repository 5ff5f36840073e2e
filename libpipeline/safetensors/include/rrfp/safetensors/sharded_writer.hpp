/// Writes a model into a folder, in files of a limited size with an index beside them, as model
/// hubs have them: model-00001-of-00003.safetensors, ..., model.safetensors.index.json; what fits
/// into one file becomes model.safetensors, without an index. collection::open() reads both.
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

/// Not thread-safe. Until finish() has succeeded the folder holds no model; the end of the object
/// takes away what was written.
class sharded_writer {
 public:
  /// Makes the folder if there is none. Files hold at most `shard_bytes_max` bytes of data, but for
  /// a tensor that is larger by itself. Error: as writer::create(), and a folder that holds a model
  /// already: which of the two a reader would find is not for it to guess.
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
  /// Puts the last file and the index in their place.
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
  /// Finishes the files before shard `number` and begins that one.
  status advance_to(std::size_t number);
  status finish_shard();
  std::string index_text() const;

  const std::string folder_;
  const string_map metadata_;
  const shards shards_;
  std::vector<std::string> order_;
  std::unordered_map<std::string_view, std::size_t> shard_of_;
  std::uint64_t bytes_ = 0;
  std::size_t begun_ = 0;  ///< shards
  std::unique_ptr<writer> open_;
  std::vector<std::string> in_place_;
  bool finished_ = false;
};

}  // namespace rrfp::safetensors
