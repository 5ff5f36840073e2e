#include "secret.hpp"
#include "sockets.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include <fmt/format.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/rand.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <rrfp/base/check.hpp>

#include <fcntl.h>
#include <unistd.h>

namespace rrfp::actors::control {

namespace {

constexpr std::size_t psk_bytes = 32;

error key_error(const std::string& path, std::string_view problem) {
  return error{fmt::format("key file '{}': {}", path, problem)};
}

/// `bytes`: a key with its line end, and room for one byte more than the largest key. An error says
/// what is wrong.
result<secret> to_key(std::vector<unsigned char> bytes, std::size_t size) {
  const bool too_long = size > key_bytes_max;
  // The line end that `openssl rand -hex 32 > key` writes does not belong to the key.
  while (size > 0 && (bytes[size - 1] == '\n' || bytes[size - 1] == '\r')) --size;
  OPENSSL_cleanse(bytes.data() + size, bytes.size() - size);
  bytes.resize(size);
  secret key{std::move(bytes)};
  if (too_long || size < key_bytes_min)
    return error{fmt::format("expected {} to {} bytes, got {}", key_bytes_min, key_bytes_max,
                             too_long ? "more" : std::to_string(size))};
  return key;
}

}  // namespace

secret& secret::operator=(secret&& other) noexcept {
  if (this != &other) {
    wipe();
    bytes_ = std::move(other.bytes_);
  }
  return *this;
}

void secret::wipe() noexcept {
  if (!bytes_.empty()) OPENSSL_cleanse(bytes_.data(), bytes_.size());
}

result<secret> read_key_file(const std::string& path) {
  // O_NONBLOCK: a FIFO in place of the key must not block.
  const file_descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (!file.open()) return key_error(path, std::strerror(errno));
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return key_error(path, std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return key_error(path, "expected a regular file");
  if ((info.st_mode & 077) != 0)
    return key_error(path, fmt::format("expected access for the owner only (mode 0600), got mode "
                                       "{:04o}: run chmod 600",
                                       info.st_mode & 07777));

  // Allocated at full size, because a growing vector leaves copies of the key behind.
  std::vector<unsigned char> bytes(key_bytes_max + 1);
  std::size_t size = 0;
  while (size < bytes.size()) {
    const auto got = ::read(file.get(), bytes.data() + size, bytes.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return key_error(path, std::strerror(errno));
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  auto key = to_key(std::move(bytes), size);
  if (!key) return key_error(path, key.message());
  return key;
}

result<std::optional<secret>> read_key_variable() {
  const char* const text = std::getenv(key_variable);
  if (text == nullptr || *text == '\0') return std::optional<secret>{};
  std::vector<unsigned char> bytes(key_bytes_max + 1);
  const auto size = ::strnlen(text, bytes.size());
  std::memcpy(bytes.data(), text, size);
  auto key = to_key(std::move(bytes), size);
  if (!key) return error{fmt::format("variable {}: {}", key_variable, key.message())};
  return std::optional{*std::move(key)};
}

result<secret> draw_key() {
  std::vector<unsigned char> bytes(drawn_key_bytes);
  if (RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) != 1)
    return error{"the random source of OpenSSL failed"};
  return secret{std::move(bytes)};
}

result<int> to_descriptor(const secret& key) {
  const int fd = ::memfd_create("rrfp key", 0);
  const auto& bytes = key.bytes();
  if (fd < 0 || ::pwrite(fd, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    const error failed{fmt::format("cannot pass on a key: {}", std::strerror(errno))};
    if (fd >= 0) ::close(fd);
    return failed;
  }
  return fd;
}

result<secret> read_descriptor(int fd) {
  std::vector<unsigned char> bytes(drawn_key_bytes);
  if (::pread(fd, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    return error{fmt::format("descriptor {}: expected a key of {} bytes", fd, drawn_key_bytes)};
  return secret{std::move(bytes)};
}

secret derive_psk(const secret& key) {
  const std::unique_ptr<EVP_KDF, void (*)(EVP_KDF*)> hkdf{EVP_KDF_fetch(nullptr, "HKDF", nullptr),
                                                          EVP_KDF_free};
  const std::unique_ptr<EVP_KDF_CTX, void (*)(EVP_KDF_CTX*)> context{EVP_KDF_CTX_new(hkdf.get()),
                                                                     EVP_KDF_CTX_free};
  char sha256[] = "SHA256";
  char label[] = "rrfp control psk";
  auto* const bytes = const_cast<unsigned char*>(key.bytes().data());
  const OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, sha256, 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, bytes, key.bytes().size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, label, sizeof label - 1),
      OSSL_PARAM_construct_end()};
  std::vector<unsigned char> psk(psk_bytes);
  RRFP_CHECK(EVP_KDF_derive(context.get(), psk.data(), psk.size(), parameters) == 1,
             "HKDF-SHA256 of OpenSSL failed");
  return secret{std::move(psk)};
}

}  // namespace rrfp::actors::control
