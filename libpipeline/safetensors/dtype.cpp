#include <rrfp/safetensors/dtype.hpp>

#include <algorithm>
#include <limits>

namespace rrfp::safetensors {

namespace {

struct known_dtype {
  dtype type;
  std::string_view name;
  std::size_t size;
};

/// In the order of the enumerators.
constexpr known_dtype known[] = {
    {dtype::boolean, "BOOL", 1}, {dtype::u8, "U8", 1},   {dtype::i8, "I8", 1},
    {dtype::i16, "I16", 2},      {dtype::u16, "U16", 2}, {dtype::f16, "F16", 2},
    {dtype::bf16, "BF16", 2},    {dtype::i32, "I32", 4}, {dtype::u32, "U32", 4},
    {dtype::f32, "F32", 4},      {dtype::f64, "F64", 8}, {dtype::i64, "I64", 8},
    {dtype::u64, "U64", 8},
};

}  // namespace

std::size_t size_of(dtype type) { return known[static_cast<std::size_t>(type)].size; }
std::string_view name(dtype type) { return known[static_cast<std::size_t>(type)].name; }

std::optional<dtype> dtype_of(std::string_view name) {
  const auto* const at = std::find_if(std::begin(known), std::end(known),
                                      [&](const known_dtype& k) { return k.name == name; });
  return at == std::end(known) ? std::nullopt : std::optional{at->type};
}

result<std::uint64_t> byte_size(dtype type, std::span<const std::int64_t> shape) {
  std::uint64_t bytes = size_of(type);
  bool empty = false;
  for (const auto size : shape) {
    if (size < 0) return error{"shape " + text_of(shape) + ": expected sizes >= 0"};
    empty |= size == 0;
    // Check the other sizes even if one is 0: code that creates such a tensor multiplies them all.
    const auto factor = std::max<std::uint64_t>(static_cast<std::uint64_t>(size), 1);
    constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (bytes > most / factor)
      return error{"shape " + text_of(shape) + ": its size in bytes overflows"};
    bytes *= factor;
  }
  return empty ? 0 : bytes;
}

std::string text_of(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (const auto size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

}  // namespace rrfp::safetensors
