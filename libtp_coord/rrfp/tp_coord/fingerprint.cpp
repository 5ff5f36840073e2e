#include <algorithm>

#include <rrfp/base/check.hpp>
#include <rrfp/base/codec.hpp>
#include <rrfp/base/step_name.hpp>
#include <rrfp/tp_coord/fingerprint.hpp>

namespace rrfp::tp_coord {

namespace {

constexpr std::uint32_t magic = 0x54505246;  // "FRPT"

/// The fields in their order in the wire format.
void fields(auto f, auto& x, std::uint32_t& mark, std::uint8_t& unused) {
  f(mark, x.op, x.type, x.site.launched_task.kind, unused, x.site.step, x.site.launch,
    x.site.launched_task.mb, x.site.launched_task.chunk, x.ordinal, x.root, x.count);
}

}  // namespace

std::size_t bytes_of(element type) {
  switch (type) {
    case element::float32: return 4;
    case element::float64:
    case element::int64: return 8;
  }
  return 0;
}

std::string_view name(element type) {
  switch (type) {
    case element::float32: return "float32";
    case element::float64: return "float64";
    case element::int64: return "int64";
  }
  return {};
}

std::string_view name(operation op) {
  switch (op) {
    case operation::sum: return "all-reduce (sum)";
    case operation::max: return "all-reduce (max)";
    case operation::gather: return "all-gather";
    case operation::broadcast: return "broadcast";
    case operation::barrier: return "barrier";
  }
  return {};
}

std::string to_string(const fingerprint& f) {
  auto text = std::string(name(f.op));
  if (f.op == operation::broadcast) text += " from rank " + std::to_string(f.root.value());
  if (f.op != operation::barrier) {
    text += " of " + std::to_string(f.count) + " " + std::string(name(f.type));
  }
  return text + ", number " + std::to_string(f.ordinal) + " of " + to_string(f.site.launched_task) +
         " (" + to_string(f.site.step) + ", launch " + std::to_string(f.site.launch.value()) + ")";
}

std::optional<std::string> disagreement(std::span<const fingerprint> prints) {
  for (std::size_t r = 1; r < prints.size(); ++r) {
    if (prints[r] == prints[0]) continue;
    return "the ranks of a stage disagree: rank 0 is in " + to_string(prints[0]) + ", but rank " +
           std::to_string(r) + " in " + to_string(prints[r]);
  }
  return std::nullopt;
}

encoded_fingerprint encode(const fingerprint& f) {
  auto mark = magic;
  std::uint8_t unused = 0;
  auto sent = f;
  encoder out;
  fields([&](auto&... members) { out(members...); }, sent, mark, unused);
  const auto bytes = out.take();
  encoded_fingerprint made;
  RRFP_CHECK(bytes.size() == made.size(), "a fingerprint has a fixed size");
  std::ranges::transform(bytes, made.begin(), [](char c) { return static_cast<std::byte>(c); });
  return made;
}

std::optional<fingerprint> decode(std::span<const std::byte> bytes) {
  if (bytes.size() < encoded_fingerprint().size()) return std::nullopt;
  std::uint32_t mark = 0;
  std::uint8_t unused = 0;
  fingerprint f;
  decoder in{{reinterpret_cast<const char*>(bytes.data()), bytes.size()}};
  fields([&](auto&... members) { in(members...); }, f, mark, unused);
  if (mark != magic || f.op > operation::barrier || f.type > element::int64 ||
      static_cast<std::uint8_t>(f.site.launched_task.kind) >= task_kinds)
    return std::nullopt;
  return f;
}

}  // namespace rrfp::tp_coord
