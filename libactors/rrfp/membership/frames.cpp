#include "frames.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace rrfp::actors::control {

namespace {

constexpr std::size_t length_bytes = 4;

}  // namespace

result<std::optional<frame>> frame_reader::next() {
  if (!failure_.empty()) return error{failure_};
  const auto rest = std::string_view{buffer_}.substr(read_);
  if (rest.size() < length_bytes) return std::optional<frame>{};
  std::uint32_t size = 0;
  byte_reader{rest}.get(size);
  if (size < 1 || size > size_max_) {
    failure_ = fmt::format("expected a frame of 1 to {} bytes, got {}", size_max_, size);
    return error{failure_};
  }
  if (rest.size() < length_bytes + size) return std::optional<frame>{};

  frame f{static_cast<std::uint8_t>(rest[length_bytes]),
          std::string{rest.substr(length_bytes + 1, size - 1)}};
  read_ += length_bytes + size;
  // Moves the rest only now and then, because each move copies it.
  if (read_ == buffer_.size() || read_ > frame_bytes_max) {
    buffer_.erase(0, read_);
    read_ = 0;
  }
  return std::optional<frame>{std::move(f)};
}

void outbox::add_bulk(std::uint64_t round, std::shared_ptr<const std::string> bytes) {
  ordered_.push_back({{}, std::move(bytes), round, 0});
}

frame outbox::next_ordered() {
  auto& first = ordered_.front();
  if (first.bulk == nullptr) {
    auto f = std::move(first.whole);
    ordered_.pop_front();
    return f;
  }
  const auto size = std::min(piece_bytes_max, first.bulk->size() - first.offset);
  auto f = to_frame(piece{first.round, first.bulk->size(), first.bulk->substr(first.offset, size)});
  first.offset += size;
  if (first.offset == first.bulk->size()) ordered_.pop_front();
  return f;
}

std::string_view outbox::front() {
  if (current_.empty() && !urgent_.empty()) {
    current_ = to_bytes(urgent_.front());
    urgent_.pop_front();
  } else if (current_.empty() && !ordered_.empty()) {
    current_ = to_bytes(next_ordered());
  }
  return current_;
}

frame to_frame(const any_message& m) {
  return std::visit([](const auto& x) { return to_frame(x); }, m);
}

any_message to_message(const frame& f) {
  any_message found = malformed{};
  const auto read = [&]<class Message>(Message*) {
    if (f.type != Message::type) return;
    if (auto m = decoded<Message>(f.payload)) found = *std::move(m);
  };
  [&]<class... Messages>(std::variant<Messages...>*) {
    (read(static_cast<Messages*>(nullptr)), ...);
  }(static_cast<any_message*>(nullptr));
  return found;
}

std::string to_bytes(const frame& f) {
  byte_writer writer;
  writer.put(static_cast<std::uint32_t>(1 + f.payload.size()));
  writer.put(f.type);
  auto bytes = writer.take();
  bytes.reserve(bytes.size() + f.payload.size());
  return bytes += f.payload;
}

}  // namespace rrfp::actors::control
