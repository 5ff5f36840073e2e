/// An HTTP client for servers on this machine, and a search for free ports.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace rrfp::test {

inline sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return at;
}

/// A socket that listens on a loopback port and so keeps it in use.
class taken_port {
 public:
  explicit taken_port(std::uint16_t port = 0) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    const int on = 1;
    ::setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    auto at = loopback(port);
    const bool bound = ::bind(fd_, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0;
    if (!bound || ::listen(fd_, 8) != 0) return;
    socklen_t length = sizeof at;
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&at), &length);
    port_ = ntohs(at.sin_port);
  }
  taken_port(const taken_port&) = delete;
  taken_port& operator=(const taken_port&) = delete;
  ~taken_port() { ::close(fd_); }

  /// 0: the port was not free.
  std::uint16_t port() const { return port_; }

 private:
  int fd_;
  std::uint16_t port_ = 0;
};

/// The first of `count` consecutive ports that are currently free. They lie below those that the
/// system gives to connections, and processes begin their search at different ports: in the time
/// until the caller binds them nobody else takes them.
inline std::uint16_t free_ports(std::uint16_t count) {
  constexpr unsigned lowest = 10'000, end = 32'000;
  static unsigned next = static_cast<unsigned>(::getpid()) * 89;
  for (;;) {
    const unsigned first = lowest + next % (end - lowest);
    next += count;
    bool all = first + count <= end;
    for (std::uint16_t i = 0; all && i < count; ++i)
      all = taken_port{static_cast<std::uint16_t>(first + i)}.port() != 0;
    if (all) return static_cast<std::uint16_t>(first);
  }
}

struct reply {
  int code = 0;  ///< 0: no answer
  std::string body;
  std::string head;
};

inline reply ask(std::uint16_t port, const std::string& method, const std::string& path) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  const timeval limit{5, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  const auto at = loopback(port);
  std::string text;
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0) {
    const auto request = method + " " + path + " HTTP/1.0\r\nHost: localhost\r\n\r\n";
    char buffer[65536];
    if (::send(fd, request.data(), request.size(), MSG_NOSIGNAL) > 0)
      for (ssize_t n = 0; (n = ::recv(fd, buffer, sizeof buffer, 0)) > 0;)
        text.append(buffer, static_cast<std::size_t>(n));
  }
  ::close(fd);
  const auto head_end = text.find("\r\n\r\n");
  if (text.size() < 12 || head_end == std::string::npos) return {};
  reply answer{std::stoi(text.substr(9, 3)), text.substr(head_end + 4), text.substr(0, head_end)};
  // On a busy machine the limit may pass in the middle of a body.
  const std::string length = "Content-Length: ";
  const auto at_length = answer.head.find(length);
  if (method != "HEAD" && at_length != std::string::npos &&
      answer.body.size() < std::stoul(answer.head.substr(at_length + length.size())))
    return {};
  return answer;
}
inline reply get(std::uint16_t port, const std::string& path) { return ask(port, "GET", path); }

/// Requests a page but does not finish the request.
class half_sent_request {
 public:
  half_sent_request(std::uint16_t port, const std::string& path)
      : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    const auto at = loopback(port);
    const auto text = "GET " + path + " HTTP/1.1\r\nHost: ";
    sent_ = ::connect(fd_, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0 &&
            ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL) > 0;
  }
  half_sent_request(const half_sent_request&) = delete;
  half_sent_request& operator=(const half_sent_request&) = delete;
  ~half_sent_request() { ::close(fd_); }

  bool sent() const { return sent_; }
  /// Whether the server closes the connection in time.
  bool is_ended(std::chrono::seconds limit) const {
    const timeval wait{limit.count(), 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    char buffer[4096];
    ssize_t n = 0;
    while ((n = ::recv(fd_, buffer, sizeof buffer, 0)) > 0) {
    }
    return n == 0 || (n < 0 && errno == ECONNRESET);
  }

 private:
  int fd_;
  bool sent_ = false;
};

/// The text format: "name{labels}" to value.
inline std::map<std::string, double> samples_of(const std::string& text) {
  std::map<std::string, double> samples;
  std::istringstream in{text};
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    const auto space = line.rfind(' ');
    const auto number = line.substr(space + 1);
    char* end = nullptr;
    errno = 0;
    samples[line.substr(0, space)] = std::strtod(number.c_str(), &end);
    if (number.empty() || *end != 0 || errno != 0)
      throw std::runtime_error("not a sample: '" + line + "'");
  }
  return samples;
}

}  // namespace rrfp::test
