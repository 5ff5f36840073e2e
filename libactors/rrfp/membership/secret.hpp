/// The key of a job. Only `secret` holds key bytes, and it wipes them; no function here puts them
/// into a message.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <rrfp/base/result.hpp>

namespace rrfp::actors::control {

inline constexpr std::size_t key_bytes_min = 16;
inline constexpr std::size_t key_bytes_max = 4096;
/// The size of a key that rrfp draws.
inline constexpr std::size_t drawn_key_bytes = 32;
/// Holds the key of a job that has no key file.
inline constexpr const char* key_variable = "RRFP_KEY";

/// Key bytes, wiped on destruction.
class secret {
 public:
  explicit secret(std::vector<unsigned char> bytes) : bytes_(std::move(bytes)) {}
  ~secret() { wipe(); }
  secret(secret&& other) noexcept : bytes_(std::move(other.bytes_)) {}
  secret& operator=(secret&& other) noexcept;

  const std::vector<unsigned char>& bytes() const { return bytes_; }
  bool operator==(const secret&) const = default;

 private:
  void wipe() noexcept;

  std::vector<unsigned char> bytes_;
};

/// Reads a key file: a regular file without access for group and others, of 16 to 4096 bytes
/// without the line end.
result<secret> read_key_file(const std::string& path);

/// The key in the environment, if the variable is set and not empty; of the same size.
result<std::optional<secret>> read_key_variable();

/// Random bytes.
result<secret> draw_key();
/// A descriptor with the key, which stays open across exec.
result<int> to_descriptor(const secret& key);
/// Reads what to_descriptor() has written; several processes may.
result<secret> read_descriptor(int fd);

/// The pre-shared key of TLS that follows from the key of a job: HKDF-SHA256, 32 bytes.
secret derive_psk(const secret& key);

}  // namespace rrfp::actors::control
