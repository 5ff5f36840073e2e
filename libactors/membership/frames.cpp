#include "frames.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace rrfp::actors::control {

namespace {

constexpr std::size_t length_bytes = 4;

std::string packed(const frame& f, seal* with) {
  const std::size_t size = 1 + f.payload.size() + (with != nullptr ? sizeof(digest) : 0);
  byte_writer writer;
  writer(static_cast<std::uint32_t>(size));
  writer(f.type);
  auto bytes = writer.take();
  bytes.reserve(length_bytes + size);
  bytes += f.payload;
  if (with != nullptr) bytes += view(with->next(bytes));
  return bytes;
}

}  // namespace

digest seal::next(std::string_view bytes) {
  byte_writer number;
  number(number_++);
  return hmac(key_, {number.take(), bytes});
}

error frame_reader::fail(std::string message) {
  failure_ = std::move(message);
  return error{failure_};
}

result<std::optional<frame>> frame_reader::next() {
  if (!failure_.empty()) return error{failure_};
  const auto rest = std::string_view{buffer_}.substr(read_);
  if (rest.size() < length_bytes) return std::optional<frame>{};
  std::uint32_t size = 0;
  byte_reader{rest.substr(0, length_bytes)}(size);
  const std::size_t seal_bytes = seal_ ? sizeof(digest) : 0;
  const std::size_t size_max = seal_ ? sealed_frame_bytes_max : open_frame_bytes_max;
  if (size < 1 + seal_bytes || size > size_max)
    return fail(
        fmt::format("expected a frame of {} to {} bytes, got {}", 1 + seal_bytes, size_max, size));
  if (rest.size() < length_bytes + size) return std::optional<frame>{};

  const auto bytes = rest.substr(0, length_bytes + size - seal_bytes);
  if (seal_) {
    digest received{};
    byte_reader{rest.substr(bytes.size(), seal_bytes)}(received);
    if (!equal(received, seal_->next(bytes))) return fail("got a frame with a wrong seal");
  }
  frame f{static_cast<std::uint8_t>(bytes[length_bytes]),
          std::string{bytes.substr(length_bytes + 1)}};
  read_ += length_bytes + size;
  // Moves the rest only now and then, because each move copies it.
  if (read_ == buffer_.size() || read_ > sealed_frame_bytes_max) {
    buffer_.erase(0, read_);
    read_ = 0;
  }
  return std::optional<frame>{std::move(f)};
}

void outbox::add_bulk(std::uint8_t type, std::uint64_t round, std::uint32_t node,
                      std::shared_ptr<const std::string> bytes) {
  ordered_.push_back({{type, {}}, std::move(bytes), round, node, 0});
}

void outbox::seal_with(secret key) {
  for (; !urgent_.empty(); urgent_.pop_front()) current_ += packed(urgent_.front(), nullptr);
  seal_.emplace(std::move(key));
}

frame outbox::next_ordered() {
  auto& first = ordered_.front();
  if (first.bulk == nullptr) {
    auto f = std::move(first.whole);
    ordered_.pop_front();
    return f;
  }
  const auto size = std::min(piece_bytes_max, first.bulk->size() - first.offset);
  frame f{first.whole.type, encode(piece{first.round, first.node, first.bulk->size(),
                                         first.bulk->substr(first.offset, size)})};
  first.offset += size;
  if (first.offset == first.bulk->size()) ordered_.pop_front();
  return f;
}

std::string_view outbox::front() {
  if (current_.empty()) {
    if (!urgent_.empty()) {
      current_ = packed(urgent_.front(), seal_ ? &*seal_ : nullptr);
      urgent_.pop_front();
    } else if (!ordered_.empty()) {
      current_ = packed(next_ordered(), seal_ ? &*seal_ : nullptr);
    }
  }
  return std::string_view{current_}.substr(written_);
}

void outbox::taken(std::size_t bytes) {
  written_ += bytes;
  if (written_ < current_.size()) return;
  current_.clear();
  written_ = 0;
}

frame to_frame(const any_message& m) {
  return std::visit([](const auto& x) { return to_frame(x); }, m);
}

any_message to_message(const frame& f) {
  any_message found = malformed{};
  const auto read = [&]<class Message>(Message*) {
    if (f.type != Message::type) return;
    if (auto m = decode<Message>(f.payload)) found = *std::move(m);
  };
  [&]<class... Messages>(std::variant<Messages...>*) {
    (read(static_cast<Messages*>(nullptr)), ...);
  }(static_cast<any_message*>(nullptr));
  return found;
}

std::string open_bytes(const frame& f) { return packed(f, nullptr); }

}  // namespace rrfp::actors::control
