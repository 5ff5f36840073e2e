/// Feeds changed bytes to node 0's side of a control connection, before and after it is
/// authenticated. (targets/rendezvous.cpp feeds the readers of frames and messages.)
///
///   wire_fuzz [--inputs N] [--seed N | --new-seed]
///
/// A finding ends the program with a message and the seed: bytes that pass for those of a node with
/// the key, or a connection that does not end. A crash and a sanitizer's report are findings, too.
#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <string>

#include <sys/socket.h>

#include <rrfp/membership/channel.hpp>

#include "mutate.hpp"

#include <unistd.h>

namespace {

using namespace rrfp::actors::control;
using rrfp::node_id;
using rrfp::fuzz::mutator;
using end_of = tls::end;

void expect(bool good, const char* otherwise) {
  if (!good) throw std::runtime_error(otherwise);
}

secret psk_of(const std::string& key) { return derive_psk(secret{{key.begin(), key.end()}}); }

/// A node and node 0, between which the fuzzer carries the bytes.
class carried {
 public:
  explicit carried(const std::string& key_of_node)
      : node_(end_at(to_node_)), node_0_(end_at(to_node_0_)) {
    node_.begin_tls(of_node_, psk_of(key_of_node), node_id{1});
    node_.out().add_urgent(to_frame(claim{wire_version, {"0.1.0", "job", 7, 2}, 1}));
    node_.out().add_urgent(to_frame(introduce{"stage 1"}));
  }

  /// What the node has written since the last call.
  std::string from_node() {
    (void)node_.flush();
    return taken(to_node_);
  }
  void to_node(const std::string& bytes) {
    put(to_node_, bytes);
    (void)node_.receive();
  }
  /// Passes bytes to node 0; returns its answer.
  std::string to_node_0(const std::string& bytes, bool then_ends = false) {
    put(to_node_0_, bytes);
    if (then_ends) ::shutdown(to_node_0_.get(), SHUT_WR);
    // Each turn reads a limited number of bytes.
    for (int turn = 0; turn < 100 && ended_ == end_of::none; ++turn) {
      const auto arrived = node_0_.receive();
      ended_ = arrived.ended;
      if (!node_0_.has_tls() && arrived.any) node_0_.begin_tls(of_node_0_, psk_of("good key"));
      (void)node_0_.flush();
    }
    return taken(to_node_0_);
  }

  channel& node_0() { return node_0_; }
  end_of ended() const { return ended_; }

 private:
  static file_descriptor end_at(file_descriptor& other) {
    int ends[2];
    expect(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0, "no socket pair");
    other = file_descriptor{ends[0]};
    return file_descriptor{ends[1]};
  }
  static void put(const file_descriptor& fd, const std::string& bytes) {
    (void)::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  static std::string taken(const file_descriptor& fd) {
    std::string bytes(65536, '\0');
    const auto got = ::recv(fd.get(), bytes.data(), bytes.size(), 0);
    bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return bytes;
  }

  const tls_context of_node_{tls_context::side::node};
  const tls_context of_node_0_{tls_context::side::node_0};
  file_descriptor to_node_, to_node_0_;
  channel node_, node_0_;
  end_of ended_ = end_of::none;
};

std::string noise(mutator& m) {
  std::string bytes(m.below(3000), '\0');
  for (auto& byte : bytes) byte = static_cast<char>(m.below(256));
  return bytes;
}

/// The first bytes of a stranger, or of a node whose bytes were changed on the way.
void try_opening(mutator& m) {
  const bool has_key = !m.one_in(3);
  carried c{has_key ? "good key" : "bad key"};
  const auto hello = c.from_node();
  auto changed = m.one_in(8) ? noise(m) : m.bytes(hello);
  if (m.one_in(2)) changed = changed.substr(0, opening_bytes) + noise(m);
  if (m.one_in(2)) changed += m.bytes(changed);
  const auto first = m.below(changed.size() + 1);
  c.to_node_0(changed.substr(0, first));
  c.to_node_0(changed.substr(first), true);
  expect(!c.node_0().is_secure(), "a handshake without its second flight is complete");
  expect(c.ended() != end_of::none, "a connection does not end with its bytes");
}

/// The second flight of a node, with its claim, changed on the way.
void try_second_flight(mutator& m) {
  carried c{"good key"};
  c.to_node(c.to_node_0(c.from_node()));
  const auto flight = c.from_node();
  const auto changed = m.one_in(8) ? noise(m) : m.bytes(flight);
  if (changed.starts_with(flight)) return;
  c.to_node_0(changed, true);
  expect(c.ended() != end_of::none, "a connection does not end with its bytes");
  for (;;) {
    const auto f = c.node_0().in().next();
    expect(f.ok(), "a frame of the node has changed");
    if (!f->has_value()) break;
    // Records before the first change are those of the node.
    const bool is_claim =
        std::holds_alternative<event::proven>(judge_claim({}, {"0.1.0", "job", 7, 2}, **f));
    const bool is_introduction = std::holds_alternative<introduce>(to_message(**f));
    expect(is_claim || is_introduction, "a changed frame has arrived");
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t inputs = 2000, seed = 1;
  CLI::App app{"Feeds changed bytes to the control connection"};
  app.add_option("--inputs", inputs, "Number of inputs");
  app.add_option("--seed", seed, "Seed of the inputs");
  app.add_flag_callback(
      "--new-seed",
      [&] {
        const auto now = std::chrono::system_clock::now().time_since_epoch();
        seed = static_cast<std::uint64_t>(now / std::chrono::milliseconds{1});
      },
      "Take the seed from the clock");
  CLI11_PARSE(app, argc, argv);
  for (std::uint64_t number = 0; number < inputs; ++number) {
    mutator m{seed * 1'000'003 + number};
    try {
      if (number % 2 == 0)
        try_opening(m);
      else
        try_second_flight(m);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "wire_fuzz: seed %llu, input %llu: %s\n",
                   static_cast<unsigned long long>(seed), static_cast<unsigned long long>(number),
                   e.what());
      return 1;
    }
  }
  std::printf("seed %llu: %llu inputs, no finding\n", static_cast<unsigned long long>(seed),
              static_cast<unsigned long long>(inputs));
}
