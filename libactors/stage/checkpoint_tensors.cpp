#include <rrfp/actors/checkpoint_tensors.hpp>

#include <cstring>
#include <filesystem>
#include <map>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <rrfp/base/check.hpp>
#include <rrfp/checkpoint/checksum.hpp>
#include <rrfp/checkpoint/part.hpp>
#include <rrfp/safetensors/file.hpp>
#include <rrfp/safetensors/writer.hpp>

namespace rrfp::actors {

namespace {

using safetensors::dtype;

constexpr std::pair<dtype, at::ScalarType> known_types[] = {
    {dtype::boolean, at::kBool},  {dtype::u8, at::kByte},    {dtype::i8, at::kChar},
    {dtype::i16, at::kShort},     {dtype::u16, at::kUInt16}, {dtype::f16, at::kHalf},
    {dtype::bf16, at::kBFloat16}, {dtype::i32, at::kInt},    {dtype::u32, at::kUInt32},
    {dtype::f32, at::kFloat},     {dtype::f64, at::kDouble}, {dtype::i64, at::kLong},
    {dtype::u64, at::kUInt64}};

at::ScalarType scalar_type_of(dtype type) {
  for (const auto& [known, scalar] : known_types)
    if (known == type) return scalar;
  RRFP_CHECK(false, "every dtype has a scalar type");
}

/// A view of the mapped bytes, or a copy where they are not aligned to their elements.
at::Tensor tensor_of(const std::shared_ptr<const safetensors::file>& in,
                     const safetensors::tensor_info& t) {
  const auto bytes = in->bytes(t);
  const auto options = at::TensorOptions{}.dtype(scalar_type_of(t.type));
  const bool aligned =
      reinterpret_cast<std::uintptr_t>(bytes.data()) % safetensors::size_of(t.type) == 0;
  if (!aligned || bytes.empty()) {
    auto copy = at::empty(t.shape, options);
    if (!bytes.empty()) std::memcpy(copy.mutable_data_ptr(), bytes.data(), bytes.size());
    return copy;
  }
  return at::from_blob(
      const_cast<std::byte*>(bytes.data()), t.shape, [in](void*) {}, options);
}

checkpoint::part part_of(const compute::shard& s) {
  return {s.whole, s.dimension, s.blocks, s.offset, s.length};
}
compute::shard shard_of(const checkpoint::part& p) {
  return {p.whole, p.dimension, p.blocks, p.offset, p.length};
}

/// Parses the metadata entry; a default value if it is missing.
template <class T>
result<T> read_metadata(const safetensors::string_map& metadata, std::string_view key,
                        result<T> (*parse)(std::string_view)) {
  const auto at = metadata.find(key);
  return at == metadata.end() ? result<T>{T{}} : parse(at->second);
}

}  // namespace

result<dtype> dtype_of(const at::Tensor& t) {
  for (const auto& [known, scalar] : known_types)
    if (scalar == t.scalar_type()) return known;
  return error{std::string{"safetensors has no dtype for "} + at::toString(t.scalar_type())};
}

std::span<const std::byte> bytes_of(const at::Tensor& t) {
  RRFP_CHECK(t.is_contiguous() && t.is_cpu(), "a contiguous tensor on the host");
  return {static_cast<const std::byte*>(t.const_data_ptr()), t.nbytes()};
}

std::vector<compute::named_tensor> copy_to_host(std::vector<compute::named_tensor> tensors) {
  for (auto& t : tensors) {
    const auto source = std::exchange(t.value, {});
    t.value = at::empty(source.sizes(), source.options().device(at::kCPU).requires_grad(false),
                        at::MemoryFormat::Contiguous);
    t.value.copy_(source);
  }
  return tensors;
}

result<checkpoint::file_entry> write_rank(const std::string& folder, stage_id stage, rank_id rank,
                                          std::uint64_t step,
                                          std::span<const compute::named_tensor> tensors) {
  const auto name = checkpoint::file_name(stage, rank);
  const auto path = (std::filesystem::path{folder} / name).string();
  std::vector<safetensors::tensor_spec> specs;
  checkpoint::parts parts;
  checkpoint::stored_forms forms;
  std::map<std::string_view, const at::Tensor*> values;
  for (const auto& t : tensors) {
    const auto type = dtype_of(t.value);
    if (!type) return error{path + ": tensor '" + t.name + "': " + type.message()};
    specs.push_back({t.name, *type, t.value.sizes().vec()});
    if (t.part) parts[t.name] = part_of(*t.part);
    if (t.stored != compute::stored_form{}) forms[t.name] = {t.stored.transposed, t.stored.sizes};
    values[t.name] = &t.value;
  }
  checkpoint::checksum sum;
  auto to = safetensors::writer::create(path, std::move(specs),
                                        {{std::string{checkpoint::parts_key}, to_json(parts)},
                                         {std::string{checkpoint::stored_key}, to_json(forms)},
                                         {"rrfp.step", std::to_string(step)}},
                                        [&](std::span<const std::byte> bytes) { sum.add(bytes); });
  if (!to) return to.failure();
  for (const auto& t : (*to)->tensors())
    if (auto written = (*to)->write(t.name, bytes_of(*values.at(t.name))); !written)
      return written.failure();
  if (auto done = (*to)->finish(); !done) return done.failure();
  return checkpoint::file_entry{name, sum.bytes(), sum.value()};
}

result<std::shared_ptr<const checkpoint_tensors>> checkpoint_tensors::open(
    const checkpoint::found_checkpoint& from) {
  const std::shared_ptr<checkpoint_tensors> made{new checkpoint_tensors};
  for (const auto& f : from.contents.files) {
    const auto path = (std::filesystem::path{from.folder} / f.name).string();
    const auto in = safetensors::file::open(path);
    if (!in) return in.failure();
    const auto parts =
        read_metadata((*in)->metadata(), checkpoint::parts_key, &checkpoint::parse_parts);
    if (!parts) return error{path + ": " + parts.message()};
    const auto forms =
        read_metadata((*in)->metadata(), checkpoint::stored_key, &checkpoint::parse_stored);
    if (!forms) return error{path + ": " + forms.message()};
    for (const auto& t : (*in)->tensors()) {
      compute::named_tensor piece{t.name, tensor_of(*in, t)};
      if (const auto at = parts->find(t.name); at != parts->end()) {
        if (auto fits = checkpoint::check_part(at->second, t.shape); !fits)
          return error{path + ": tensor '" + t.name + "': " + fits.message()};
        piece.part = shard_of(at->second);
      }
      if (const auto at = forms->find(t.name); at != forms->end())
        piece.stored = {at->second.transposed, at->second.sizes};
      made->all_.push_back(std::move(piece));
    }
  }
  return std::shared_ptr<const checkpoint_tensors>{made};
}

}  // namespace rrfp::actors
