/// A tensor as memory, without a framework: where its elements are, their type and sizes, and who
/// keeps them. The fields mean what those of DLPack mean, so frameworks exchange such memory
/// without a copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rrfp {

/// The type of the elements. The numbers are codes of the wire format and never change.
enum class dtype : std::uint8_t {
  other = 0,  ///< known to the owner alone: stays in its process
  uint8 = 1,
  int8 = 2,
  int16 = 3,
  int32 = 4,
  int64 = 5,
  float16 = 6,
  bfloat16 = 7,
  float32 = 8,
  float64 = 9,
  boolean = 10,
  uint16 = 11,
  uint32 = 12,
  uint64 = 13,
};

/// Bytes of an element; 0 for `other` and unknown codes.
std::size_t item_bytes(dtype type);

/// Keeps the memory of a buffer alive. A framework derives its own class from it, which lets it get
/// its tensor back.
class buffer_owner {
 public:
  buffer_owner() = default;
  buffer_owner(const buffer_owner&) = delete;
  buffer_owner& operator=(const buffer_owner&) = delete;
  virtual ~buffer_owner() = default;
};

struct tensor_buffer {
  /// Null: there is no tensor. Copies of a buffer share the memory.
  std::shared_ptr<const buffer_owner> owner;
  void* data = nullptr;
  dtype type = dtype::uint8;
  bool on_host = true;  ///< false: in the memory of a device
  /// Row-major without gaps. If not, only the owner knows the strides.
  bool contiguous = true;
  std::vector<std::int64_t> sizes;

  bool defined() const { return owner != nullptr; }
  std::int64_t elements() const;
  /// The size of all elements; those of dtype::other have size 0.
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * item_bytes(type); }
  /// The memory of a contiguous buffer on the host.
  std::span<const std::byte> content() const;
  std::span<std::byte> content();
};

/// Memory of this process, aligned to 64 bytes, not initialised. Throws std::bad_alloc.
tensor_buffer make_host_buffer(dtype type, std::vector<std::int64_t> sizes);

/// A copy in host memory. `from` is contiguous and on the host.
tensor_buffer copy_of(const tensor_buffer& from);

/// The part of a tensor that a rank holds. One dimension of the logical tensor is divided into
/// `blocks` equal blocks (three for a fused projection to q, k and v, else one). The shard holds
/// the range [offset, offset + length) of every block, concatenated, and the other dimensions
/// entirely.
struct shard {
  std::vector<std::int64_t> whole;  ///< sizes of the logical tensor
  std::int64_t dimension = 0;
  std::int64_t blocks = 1;
  std::int64_t offset = 0;  ///< within a block
  std::int64_t length = 0;  ///< of each block

  bool operator==(const shard&) const = default;
};

/// How model files store a tensor if that differs from the model.
struct stored_form {
  /// A matrix [out, in] is stored as [in, out].
  bool transposed = false;
  /// Other sizes for the same elements in the same order, for the whole tensor; empty: the sizes of
  /// the value.
  std::vector<std::int64_t> sizes = {};

  bool operator==(const stored_form&) const = default;
};

}  // namespace rrfp
