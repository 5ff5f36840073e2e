#include "wire_format.hpp"

#include <cstring>
#include <string>
#include <type_traits>

#include <xxhash.h>
#ifdef __x86_64__
#include <xxh_x86dispatch.h>
#endif

#include <rrfp/base/codec.hpp>

namespace rrfp::actors::ucx {

namespace {

constexpr std::uint16_t flag_data_hash = 1;
constexpr std::uint16_t flag_answer = 2;
constexpr std::uint16_t flag_closes = 4;

/// magic, version and flags.
constexpr std::size_t flags_end = 8;
constexpr std::size_t hash_bytes = 8;

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

/// The fields that follow the flags in every header.
void common_fields(auto& f, auto& h) { f(h.job_token, h.epoch, h.from_node); }

/// Of each header: `bytes` is its length without the checksum, and without a shape. `flags` calls
/// `f(flag, member)`. `fields` passes all that follows the flags, in this order, to a writer or a
/// decoder.
template <class Header>
struct format;

template <>
struct format<tensor_header> {
  static constexpr std::uint32_t magic = 0x54504652;  // "RFPT"
  static constexpr std::size_t bytes = 96;
  static void flags(auto f, auto& h) { f(flag_data_hash, h.has_data_hash); }
  static void fields(auto& f, auto& h, auto& unused) {
    auto& m = h.message;
    f(h.sequence, m.from.stage, m.from.rank, m.from.replica, m.to.stage, m.to.rank, m.to.replica,
      m.kind, h.type, h.dims, unused.byte, m.mb, m.chunk, unused.word, m.step, h.data_bytes,
      h.data_hash);
  }
};

template <>
struct format<bytes_header> {
  static constexpr std::uint32_t magic = 0x42504652;  // "RFPB"
  static constexpr std::size_t bytes = 64;
  static void flags(auto f, auto& h) {
    f(flag_data_hash, h.has_data_hash);
    f(flag_closes, h.closes);
  }
  static void fields(auto& f, auto& h, auto& unused) {
    f(h.group, h.from, h.to, unused.word, h.tag, h.data_bytes, h.data_hash);
  }
};

template <>
struct format<actor_message_header> {
  static constexpr std::uint32_t magic = 0x4d504652;  // "RFPM"
  static constexpr std::size_t bytes = 48;
  static void flags(auto f, auto& h) { f(flag_data_hash, h.has_data_hash); }
  static void fields(auto& f, auto& h, auto&) { f(h.sequence, h.data_bytes, h.data_hash); }
};

template <>
struct format<disconnect_header> {
  static constexpr std::uint32_t magic = 0x46504652;  // "RFPF"
  static constexpr std::size_t bytes = 24;
  static void flags(auto f, auto& h) { f(flag_answer, h.is_answer); }
  static void fields(auto&, auto&, auto&) {}
};

decoder decoder_of(std::span<const std::byte> bytes) {
  return decoder{{reinterpret_cast<const char*>(bytes.data()), bytes.size()}};
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

/// Reads the shape, after the other fields are checked; `bytes` is the length of the header.
status read_shape(decoder& in, std::size_t bytes, tensor_header& h) {
  if (h.message.kind > payload::copy_piece)
    return expected("unknown payload kind (highest known)",
                    static_cast<std::uint8_t>(payload::copy_piece),
                    static_cast<std::uint8_t>(h.message.kind));
  if (item_bytes(h.type) == 0)
    return error{"unknown dtype code " + std::to_string(static_cast<int>(h.type))};
  if (h.dims > dims_max) return expected("too many dimensions (most allowed)", dims_max, h.dims);
  const auto length = format<tensor_header>::bytes + h.dims * sizeof(std::int64_t) + hash_bytes;
  if (bytes != length) return expected("length of the header", length, bytes);
  std::uint64_t wanted = item_bytes(h.type);
  bool is_empty = false;
  for (std::size_t i = 0; i < h.dims; ++i) {
    auto& size = h.shape[i];
    in(size);
    if (size < 0) return error{"a dimension is negative: " + std::to_string(size)};
    if (size == 0)
      is_empty = true;
    else if (__builtin_mul_overflow(wanted, static_cast<std::uint64_t>(size), &wanted) ||
             wanted > INT64_MAX)
      return error{"the shape has more bytes than a 64-bit number holds"};
  }
  if (is_empty) wanted = 0;
  if (wanted != h.data_bytes) return expected("bytes of the shape", wanted, h.data_bytes);
  return success();
}

template <class Header>
constexpr bool has_shape = std::is_same_v<Header, tensor_header>;

}  // namespace

template <class Header>
std::size_t encode(const Header& h, header_buffer& into) {
  int flags = 0;
  format<Header>::flags([&](int flag, bool is_set) { flags |= is_set ? flag : 0; }, h);
  writer w{into, format<Header>::magic, flags};
  common_fields(w, h);
  constexpr reserved unused;
  format<Header>::fields(w, h, unused);
  if constexpr (has_shape<Header>) {
    RRFP_CHECK(h.dims <= dims_max, "a tensor must have at most dims_max dimensions");
    for (const auto size : h.sizes()) w(size);
  }
  return w.seal();
}

template <class Header>
result<Header> decode(std::span<const std::byte> bytes) {
  Header h;
  std::uint16_t known = 0;
  format<Header>::flags([&](std::uint16_t flag, bool) { known |= flag; }, h);
  const auto length = format<Header>::bytes + hash_bytes;
  const auto flags = check_header(bytes, format<Header>::magic, length, known);
  if (!flags) return flags.failure();
  if (!has_shape<Header> && bytes.size() != length)
    return expected("length of the header", length, bytes.size());
  format<Header>::flags([&](int flag, bool& is_set) { is_set = (*flags & flag) != 0; }, h);
  auto in = decoder_of(bytes.subspan(flags_end));
  common_fields(in, h);
  reserved unused;
  format<Header>::fields(in, h, unused);
  if (unused.byte != 0) return expected("a reserved byte is set", 0, unused.byte);
  if (unused.word != 0) return expected("a reserved field is set", 0, unused.word);
  if constexpr (has_shape<Header>)
    if (auto good = read_shape(in, bytes.size(), h); !good) return good.failure();
  return h;
}

#define RRFP_HEADER(header)                                   \
  template std::size_t encode(const header&, header_buffer&); \
  template result<header> decode(std::span<const std::byte>);
RRFP_HEADER(tensor_header)
RRFP_HEADER(bytes_header)
RRFP_HEADER(actor_message_header)
RRFP_HEADER(disconnect_header)
#undef RRFP_HEADER

std::uint64_t hash_of(std::span<const std::byte> bytes) {
#ifdef __x86_64__
  // Up to 4 times as fast as the library's baseline on a processor with AVX2.
  return XXH3_64bits_dispatch(bytes.data(), bytes.size());
#else
  return XXH3_64bits(bytes.data(), bytes.size());
#endif
}

}  // namespace rrfp::actors::ucx
