/// Fields to bytes and back, little-endian. A message describes its fields once, in a function
/// template `fields(archive)`; both directions and the limits follow from that.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

namespace rrfp::actors::control {

class byte_writer {
 public:
  template <class T>
  requires std::is_unsigned_v<T>
  void operator()(const T& value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) out_.push_back(static_cast<char>(value >> (8 * i)));
  }
  void operator()(const std::int64_t& value) { (*this)(static_cast<std::uint64_t>(value)); }
  void text(const std::string& value, std::size_t) {
    (*this)(static_cast<std::uint32_t>(value.size()));
    out_ += value;
  }

  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

/// After a first failure it reads zeros and empty texts; check complete().
class byte_reader {
 public:
  explicit byte_reader(std::string_view bytes) : rest_(bytes) {}

  template <class T>
  requires std::is_unsigned_v<T>
  void operator()(T& value) {
    const auto bytes = next(sizeof(T));
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i)
      sum |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
    value = static_cast<T>(sum);
  }
  void operator()(std::int64_t& value) {
    std::uint64_t bits = 0;
    (*this)(bits);
    value = static_cast<std::int64_t>(bits);
  }
  void text(std::string& value, std::size_t bytes_max) {
    std::uint32_t size = 0;
    (*this)(size);
    if (size > bytes_max) failed_ = true;
    value = next(size);
  }

  /// No read failed, and no bytes are left.
  bool complete() const { return !failed_ && rest_.empty(); }

 private:
  std::string_view next(std::size_t size) {
    if (failed_ || size > rest_.size()) {
      failed_ = true;
      return {};
    }
    const auto bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return bytes;
  }

  std::string_view rest_;
  bool failed_ = false;
};

template <class Message>
std::string encode(const Message& message) {
  byte_writer writer;
  Message::fields(writer, message);
  return writer.take();
}

/// Empty if the bytes are not exactly one such message within its limits.
template <class Message>
std::optional<Message> decode(std::string_view bytes) {
  Message message;
  byte_reader reader{bytes};
  Message::fields(reader, message);
  if (!reader.complete()) return std::nullopt;
  return message;
}

}  // namespace rrfp::actors::control
