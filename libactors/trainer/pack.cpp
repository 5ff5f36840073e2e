#include <rrfp/pack.hpp>

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
      return only;
  }
  std::vector<std::int64_t> header{0, static_cast<std::int64_t>(p.note.size()),
                                   static_cast<std::int64_t>(p.tensors.size())};
  std::vector<at::Tensor> parts(2);
  std::vector<std::int64_t> numbers;
  for (std::size_t i = 0; i < p.tensors.size(); ++i) {
    const auto& t = p.tensors[i];
    if (!t.defined()) {
      header.push_back(undefined);
      continue;
    }
    // A forward that is recomputed later does not know yet which tensors have a gradient.
    const bool has_gradient =
        t.requires_grad() || (is_wide(t.scalar_type()) && !at::GradMode::is_enabled());
    header.push_back(static_cast<std::int64_t>(t.scalar_type()));
    header.push_back(has_gradient ? 1 : 0);
    header.push_back(t.dim());
    header.insert(header.end(), t.sizes().begin(), t.sizes().end());
    parts.push_back(padded(words_of(t)));
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
  const auto plain = words.detach();
  const auto head = head_of(plain);
  reader header{head};
  auto at = aligned(words_in(header.next()));
  const auto take = [&](std::int64_t count) {
    const auto part = plain.narrow(0, at, count);
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
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(header.next()));
    for (auto& size : sizes) size = header.next();
    const auto elements = c10::multiply_integers(sizes);
    if (is_wide(type)) {
      const auto begin = at;
      const auto part = take(elements);
      p.tensors.push_back(
          (has_gradient ? taken::apply(words, begin, elements, i) : part).view(sizes).to(type));
      continue;
    }
    const auto bytes = elements * static_cast<std::int64_t>(c10::elementSize(type));
    const auto part = take(words_in(bytes)).view(at::kByte).narrow(0, 0, bytes);
    p.tensors.push_back(part.view(type).view(sizes));
  }
  return p;
}

}  // namespace rrfp
