#include "channel.hpp"

#include <array>
#include <cerrno>
#include <cstring>

namespace rrfp::actors::control {

namespace {

constexpr std::size_t read_bytes = 64 * 1024;
constexpr int reads_per_turn = 4;
/// A peer that reads none of this many heartbeats and notices times out long before that.
constexpr std::size_t urgent_frames_max = 4 * nodes_max;
/// Limits how long the heartbeat of another connection waits for bulk data of this one.
constexpr int writes_per_turn = 16;

/// A process that dies causes an end of file, or a reset if it left bytes unread. The user gets the
/// same message for both.
error connection_error(int number) {
  if (number == 0 || number == ECONNRESET || number == EPIPE) return error{"connection closed"};
  return error{std::string{"connection failed: "} + std::strerror(number)};
}

}  // namespace

channel::channel(file_descriptor fd) : fd_(std::move(fd)), other_side_(peer_address(fd_.get())) {}

result<bool> channel::receive() {
  std::array<char, read_bytes> bytes;
  bool any = false;
  for (int turn = 0; turn < reads_per_turn; ++turn) {
    const auto got = ::recv(fd_.get(), bytes.data(), bytes.size(), 0);
    if (got == 0) return connection_error(0);
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) break;
      return connection_error(errno);
    }
    in_.append({bytes.data(), static_cast<std::size_t>(got)});
    any = true;
    if (static_cast<std::size_t>(got) < bytes.size()) break;
  }
  return any;
}

status channel::flush() {
  if (out_.urgent_frames() > urgent_frames_max) return error{"it does not read its messages"};
  for (int turn = 0; turn < writes_per_turn; ++turn) {
    const auto bytes = out_.front();
    if (bytes.empty()) break;
    const auto sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN || errno == EWOULDBLOCK ? success() : status{connection_error(errno)};
    }
    out_.taken(static_cast<std::size_t>(sent));
  }
  return success();
}

void channel::end_writing() { ::shutdown(fd_.get(), SHUT_WR); }

bool channel::discard() {
  std::array<char, read_bytes> bytes;
  const auto got = ::recv(fd_.get(), bytes.data(), bytes.size(), 0);
  return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

}  // namespace rrfp::actors::control
