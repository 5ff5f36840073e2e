#include "channel.hpp"

#include <array>
#include <cerrno>
#include <cstring>

namespace rrfp::actors::control {

namespace {

constexpr std::size_t bytes_per_turn = 256 * 1024;
/// The limit for a connection that is not authenticated yet.
constexpr std::size_t handshake_bytes_per_turn = 8 * 1024;
/// One record of TLS at most.
constexpr std::size_t read_bytes = 16 * 1024;
/// A peer that reads none of this many heartbeats and notices times out long before that.
constexpr std::size_t urgent_frames_max = 4 * nodes_max;
/// Limits how long the heartbeat of another connection waits for bulk data of this one.
constexpr int writes_per_turn = 16;

/// A process that dies causes an end of file, or a reset if it left bytes unread. The user gets the
/// same message for both.
std::string connection_error(int number) {
  if (number == 0 || number == ECONNRESET || number == EPIPE) return "connection closed";
  return std::string{"connection failed: "} + std::strerror(number);
}

}  // namespace

channel::channel(file_descriptor fd) : fd_(std::move(fd)), other_side_(peer_address(fd_.get())) {}

void channel::begin_tls(const tls_context& context, secret psk, std::optional<node_id> self) {
  tls_.emplace(context, fd_.get(), std::move(psk), self, std::move(opening_));
}

pollfd channel::polled() const {
  const bool reads = tls_ || opening_.size() < opening_bytes;
  const bool writes = tls_ && (secure_ ? !out_.empty() : tls_->waits_to_write());
  return {reads ? fd_.get() : -1, static_cast<short>(writes ? POLLIN | POLLOUT : POLLIN), 0};
}

channel::arrival channel::receive_opening() {
  using enum tls::end;
  std::array<char, opening_bytes> bytes;
  const auto wanted = bytes.size() - opening_.size();
  const auto got = wanted > 0 ? ::recv(fd_.get(), bytes.data(), wanted, 0) : 0;
  if (got > 0) opening_.append(bytes.data(), static_cast<std::size_t>(got));
  if (!may_open_tls(opening_)) return {false, strange};
  if (opening_.size() == opening_bytes) return {true};
  if (got == 0) return {false, closed, connection_error(0)};
  if (got > 0 || errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return {};
  return {false, closed, connection_error(errno)};
}

channel::arrival channel::receive() {
  using enum tls::end;
  if (!tls_) return receive_opening();
  arrival a;
  tls_->allow(secure_ ? bytes_per_turn : handshake_bytes_per_turn);
  secure_ = secure_ || tls_->shake_hands();
  std::array<char, read_bytes> bytes;
  while (const auto got = secure_ ? tls_->read(bytes) : 0) {
    in_.append({bytes.data(), got});
    a.any = true;
  }
  a.ended = tls_->ended();
  if (a.ended == closed) a.why = connection_error(tls_->error_number());
  return a;
}

status channel::flush() {
  if (out_.urgent_frames() > urgent_frames_max) return error{"it does not read its messages"};
  if (!tls_) return success();
  if (!secure_) {
    tls_->allow(0);
    secure_ = tls_->shake_hands();
  }
  for (int turn = 0; secure_ && turn < writes_per_turn; ++turn) {
    const auto bytes = out_.front();
    if (bytes.empty() || !tls_->write(bytes)) break;
    out_.pop();
  }
  if (tls_->ended() != tls::end::closed) return success();  // receive() reports it
  return error{connection_error(tls_->error_number())};
}

void channel::refuse(const frame& last) {
  out_ = {};
  out_.add_urgent(last);
  if (tls_) {
    (void)flush();
  } else {
    const auto bytes = out_.front();
    (void)::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  end_writing();
}

void channel::end_writing() {
  ::shutdown(fd_.get(), SHUT_WR);
  tls_.reset();
  out_ = {};
}

bool channel::discard() {
  std::array<char, read_bytes> bytes;
  const auto got = ::recv(fd_.get(), bytes.data(), bytes.size(), 0);
  return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

}  // namespace rrfp::actors::control
