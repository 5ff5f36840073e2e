#include <rrfp/safetensors/dtype.hpp>

#include <algorithm>
#include <limits>
#include <utility>

namespace rrfp::safetensors {

namespace {

constexpr std::pair<dtype, std::string_view> names[] = {
    {dtype::boolean, "BOOL"},  {dtype::uint8, "U8"},    {dtype::int8, "I8"},
    {dtype::int16, "I16"},     {dtype::uint16, "U16"},  {dtype::float16, "F16"},
    {dtype::bfloat16, "BF16"}, {dtype::int32, "I32"},   {dtype::uint32, "U32"},
    {dtype::float32, "F32"},   {dtype::float64, "F64"}, {dtype::int64, "I64"},
    {dtype::uint64, "U64"}};

}  // namespace

std::string_view name(dtype type) {
  for (const auto& [known, text] : names)
    if (known == type) return text;
  return {};
}

std::optional<dtype> dtype_of(std::string_view name) {
  for (const auto& [known, text] : names)
    if (text == name) return known;
  return std::nullopt;
}

result<std::uint64_t> byte_size(dtype type, std::span<const std::int64_t> shape) {
  std::uint64_t bytes = item_bytes(type);
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
