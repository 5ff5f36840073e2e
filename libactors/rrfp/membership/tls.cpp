#include "tls.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <rrfp/base/check.hpp>
#include <rrfp/base/parse_number.hpp>

namespace rrfp::actors::control {

namespace {

constexpr std::string_view identity_head = "rrfp node ";
constexpr unsigned char aes_128_gcm_sha256[] = {0x13, 0x01};
constexpr std::size_t client_hello_bytes_max = 4096;

bool would_block(int number) { return number == EAGAIN || number == EWOULDBLOCK; }

ssize_t uninterrupted(auto call) {
  ssize_t done = -1;
  do {
    done = call();
  } while (done < 0 && errno == EINTR);
  return done;
}

}  // namespace

/// Each gets the connection as the data of the BIO or of the SSL object.
struct tls::callbacks {
  static int read(BIO* bio, char* into, int size) {
    auto& c = *static_cast<tls*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    if (!c.opening_.empty()) {
      const auto some = c.opening_.copy(into, static_cast<std::size_t>(size));
      c.opening_.erase(0, some);
      return static_cast<int>(some);
    }
    const auto wanted = std::min(static_cast<std::size_t>(size), c.allowed_);
    const auto got =
        wanted > 0 ? uninterrupted([&] { return ::recv(c.fd_, into, wanted, 0); }) : -1;
    if (wanted == 0 || (got < 0 && would_block(errno))) {
      BIO_set_retry_read(bio);
      return -1;
    }
    if (got <= 0)
      c.close(got < 0 ? errno : 0);
    else
      c.allowed_ -= static_cast<std::size_t>(got);
    return static_cast<int>(got);
  }

  static int write(BIO* bio, const char* from, int size) {
    auto& c = *static_cast<tls*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    const auto sent = uninterrupted(
        [&] { return ::send(c.fd_, from, static_cast<std::size_t>(size), MSG_NOSIGNAL); });
    if (sent >= 0) return static_cast<int>(sent);
    if (would_block(errno))
      BIO_set_retry_write(bio);
    else
      c.close(errno);
    return -1;
  }

  static long control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH; }

  static BIO_METHOD* method() {
    static BIO_METHOD* const made = [] {
      auto* const m = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "socket without signals");
      RRFP_CHECK(m != nullptr && BIO_meth_set_read(m, read) == 1 &&
                     BIO_meth_set_write(m, write) == 1 && BIO_meth_set_ctrl(m, control) == 1,
                 "OpenSSL cannot create a BIO method");
      return m;
    }();
    return made;
  }

  static int use_session(SSL* ssl, const EVP_MD*, const unsigned char** identity, std::size_t* size,
                         SSL_SESSION** session) {
    const auto& c = *static_cast<tls*>(SSL_get_app_data(ssl));
    *identity = reinterpret_cast<const unsigned char*>(c.identity_.data());
    *size = c.identity_.size();
    *session = c.session();
    return 1;
  }

  static int find_session(SSL* ssl, const unsigned char* identity, std::size_t size,
                          SSL_SESSION** session) {
    auto& c = *static_cast<tls*>(SSL_get_app_data(ssl));
    const std::string_view text{reinterpret_cast<const char*>(identity), size};
    *session = nullptr;
    if (!text.starts_with(identity_head)) return 1;
    const auto node = parse_number<std::uint32_t>(text.substr(identity_head.size()));
    if (!node) return 1;
    c.named_ = node_id{*node};
    *session = c.session();
    return 1;
  }
};

void tls_context::deleter::operator()(ssl_ctx_st* c) const { SSL_CTX_free(c); }
void tls::deleter::operator()(ssl_st* s) const { SSL_free(s); }

tls_context::tls_context(side s)
    : context_(SSL_CTX_new(s == side::node_0 ? TLS_server_method() : TLS_client_method())) {
  auto* const c = context_.get();
  RRFP_CHECK(c != nullptr && SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) == 1 &&
                 SSL_CTX_set_max_proto_version(c, TLS1_3_VERSION) == 1 &&
                 SSL_CTX_set_ciphersuites(c, "TLS_AES_128_GCM_SHA256") == 1 &&
                 SSL_CTX_set1_groups_list(c, "X25519:P-256") == 1 &&
                 SSL_CTX_set_num_tickets(c, 0) == 1,
             "OpenSSL has no TLS 1.3 with AES-128-GCM");
  SSL_CTX_set_options(c, SSL_OP_NO_TICKET);
  SSL_CTX_clear_options(c, SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
  SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(c, SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_read_ahead(c, 1);
  if (s == side::node_0) {
    SSL_CTX_set_psk_find_session_callback(c, tls::callbacks::find_session);
    return;
  }
  SSL_CTX_set_psk_use_session_callback(c, tls::callbacks::use_session);
  // A listener without the key must not succeed with a certificate instead: none is trusted.
  SSL_CTX_set_verify(c, SSL_VERIFY_PEER, nullptr);
}

bool may_open_tls(std::string_view bytes) {
  const auto at = [&](std::size_t i) { return std::size_t{static_cast<unsigned char>(bytes[i])}; };
  const auto size = bytes.size();
  // A handshake record of TLS 1.x that contains a ClientHello and nothing else.
  if ((size > 0 && at(0) != 0x16) || (size > 1 && at(1) != 0x03)) return false;
  if ((size > 5 && at(5) != 0x01) || (size > 6 && at(6) != 0)) return false;
  if (size < opening_bytes) return true;
  const auto record = at(3) << 8 | at(4);
  return record <= client_hello_bytes_max && (at(7) << 8 | at(8)) + 4 == record;
}

tls::tls(const tls_context& context, int fd, secret psk, std::optional<node_id> self,
         std::string opening)
    : fd_(fd),
      psk_(std::move(psk)),
      opening_(std::move(opening)),
      identity_(self ? std::string{identity_head} + std::to_string(self->value()) : ""),
      ssl_(SSL_new(context.context_.get())) {
  auto* const bio = BIO_new(callbacks::method());
  RRFP_CHECK(ssl_ != nullptr && bio != nullptr, "OpenSSL cannot create a connection");
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_.get(), bio, bio);
  SSL_set_app_data(ssl_.get(), this);
  self ? SSL_set_connect_state(ssl_.get()) : SSL_set_accept_state(ssl_.get());
}

ssl_session_st* tls::session() const {
  auto* const s = SSL_SESSION_new();
  const auto* const cipher = SSL_CIPHER_find(ssl_.get(), aes_128_gcm_sha256);
  RRFP_CHECK(s != nullptr && cipher != nullptr && SSL_SESSION_set_cipher(s, cipher) == 1 &&
                 SSL_SESSION_set1_master_key(s, psk_.bytes().data(), psk_.bytes().size()) == 1 &&
                 SSL_SESSION_set_protocol_version(s, TLS1_3_VERSION) == 1,
             "OpenSSL cannot use a PSK");
  return s;
}

void tls::close(int number) {
  if (end_ != end::none) return;
  end_ = end::closed;
  error_number_ = number;
}

bool tls::succeeded(int returned) {
  if (returned > 0) return true;
  const auto why = SSL_get_error(ssl_.get(), returned);
  if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE || end_ != end::none) return false;
  // OpenSSL has already sent the alert for an error of the other side.
  const auto reason = ERR_GET_REASON(ERR_peek_error());
  // On a wrong key, OpenSSL 3.0 sends the second alert, against RFC 8446, which demands the first.
  const bool key_alert =
      reason == SSL_R_TLSV1_ALERT_DECRYPT_ERROR || reason == SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER;
  // Only the side that named an identity can be refused for its key.
  if (key_alert && !identity_.empty())
    end_ = end::refused;
  else if (why == SSL_ERROR_ZERO_RETURN || (reason >= SSL_AD_REASON_OFFSET && complete_))
    end_ = end::closed;
  else if (reason == SSL_R_WRONG_VERSION_NUMBER && !complete_ && !identity_.empty())
    end_ = end::strange;
  else
    end_ = end::invalid;
  return false;
}

bool tls::shake_hands() {
  ERR_clear_error();
  if (end_ != end::none || !succeeded(SSL_do_handshake(ssl_.get()))) return false;
  complete_ = SSL_session_reused(ssl_.get()) == 1;
  if (!complete_) end_ = end::invalid;  // without the PSK
  return complete_;
}

std::size_t tls::read(std::span<char> into) {
  std::size_t got = 0;
  ERR_clear_error();
  if (end_ != end::none) return 0;
  return succeeded(SSL_read_ex(ssl_.get(), into.data(), into.size(), &got)) ? got : 0;
}

bool tls::write(std::string_view bytes) {
  std::size_t written = 0;
  ERR_clear_error();
  return end_ == end::none &&
         succeeded(SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &written));
}

bool tls::waits_to_write() const { return SSL_want_write(ssl_.get()) != 0; }

}  // namespace rrfp::actors::control
