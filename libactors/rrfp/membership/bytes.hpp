/// Fields to bytes and back, little-endian. A message describes its fields once, in a function
/// template `fields(archive)`; both directions and the limits follow from that.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <rrfp/base/bytes.hpp>

namespace rrfp::actors::control {

class byte_writer : public rrfp::byte_writer {
 public:
  void operator()(const plain_number auto& value) { put(value); }
  void text(const std::string& value, std::size_t) { put(std::string_view{value}); }
};

/// After a first failure it reads zeros and empty texts; check complete().
class byte_reader : public rrfp::byte_reader {
 public:
  using rrfp::byte_reader::byte_reader;

  void operator()(plain_number auto& value) { get(value); }
  void text(std::string& value, std::size_t bytes_max) { get(value, bytes_max); }
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
