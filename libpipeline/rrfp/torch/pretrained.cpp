#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <rrfp/torch/model.hpp>
#include <rrfp/torch/pretrained.hpp>
#include <rrfp/torch/tensors.hpp>

namespace rrfp::compute {

namespace {

const safetensors::located_tensor* find(const safetensors::collection& files,
                                        std::string_view name) {
  if (const auto* found = files.find(name)) return found;
  const auto first_word = name.find('.');
  return first_word == std::string_view::npos ? nullptr : files.find(name.substr(first_word + 1));
}

/// The sizes of the whole parameter, as the model has it.
std::vector<std::int64_t> whole_sizes(const parameter& p) {
  return p.part ? p.part->whole : p.value.sizes().vec();
}

std::vector<std::int64_t> stored_sizes(const parameter& p) {
  if (!p.stored.sizes.empty()) return p.stored.sizes;
  auto sizes = whole_sizes(p);
  if (p.stored.transposed) std::swap(sizes[0], sizes[1]);
  return sizes;
}

/// The whole tensor in the model's shape. A view of the mapped file, or a copy if it is misaligned.
at::Tensor view_of(const safetensors::located_tensor& found, at::ScalarType type,
                   const parameter& p) {
  auto* const bytes = const_cast<std::byte*>(found.bytes().data());  // it is only read
  const bool is_aligned =
      reinterpret_cast<std::uintptr_t>(bytes) % item_bytes(found.info->type) == 0;
  auto t = is_aligned ? at::from_blob(bytes, found.info->shape, type)
                      : at::empty(found.info->shape, type);
  if (!is_aligned && t.numel() > 0) std::memcpy(t.mutable_data_ptr(), bytes, found.bytes().size());
  if (p.stored.transposed) t = t.t();
  return p.stored.sizes.empty() ? t : t.view(whole_sizes(p));
}

/// A tensor of the files with the name and shape of a parameter and a supported dtype.
struct match {
  const safetensors::located_tensor* found;
  at::ScalarType type;
};

result<match> match_of(const parameter& p, const safetensors::collection& files) {
  const auto* found = find(files, p.name);
  if (found == nullptr)
    return error{files.files().front()->path() + ": lacks the tensor '" + p.name + "'"};
  const auto& path = found->source->path();
  const auto type = scalar_type_of(found->info->type);
  if (!type || !at::isFloatingType(*type))
    return error{path + ": '" + p.name + "': expected F16, BF16, F32 or F64, got " +
                 std::string(safetensors::name(found->info->type))};
  const auto expected = stored_sizes(p);
  if (found->info->shape != expected)
    return error{path + ": '" + p.name + "': expected the shape " + safetensors::text_of(expected) +
                 ", got " + safetensors::text_of(found->info->shape)};
  return match{found, *type};
}

status load(const parameter& p, const safetensors::collection& files) {
  const auto matched = match_of(p, files);
  if (!matched) return matched.failure();
  const auto whole = view_of(*matched->found, matched->type, p);
  p.value.copy_(p.part ? slice_of(whole, *p.part) : whole);
  return success();
}

}  // namespace

status check_pretrained(const job::model_options& model, const safetensors::collection& files) {
  const auto all = parameters_of(model);
  if (!all) return all.failure();
  for (const auto& p : *all)
    if (auto matched = match_of(p, files); !matched) return matched.failure();
  return success();
}

status load_pretrained(stage_module& chunk, const safetensors::collection& files) {
  const at::NoGradGuard no_grad;
  for (const auto& p : chunk.parameters())
    if (auto loaded = load(p, files); !loaded) return loaded;
  return success();
}

}  // namespace rrfp::compute
