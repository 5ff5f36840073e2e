#include "secret.hpp"

#include <cerrno>
#include <cstring>
#include <memory>

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <openssl/rand.h>
#include <sys/stat.h>

#include <rrfp/base/check.hpp>

#include <fcntl.h>
#include <unistd.h>

namespace rrfp::actors::control {

namespace {

struct closer {
  int fd;
  ~closer() { ::close(fd); }
};

error key_error(const std::string& path, std::string_view problem) {
  return error{fmt::format("key file '{}': {}", path, problem)};
}

}  // namespace

secret secret::without_key_file() {
  constexpr std::string_view constant = "rrfp: a job on loopback without a key";
  return secret{std::vector<unsigned char>{constant.begin(), constant.end()}};
}

secret::secret(digest& bytes) : bytes_(bytes.begin(), bytes.end()) {
  OPENSSL_cleanse(bytes.data(), bytes.size());
}

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
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return key_error(path, std::strerror(errno));
  const closer close_it{fd};
  struct stat info {};
  if (::fstat(fd, &info) != 0) return key_error(path, std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return key_error(path, "expected a regular file");
  if ((info.st_mode & 077) != 0)
    return key_error(path, fmt::format("expected access for the owner only (mode 0600), got mode "
                                       "{:04o}: run chmod 600",
                                       info.st_mode & 07777));

  // Allocated at full size, because a growing vector leaves copies of the key behind.
  std::vector<unsigned char> bytes(key_bytes_max + 1);
  std::size_t size = 0;
  while (size < bytes.size()) {
    const auto got = ::read(fd, bytes.data() + size, bytes.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return key_error(path, std::strerror(errno));
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  const bool too_long = size > key_bytes_max;
  // The line end that `openssl rand -hex 32 > key` writes does not belong to the key.
  while (size > 0 && (bytes[size - 1] == '\n' || bytes[size - 1] == '\r')) --size;
  OPENSSL_cleanse(bytes.data() + size, bytes.size() - size);
  bytes.resize(size);
  secret key{std::move(bytes)};
  if (too_long || size < key_bytes_min)
    return key_error(path, fmt::format("expected {} to {} bytes, got {}", key_bytes_min,
                                       key_bytes_max, too_long ? "more" : std::to_string(size)));
  return key;
}

result<nonce> fresh_nonce() {
  nonce bytes{};
  if (RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) != 1)
    return error{"the random source of OpenSSL failed"};
  return bytes;
}

digest hmac(const secret& key, std::initializer_list<std::string_view> parts) {
  static EVP_MAC* const algorithm = EVP_MAC_fetch(nullptr, "HMAC", nullptr);
  RRFP_CHECK(algorithm != nullptr, "OpenSSL has no HMAC");
  const std::unique_ptr<EVP_MAC_CTX, void (*)(EVP_MAC_CTX*)> context{EVP_MAC_CTX_new(algorithm),
                                                                     EVP_MAC_CTX_free};
  char sha256[] = "SHA256";
  const OSSL_PARAM parameters[] = {OSSL_PARAM_construct_utf8_string("digest", sha256, 0),
                                   OSSL_PARAM_construct_end()};
  bool good = EVP_MAC_init(context.get(), key.bytes().data(), key.bytes().size(), parameters) == 1;
  for (const auto part : parts)
    good =
        good && EVP_MAC_update(context.get(), reinterpret_cast<const unsigned char*>(part.data()),
                               part.size()) == 1;
  digest out{};
  std::size_t size = 0;
  good = good && EVP_MAC_final(context.get(), out.data(), &size, out.size()) == 1;
  RRFP_CHECK(good && size == out.size(), "HMAC-SHA256 of OpenSSL failed");
  return out;
}

bool equal(const digest& a, const digest& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace rrfp::actors::control
