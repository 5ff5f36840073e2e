/// Values to bytes and back, little-endian, as in the messages between nodes: numbers and enums
/// with their size, a text as a u32 length and its bytes.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace rrfp {

static_assert(std::endian::native == std::endian::little, "values are copied from memory");

template <class T>
concept plain_number = std::is_arithmetic_v<T> || std::is_enum_v<T>;

class byte_writer {
 public:
  template <plain_number T>
  void put(const T& value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put(std::string_view text) {
    put(static_cast<std::uint32_t>(text.size()));
    out_ += text;
  }

  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

/// After a first failure it reads zeros and empty texts; check complete().
class byte_reader {
 public:
  explicit byte_reader(std::string_view bytes) : rest_(bytes) {}

  template <plain_number T>
  void get(T& value) {
    value = {};
    const auto bytes = next(sizeof value);
    if (bytes.empty()) return;
    std::array<char, sizeof value> raw;
    std::copy_n(bytes.begin(), raw.size(), raw.begin());
    if constexpr (std::is_same_v<T, bool>)
      value = raw[0] != 0;
    else
      value = std::bit_cast<T>(raw);
  }
  /// A longer text is a failure.
  void get(std::string& text, std::size_t bytes_max = SIZE_MAX) {
    std::uint32_t size = 0;
    get(size);
    if (size > bytes_max) failed_ = true;
    text = next(size);
  }
  /// A number of items that follow; each takes a byte at least, so a greater number is a failure.
  std::uint32_t get_count() {
    std::uint32_t count = 0;
    get(count);
    if (count <= rest_.size()) return count;
    fail();
    return 0;
  }

  /// What was read is not what the caller takes.
  void fail() { failed_ = true; }

  bool failed() const { return failed_; }
  /// Whether everything was read, and nothing is left.
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

}  // namespace rrfp
