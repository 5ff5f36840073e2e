#include <rrfp/pack.hpp>

#include <algorithm>
#include <cstring>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

namespace rrfp {

namespace {

constexpr std::int64_t alignment = 16;  ///< float32 values in 64 bytes

std::int64_t aligned(std::int64_t words) { return (words + alignment - 1) / alignment * alignment; }

at::Tensor padded(const at::Tensor& words) {
  return at::constant_pad_nd(words, {0, aligned(words.numel()) - words.numel()});
}

/// Its values are exact in float32.
bool is_wide(at::ScalarType type) {
  return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
}

/// Other tensors have no memory whose bytes are their values.
at::Tensor plain(const at::Tensor& t) {
  const char* const kind = t.is_nested()                                   ? "nested"
                           : t.is_meta()                                   ? "meta"
                           : t.is_quantized()                              ? "quantized"
                           : t.layout() != at::kStrided                    ? "sparse or blocked"
                           : t.unsafeGetTensorImpl()->is_python_dispatch() ? "Python"
                                                                           : nullptr;
  TORCH_CHECK(kind == nullptr, "between stages: expected dense tensors, got a ", kind,
              " tensor of ", t.scalar_type());
  return t.resolve_conj().resolve_neg();
}

/// How a tensor lies in memory. Dimensions that expand() made (stride 0) travel once.
struct memory_form {
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;  ///< empty: contiguous

  std::vector<std::int64_t> stored_sizes() const {
    auto stored = sizes;
    for (std::size_t d = 0; d < strides.size(); ++d)
      if (strides[d] == 0) stored[d] = 1;
    return stored;
  }
  /// A gradient of channels_last has these strides, too, so its values travel in the order of
  /// memory; those of others travel in the order of the dimensions, and their gradients are
  /// contiguous.
  bool is_channels_last() const {
    const at::IntArrayRef mine{strides};
    return (sizes.size() == 4 && mine.equals(c10::get_channels_last_strides_2d(sizes))) ||
           (sizes.size() == 5 && mine.equals(c10::get_channels_last_strides_3d(sizes)));
  }
};

/// Whether a copy with the same strides is possible, and takes no more than some times the memory.
bool may_keep_strides(const memory_form& form) {
  constexpr std::int64_t most = 16;
  std::vector<std::pair<std::int64_t, std::int64_t>> dimensions;  // stride, size
  const auto stored = form.stored_sizes();
  for (std::size_t d = 0; d < stored.size(); ++d)
    if (stored[d] > 1) dimensions.emplace_back(form.strides[d], stored[d]);
  std::sort(dimensions.begin(), dimensions.end());
  std::int64_t last = 0;  // offset of an element
  for (const auto& [stride, size] : dimensions) {
    if (stride <= last) return false;
    last += stride * (size - 1);
  }
  return last < most * c10::multiply_integers(stored);
}

memory_form form_of(const at::Tensor& t) {
  memory_form form{t.sizes().vec(), t.strides().vec()};
  const auto contiguous = c10::contiguous_strides(t.sizes());
  if (t.numel() == 0 || t.strides().equals(contiguous) || !may_keep_strides(form))
    form.strides = {};
  return form;
}

/// The values that travel, in their order.
at::Tensor stored(const at::Tensor& t, const memory_form& form) {
  if (form.is_channels_last()) return t.movedim(1, -1);
  auto base = t;
  for (std::size_t d = 0; d < form.strides.size(); ++d)
    if (form.strides[d] == 0) base = base.narrow(static_cast<std::int64_t>(d), 0, 1);
  return base;
}

/// The tensor whose values are `flat`.
at::Tensor restored(const at::Tensor& flat, const memory_form& form) {
  if (form.strides.empty()) return flat.view(form.sizes);
  auto sizes = form.stored_sizes();
  if (form.is_channels_last()) {
    std::rotate(sizes.begin() + 1, sizes.begin() + 2, sizes.end());
    return flat.view(sizes).movedim(-1, 1);
  }
  const auto base = at::empty_strided(sizes, form.strides, flat.options().requires_grad(false));
  return base.copy_(flat.view(sizes)).expand(form.sizes);
}

std::int64_t words_in(std::int64_t bytes) { return (bytes + 3) / 4; }

/// The bytes, unchanged.
at::Tensor words_of(const void* bytes, std::int64_t count) {
  auto words = at::zeros({words_in(count)}, at::kFloat);
  if (count > 0) std::memcpy(words.mutable_data_ptr(), bytes, static_cast<std::size_t>(count));
  return words;
}

at::Tensor words_of(const at::Tensor& t) {
  if (is_wide(t.scalar_type())) return t.to(at::kFloat).reshape({-1});
  TORCH_CHECK(!t.requires_grad(),
              "between stages: expected float32, bfloat16 or float16 where a "
              "gradient is required, got ",
              t.scalar_type(), " ", t.sizes());
  const auto bytes = t.detach().contiguous().view({-1}).view(at::kByte);
  return at::constant_pad_nd(bytes, {0, words_in(bytes.numel()) * 4 - bytes.numel()})
      .view(at::kFloat);
}

/// Reads the header.
class reader {
 public:
  explicit reader(at::Tensor words)
      : words_(std::move(words)),
        values_(static_cast<const std::int64_t*>(words_.const_data_ptr())),
        size_(words_.numel() / 2) {}

  std::int64_t next() {
    TORCH_CHECK(at_ < size_, "a packed message ends in its header");
    return values_[at_++];
  }

 private:
  const at::Tensor words_;
  const std::int64_t* const values_;
  const std::int64_t size_;
  std::int64_t at_ = 0;
};

constexpr std::int64_t undefined = -1;

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The words of tensor `number` in a message. Its gradient says in word `number` of the header,
/// which has no gradient of its own, that the tensor has one.
struct taken : torch::autograd::Function<taken> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& words, std::int64_t at,
                            std::int64_t count, std::int64_t number) {
    ctx->saved_data["at"] = at;
    ctx->saved_data["number"] = number;
    ctx->saved_data["size"] = words.numel();
    ctx->set_materialize_grads(false);
    return words.narrow(0, at, count);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto& own = gradients[0];
    if (!own.defined()) return {{}, {}, {}, {}};
    auto all = at::zeros({ctx->saved_data["size"].toInt()}, own.options());
    all.narrow(0, ctx->saved_data["at"].toInt(), own.numel()).copy_(own);
    all.narrow(0, ctx->saved_data["number"].toInt(), 1).fill_(1);
    return {std::move(all), {}, {}, {}};
  }
};

/// The message of `parts`: header, note and the words of tensors. `numbers`: of these tensors.
struct joined : torch::autograd::Function<joined> {
  static at::Tensor forward(AutogradContext* ctx, at::TensorList parts,
                            const std::vector<std::int64_t>& numbers) {
    std::vector<std::int64_t> sizes;
    for (const auto& p : parts) sizes.push_back(p.numel());
    ctx->saved_data["sizes"] = sizes;
    ctx->saved_data["numbers"] = numbers;
    ctx->set_materialize_grads(false);
    return at::cat(parts);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto sizes = ctx->saved_data["sizes"].toIntVector();
    const auto numbers = ctx->saved_data["numbers"].toIntVector();
    variable_list of_parts(sizes.size() + 1);  // the last one: of numbers
    if (!gradients[0].defined()) return of_parts;
    const auto marks = gradients[0].narrow(0, 0, sizes[0]).cpu();
    auto at = sizes[0] + sizes[1];
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (marks.const_data_ptr<float>()[numbers[i]] != 0)
        of_parts[i + 2] = gradients[0].narrow(0, at, sizes[i + 2]);
      at += sizes[i + 2];
    }
    return of_parts;
  }
};

at::Device device_of(const std::vector<at::Tensor>& tensors) {
  for (const auto& t : tensors)
    if (t.defined()) return t.device();
  return at::kCPU;
}

/// Header and note on the host. Reading them from a device waits for it.
at::Tensor head_of(const at::Tensor& words) {
  if (words.is_cpu()) return words;
  reader sizes{words.narrow(0, 0, words_in(2 * sizeof(std::int64_t))).cpu()};
  const auto header = aligned(words_in(sizes.next()));
  return words.narrow(0, 0, header + aligned(words_in(sizes.next()))).cpu();
}

}  // namespace

at::Tensor pack(const parcel& p) {
  if (p.note.empty() && p.tensors.size() == 1) {
    const auto& only = p.tensors.front();
    if (only.defined() && only.scalar_type() == at::kFloat && only.dim() != packed_dimensions)
      return plain(only);
  }
  std::vector<std::int64_t> header{0, static_cast<std::int64_t>(p.note.size()),
                                   static_cast<std::int64_t>(p.tensors.size())};
  std::vector<at::Tensor> parts(2);
  std::vector<std::int64_t> numbers;
  for (std::size_t i = 0; i < p.tensors.size(); ++i) {
    const auto& given = p.tensors[i];
    if (!given.defined()) {
      header.push_back(undefined);
      continue;
    }
    const auto t = plain(given);
    const auto form = form_of(t);
    // A forward that is recomputed later does not know yet which tensors have a gradient.
    const bool has_gradient =
        t.requires_grad() || (is_wide(t.scalar_type()) && !at::GradMode::is_enabled());
    header.push_back(static_cast<std::int64_t>(t.scalar_type()));
    header.push_back(has_gradient ? 1 : 0);
    header.push_back(t.dim());
    header.insert(header.end(), form.sizes.begin(), form.sizes.end());
    header.push_back(form.strides.empty() ? 0 : 1);
    header.insert(header.end(), form.strides.begin(), form.strides.end());
    parts.push_back(padded(words_of(stored(t, form))));
    numbers.push_back(static_cast<std::int64_t>(i));
  }
  const auto header_bytes = static_cast<std::int64_t>(header.size() * sizeof(std::int64_t));
  header.front() = header_bytes;
  const auto device = device_of(p.tensors);
  parts[0] = padded(words_of(header.data(), header_bytes)).to(device);
  parts[1] = padded(words_of(p.note.data(), static_cast<std::int64_t>(p.note.size()))).to(device);
  std::vector<std::int64_t> sizes(packed_dimensions, 1);
  sizes.back() = -1;
  return joined::apply(at::TensorList{parts}, numbers).view(sizes);
}

parcel unpack(const at::Tensor& message) {
  if (message.dim() != packed_dimensions) return {{message}, {}};
  const auto words = message.reshape({-1});
  const auto plain_words = words.detach();
  const auto head = head_of(plain_words);
  reader header{head};
  auto at = aligned(words_in(header.next()));
  const auto take = [&](std::int64_t count) {
    const auto part = plain_words.narrow(0, at, count);
    at += aligned(count);
    return part;
  };
  parcel p;
  const auto note_bytes = header.next();
  const auto count = header.next();
  const auto note = head.narrow(0, at, words_in(note_bytes));
  at += aligned(words_in(note_bytes));
  p.note.assign(static_cast<const char*>(note.const_data_ptr()),
                static_cast<std::size_t>(note_bytes));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto kind = header.next();
    if (kind == undefined) {
      p.tensors.emplace_back();
      continue;
    }
    const auto type = static_cast<at::ScalarType>(kind);
    const bool has_gradient = header.next() != 0;
    memory_form form;
    form.sizes.resize(static_cast<std::size_t>(header.next()));
    for (auto& size : form.sizes) size = header.next();
    if (header.next() != 0) form.strides.resize(form.sizes.size());
    for (auto& stride : form.strides) stride = header.next();
    const auto elements = c10::multiply_integers(form.stored_sizes());
    if (is_wide(type)) {
      const auto begin = at;
      const auto part = take(elements);
      p.tensors.push_back(
          restored((has_gradient ? taken::apply(words, begin, elements, i) : part).to(type), form));
      continue;
    }
    const auto bytes = elements * static_cast<std::int64_t>(c10::elementSize(type));
    const auto part = take(words_in(bytes)).view(at::kByte).narrow(0, 0, bytes);
    p.tensors.push_back(restored(part.view(type), form));
  }
  return p;
}

}  // namespace rrfp
