/// The shared key, nonces and HMACs. Only `secret` holds key bytes, and it wipes them; no function
/// here puts them into a message.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/base/result.hpp>

namespace rrfp::actors::control {

inline constexpr std::size_t key_bytes_min = 16;
inline constexpr std::size_t key_bytes_max = 4096;

using nonce = std::array<unsigned char, 32>;
using digest = std::array<unsigned char, 32>;

/// Key bytes, wiped on destruction. Never empty: the key of a job without a key file is a public
/// constant.
class secret {
 public:
  static secret without_key_file();
  explicit secret(std::vector<unsigned char> bytes) : bytes_(std::move(bytes)) {}
  explicit secret(digest& bytes);  ///< wipes `bytes`
  ~secret() { wipe(); }
  secret(secret&& other) noexcept : bytes_(std::move(other.bytes_)) {}
  secret& operator=(secret&& other) noexcept;

  const std::vector<unsigned char>& bytes() const { return bytes_; }

 private:
  void wipe() noexcept;

  std::vector<unsigned char> bytes_;
};

/// Reads a key file: a regular file without access for group and others, of 16 to 4096 bytes
/// without the line end.
result<secret> read_key_file(const std::string& path);

result<nonce> fresh_nonce();

/// HMAC-SHA256 over the concatenated parts.
digest hmac(const secret& key, std::initializer_list<std::string_view> parts);

/// In constant time.
bool equal(const digest& a, const digest& b);

template <std::size_t n>
std::string_view view(const std::array<unsigned char, n>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), n};
}

}  // namespace rrfp::actors::control
