#include "wire_format.hpp"

#include <cstring>
#include <string>

#include <xxhash.h>
#ifdef __x86_64__
#include <xxh_x86dispatch.h>
#endif

#include <rrfp/base/codec.hpp>

namespace rrfp::actors::ucx {

namespace {

constexpr std::uint32_t tensor_magic = 0x54504652;         // "RFPT"
constexpr std::uint32_t bytes_magic = 0x42504652;          // "RFPB"
constexpr std::uint32_t actor_message_magic = 0x4d504652;  // "RFPM"
constexpr std::uint32_t disconnect_magic = 0x46504652;     // "RFPF"
constexpr std::uint16_t flag_data_hash = 1;
constexpr std::uint16_t flag_answer = 2;
constexpr std::uint16_t flag_closes = 4;

/// magic, version, flags; with job token, epoch and node, the same in each header.
constexpr std::size_t flags_end = 8;
constexpr std::size_t common_bytes = 24;
constexpr std::size_t hash_bytes = 8;
constexpr std::size_t tensor_fixed_bytes = 96;
constexpr std::size_t bytes_fixed_bytes = 64;
constexpr std::size_t actor_message_fixed_bytes = 48;

class writer {
 public:
  writer(header_buffer& into, std::uint32_t magic, int flags) : into_(into) {
    (*this)(magic, wire_version, static_cast<std::uint16_t>(flags));
  }

  void operator()(const auto&... values) { (put(values), ...); }
  std::size_t seal() {
    put(hash_of({into_.data(), size_}));
    return size_;
  }

 private:
  void put(const plain_number auto& value) {
    std::memcpy(into_.data() + size_, &value, sizeof value);
    size_ += sizeof value;
  }
  template <class Tag, class Rep>
  void put(const id<Tag, Rep>& x) {
    put(x.value());
  }

  header_buffer& into_;
  std::size_t size_ = 0;
};

/// Zeroes between the fields.
struct reserved {
  std::uint8_t byte = 0;
  std::uint32_t word = 0;
};

// The fields of each header that follow the flags, in their order; `f` is a writer or a decoder.
void common_fields(auto& f, auto& h) { f(h.job_token, h.epoch, h.from_node); }

/// Those before the shape.
void tensor_fields(auto& f, auto& h, auto& unused) {
  common_fields(f, h);
  auto& m = h.message;
  f(h.sequence, m.from.stage, m.from.rank, m.from.replica, m.to.stage, m.to.rank, m.to.replica,
    m.kind, h.type, h.dims, unused.byte, m.mb, m.chunk, unused.word, m.step, h.data_bytes,
    h.data_hash);
}

void bytes_fields(auto& f, auto& h, auto& unused) {
  common_fields(f, h);
  f(h.group, h.from, h.to, unused.word, h.tag, h.data_bytes, h.data_hash);
}

void actor_message_fields(auto& f, auto& h) {
  common_fields(f, h);
  f(h.sequence, h.data_bytes, h.data_hash);
}

decoder decoder_of(std::span<const std::byte> bytes) {
  return decoder{{reinterpret_cast<const char*>(bytes.data()), bytes.size()}};
}

/// Of the fields that follow the flags.
decoder behind_flags(std::span<const std::byte> header) {
  return decoder_of(header.subspan(flags_end));
}

error expected(const std::string& what, std::uint64_t wanted, std::uint64_t got) {
  return {what + ": expected " + std::to_string(wanted) + ", got " + std::to_string(got)};
}

/// Checks length, magic, version, flags and checksum; after that the fields can be read. Returns
/// the flags.
result<std::uint16_t> check_header(std::span<const std::byte> bytes, std::uint32_t magic,
                                   std::size_t bytes_min, std::uint16_t known_flags) {
  if (bytes.size() < bytes_min) return expected("header is too short", bytes_min, bytes.size());
  if (bytes.size() > header_bytes_max)
    return expected("header is too long", header_bytes_max, bytes.size());
  std::uint32_t kind = 0;
  std::uint16_t version = 0;
  std::uint16_t flags = 0;
  std::uint64_t sealed = 0;
  decoder_of(bytes)(kind, version, flags);
  decoder_of(bytes.last(hash_bytes))(sealed);
  if (kind != magic) return expected("not a header of this kind", magic, kind);
  if (version != wire_version)
    return expected("the sender uses another version of the wire format", wire_version, version);
  if (const auto hash = hash_of(bytes.first(bytes.size() - hash_bytes)); hash != sealed)
    return expected("the header's checksum does not match", sealed, hash);
  if ((flags & ~known_flags) != 0) return expected("unknown flags", known_flags, flags);
  return flags;
}

/// The same for a header that always has this length.
result<std::uint16_t> check_fixed(std::span<const std::byte> bytes, std::uint32_t magic,
                                  std::size_t length, std::uint16_t known_flags) {
  auto flags = check_header(bytes, magic, length, known_flags);
  if (flags && bytes.size() != length)
    return expected("length of the header", length, bytes.size());
  return flags;
}

/// The number of bytes of the shape. Error: a negative dimension, or more than 63 bits.
result<std::uint64_t> shape_bytes(const tensor_header& h) {
  std::uint64_t bytes = item_bytes(h.type);
  bool is_empty = false;
  for (const auto size : h.sizes()) {
    if (size < 0) return error{"a dimension is negative: " + std::to_string(size)};
    if (size == 0)
      is_empty = true;
    else if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes) ||
             bytes > INT64_MAX)
      return error{"the shape has more bytes than a 64-bit number holds"};
  }
  return is_empty ? 0 : bytes;
}

}  // namespace

std::size_t encode(const tensor_header& h, header_buffer& into) {
  RRFP_CHECK(h.dims <= dims_max, "a tensor must have at most dims_max dimensions");
  writer w{into, tensor_magic, h.has_data_hash ? flag_data_hash : 0};
  constexpr reserved unused;
  tensor_fields(w, h, unused);
  for (const auto size : h.sizes()) w(size);
  return w.seal();
}

result<tensor_header> decode_tensor_header(std::span<const std::byte> bytes) {
  const auto flags =
      check_header(bytes, tensor_magic, tensor_fixed_bytes + hash_bytes, flag_data_hash);
  if (!flags) return flags.failure();
  auto in = behind_flags(bytes);
  tensor_header h;
  reserved unused;
  tensor_fields(in, h, unused);
  h.has_data_hash = (*flags & flag_data_hash) != 0;
  if (h.message.kind > payload::copy_piece)
    return expected("unknown payload kind (highest known)",
                    static_cast<std::uint8_t>(payload::copy_piece),
                    static_cast<std::uint8_t>(h.message.kind));
  if (item_bytes(h.type) == 0)
    return error{"unknown dtype code " + std::to_string(static_cast<int>(h.type))};
  if (h.dims > dims_max) return expected("too many dimensions (most allowed)", dims_max, h.dims);
  if (unused.byte != 0) return expected("a reserved byte is set", 0, unused.byte);
  const auto length = tensor_fixed_bytes + h.dims * sizeof(std::int64_t) + hash_bytes;
  if (bytes.size() != length) return expected("length of the header", length, bytes.size());
  if (unused.word != 0) return expected("a reserved field is set", 0, unused.word);
  for (std::size_t i = 0; i < h.dims; ++i) in(h.shape[i]);
  const auto wanted = shape_bytes(h);
  if (!wanted) return wanted.failure();
  if (*wanted != h.data_bytes) return expected("bytes of the shape", *wanted, h.data_bytes);
  return h;
}

std::size_t encode(const bytes_header& h, header_buffer& into) {
  writer w{into, bytes_magic,
           (h.has_data_hash ? flag_data_hash : 0) | (h.closes ? flag_closes : 0)};
  constexpr reserved unused;
  bytes_fields(w, h, unused);
  return w.seal();
}

result<bytes_header> decode_bytes_header(std::span<const std::byte> bytes) {
  const auto flags =
      check_fixed(bytes, bytes_magic, bytes_fixed_bytes + hash_bytes, flag_data_hash | flag_closes);
  if (!flags) return flags.failure();
  auto in = behind_flags(bytes);
  bytes_header h;
  reserved unused;
  bytes_fields(in, h, unused);
  if (unused.word != 0) return expected("a reserved field is set", 0, unused.word);
  h.has_data_hash = (*flags & flag_data_hash) != 0;
  h.closes = (*flags & flag_closes) != 0;
  return h;
}

std::size_t encode(const actor_message_header& h, header_buffer& into) {
  writer w{into, actor_message_magic, h.has_data_hash ? flag_data_hash : 0};
  actor_message_fields(w, h);
  return w.seal();
}

result<actor_message_header> decode_actor_message_header(std::span<const std::byte> bytes) {
  const auto flags = check_fixed(bytes, actor_message_magic, actor_message_fixed_bytes + hash_bytes,
                                 flag_data_hash);
  if (!flags) return flags.failure();
  auto in = behind_flags(bytes);
  actor_message_header h;
  actor_message_fields(in, h);
  h.has_data_hash = (*flags & flag_data_hash) != 0;
  return h;
}

std::size_t encode(const disconnect_header& h, header_buffer& into) {
  writer w{into, disconnect_magic, h.is_answer ? flag_answer : 0};
  common_fields(w, h);
  return w.seal();
}

result<disconnect_header> decode_disconnect_header(std::span<const std::byte> bytes) {
  const auto flags = check_fixed(bytes, disconnect_magic, common_bytes + hash_bytes, flag_answer);
  if (!flags) return flags.failure();
  auto in = behind_flags(bytes);
  disconnect_header h;
  common_fields(in, h);
  h.is_answer = (*flags & flag_answer) != 0;
  return h;
}

std::uint64_t hash_of(std::span<const std::byte> bytes) {
#ifdef __x86_64__
  // Up to 4 times as fast as the library's baseline on a processor with AVX2.
  return XXH3_64bits_dispatch(bytes.data(), bytes.size());
#else
  return XXH3_64bits(bytes.data(), bytes.size());
#endif
}

}  // namespace rrfp::actors::ucx
