#include <rrfp/base/step_name.hpp>
#include <rrfp/tp_coord/fingerprint.hpp>

namespace rrfp::tp_coord {

namespace {

constexpr std::uint32_t magic = 0x54505246;  // "FRPT"

class writer {
 public:
  template <class T>
  void put(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bytes_[at_++] = static_cast<std::byte>((static_cast<std::uint64_t>(value) >> (8 * i)) & 0xff);
    }
  }
  encoded_fingerprint bytes() const { return bytes_; }

 private:
  encoded_fingerprint bytes_{};
  std::size_t at_ = 0;
};

class reader {
 public:
  explicit reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  T get() {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      value |= static_cast<std::uint64_t>(bytes_[at_++]) << (8 * i);
    }
    return static_cast<T>(value);
  }

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
};

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
  writer out;
  out.put(magic);
  out.put(static_cast<std::uint8_t>(f.op));
  out.put(static_cast<std::uint8_t>(f.type));
  out.put(static_cast<std::uint8_t>(f.site.launched_task.kind));
  out.put(std::uint8_t{0});
  out.put(f.site.step.value());
  out.put(f.site.launch.value());
  out.put(f.site.launched_task.mb.value());
  out.put(f.site.launched_task.chunk.value());
  out.put(f.ordinal);
  out.put(f.root.value());
  out.put(f.count);
  return out.bytes();
}

std::optional<fingerprint> decode(std::span<const std::byte> bytes) {
  if (bytes.size() < encoded_fingerprint().size()) return std::nullopt;
  reader in(bytes);
  if (in.get<std::uint32_t>() != magic) return std::nullopt;
  fingerprint f;
  const auto op = in.get<std::uint8_t>();
  const auto type = in.get<std::uint8_t>();
  const auto kind = in.get<std::uint8_t>();
  in.get<std::uint8_t>();
  if (op > static_cast<std::uint8_t>(operation::barrier) ||
      type > static_cast<std::uint8_t>(element::int64) || kind >= task_kinds) {
    return std::nullopt;
  }
  f.op = static_cast<operation>(op);
  f.type = static_cast<element>(type);
  f.site.launched_task.kind = static_cast<task_kind>(kind);
  f.site.step = step_id{in.get<std::uint64_t>()};
  f.site.launch = launch_seq{in.get<std::uint64_t>()};
  f.site.launched_task.mb = microbatch_id{in.get<std::uint32_t>()};
  f.site.launched_task.chunk = chunk_id{in.get<std::uint32_t>()};
  f.ordinal = in.get<std::uint32_t>();
  f.root = rank_id{in.get<std::uint32_t>()};
  f.count = in.get<std::uint64_t>();
  return f;
}

}  // namespace rrfp::tp_coord
