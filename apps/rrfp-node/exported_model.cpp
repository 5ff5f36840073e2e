#include "exported_model.hpp"

#include <set>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <rrfp/torch/stage_compute.hpp>

namespace rrfp::apps {

namespace {

std::vector<std::int64_t> whole_sizes(const compute::named_tensor& piece) {
  return piece.part ? piece.part->whole : piece.value.sizes().vec();
}

/// Assembles the whole tensor from the parts of the ranks.
result<at::Tensor> join(const std::string& name,
                        const std::vector<const compute::named_tensor*>& parts) {
  const auto& first = *parts.front();
  if (!first.part) return first.value.contiguous();
  const auto sizes = whole_sizes(first);
  const auto dimension = first.part->dimension;
  const compute::shard whole{sizes, dimension, 1, 0, sizes[static_cast<std::size_t>(dimension)]};
  auto joined = at::empty(sizes, first.value.options());
  std::int64_t found = 0;
  for (const auto* p : parts) {
    if (!p->part || p->part->whole != sizes || p->part->dimension != dimension ||
        p->value.scalar_type() != first.value.scalar_type())
      return error{"tensor '" + name + "': its parts belong to different tensors"};
    found += compute::copy_overlap(p->value, *p->part, joined, whole);
  }
  if (found == joined.numel()) return joined;
  return error{
      fmt::format("tensor '{}': its parts hold {} of {} elements", name, found, joined.numel())};
}

at::Tensor as_stored(const at::Tensor& whole, const compute::stored_form& form) {
  const auto oriented = form.transposed ? whole.t() : whole;
  return form.sizes.empty() ? oriented : oriented.reshape(form.sizes);
}

std::vector<std::int64_t> stored_sizes(const compute::named_tensor& piece) {
  if (!piece.stored.sizes.empty()) return piece.stored.sizes;
  auto sizes = whole_sizes(piece);
  if (piece.stored.transposed) std::swap(sizes[0], sizes[1]);
  return sizes;
}

/// Error: the stored form in the file's metadata does not fit the tensor's sizes.
status check_form(const std::string& name, const compute::named_tensor& piece) {
  const auto elements = [](const std::vector<std::int64_t>& dimensions) {
    std::int64_t n = 1;
    for (const auto size : dimensions) n *= size;
    return n;
  };
  const auto sizes = whole_sizes(piece);
  const auto& form = piece.stored;
  if ((!form.transposed || sizes.size() == 2) &&
      (form.sizes.empty() || elements(form.sizes) == elements(sizes)))
    return success();
  return error{"tensor '" + name +
               "': the stored form in the file's metadata does not fit its shape"};
}

at::ScalarType type_of(const std::string& dtype) {
  if (dtype == "bfloat16") return at::kBFloat16;
  return dtype == "float16" ? at::kHalf : at::kFloat;
}

}  // namespace

result<exported_model> exported_model::create(
    std::span<const compute::named_buffer> saved,
    std::shared_ptr<const safetensors::collection> base,
    const std::vector<hugging_face::unused_parameter>& unused, std::uint64_t step,
    const export_options& options) {
  exported_model made;
  made.base_ = std::move(base);
  made.type_ = type_of(options.dtype);
  made.saved_ = compute::to_tensors(saved);
  for (const auto& t : made.saved_)
    if (!t.name.starts_with(compute::optimizer_prefix)) made.weights_[t.name].push_back(&t);

  std::set<std::string> trained;
  for (const auto& [name, parts] : made.weights_) {
    if (auto fits = check_form(name, *parts.front()); !fits) return fits.failure();
    // Files of a model without a head omit the first component of each name.
    trained.insert(name);
    trained.insert(name.substr(name.find('.') + 1));
  }
  if (made.base_ == nullptr) {
    for (const auto& u : unused)
      if (!trained.contains(u.name))
        made.filled_.push_back({u.name, at::full(u.sizes, u.value, made.type_)});
    for (const auto& t : made.filled_) made.weights_[t.name].push_back(&t);
  }
  std::vector<safetensors::tensor_spec> specs;
  for (const auto& [name, parts] : made.weights_)
    specs.push_back({name, compute::dtype_of(made.type_), stored_sizes(*parts.front())});
  if (made.base_ != nullptr)
    for (const auto& [name, t] : made.base_->tensors())
      if (!trained.contains(name)) {
        made.kept_.emplace(name, t);
        specs.push_back({name, t.info->type, t.info->shape});
      }
  auto to = safetensors::sharded_writer::create(
      options.out, std::move(specs), {{"format", "pt"}, {"rrfp.step", std::to_string(step)}},
      options.shard_bytes_max);
  if (!to) return to.failure();
  made.to_ = std::move(*to);
  return made;
}

status exported_model::write() {
  for (const auto& name : to_->order()) {
    if (const auto kept = kept_.find(name); kept != kept_.end()) {
      if (auto written = to_->write(name, kept->second.bytes()); !written) return written;
      continue;
    }
    const auto& parts = weights_.at(name);
    const auto whole = join(name, parts);
    if (!whole) return whole.failure();
    const auto made =
        compute::to_buffer(as_stored(*whole, parts.front()->stored).to(type_).contiguous());
    if (auto written = to_->write(name, made.content()); !written) return written;
  }
  return to_->finish();
}

}  // namespace rrfp::apps
