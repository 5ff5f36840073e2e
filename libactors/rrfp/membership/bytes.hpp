/// Fields to bytes and back, little-endian. A message describes its fields once, in a function
/// template `fields(archive)`; both directions and the limits follow from that.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <rrfp/base/bytes.hpp>

namespace rrfp::actors::control {

/// An item of a list: a number, or what has fields.
void item(auto& archive, auto& one) {
  if constexpr (requires { archive(one); })
    archive(one);
  else
    std::remove_cvref_t<decltype(one)>::fields(archive, one);
}

class byte_writer : public rrfp::byte_writer {
 public:
  void operator()(const plain_number auto& value) { put(value); }
  void text(const std::string& value, std::size_t) { put(std::string_view{value}); }
  template <class Item>
  void list(const std::vector<Item>& items, std::size_t) {
    put(static_cast<std::uint32_t>(items.size()));
    for (const auto& one : items) item(*this, one);
  }
};

/// After a first failure it reads zeros and empty texts; check complete().
class byte_reader : public rrfp::byte_reader {
 public:
  using rrfp::byte_reader::byte_reader;

  void operator()(plain_number auto& value) { get(value); }
  void text(std::string& value, std::size_t bytes_max) { get(value, bytes_max); }
  template <class Item>
  void list(std::vector<Item>& items, std::size_t items_max) {
    const auto count = get_count();
    if (count > items_max) return fail();
    items.resize(count);
    for (auto& one : items) item(*this, one);
  }
};

template <class Message>
std::string encode(const Message& message) {
  byte_writer writer;
  Message::fields(writer, message);
  return writer.take();
}

/// Reads a message; empty if the bytes are not exactly one of this kind within its limits.
template <class Message>
std::optional<Message> decode(std::string_view bytes) {
  Message message;
  byte_reader reader{bytes};
  Message::fields(reader, message);
  if (!reader.complete()) return std::nullopt;
  return message;
}

}  // namespace rrfp::actors::control
