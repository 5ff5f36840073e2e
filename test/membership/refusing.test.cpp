/// Refused joins: the node gets the reason, and the job is not affected.
#include <random>

#include "support.hpp"

namespace rrfp::actors::testing {
namespace {

const std::string good_key = "0123456789abcdef0123456789abcdef";
const std::string bad_key = "0123456789abcdef0123456789abcdeX";

/// Node 0 of a job of two nodes waits; at the end node 1 joins and the job begins.
class waiting_job {
 public:
  waiting_job() {
    all.use_key(write_key(folder / "key", good_key));
    zero_ = begin_join(all.options(0));
  }

  void completes() {
    auto one = begin_join(all.options(1));
    auto a = zero_.get();
    auto b = one.get();
    INFO((a.ok() ? "" : a.message()) << (b.ok() ? "" : b.message()));
    CHECK(a.ok());
    CHECK(b.ok());
  }

  const test::scratch_folder folder;
  job all{2};

 private:
  std::future<joined> zero_;
};

}  // namespace

TEST_CASE("A node whose claim differs from that of node 0 is refused with the reason") {
  struct wrong {
    std::function<void(membership_options&)> change;
    std::string reason;
  };
  const std::vector<wrong> all_wrong{
      {[](auto& o) { o.job_hash = 0x5678; },
       "job hash: expected 0000000000001234, got 0000000000005678 (the job files or their "
       "overrides differ)"},
      {[](auto& o) { o.version = "0.2.0"; }, "rrfp version: expected '0.1.0', got '0.2.0'"},
      {[](auto& o) { o.job_id = "b job"; }, "job: expected 'a job', got 'b job'"},
      {[](auto& o) { o.nodes = 3; }, "number of nodes: expected 2, got 3"},
      {[](auto& o) { o.nodes = 3, o.node = node_id{2}; }, "number of nodes: expected 2, got 3"},
  };
  waiting_job waiting;
  for (const auto& w : all_wrong) {
    auto options = waiting.all.options(1);
    w.change(options);
    const auto got = membership::join(options, "");
    REQUIRE_FALSE(got.ok());
    CHECK(got.message() == "node " + std::to_string(options.node.value()) +
                               ": rendezvous 127.0.0.1:" + std::to_string(waiting.all.port()) +
                               ": refused by node 0: " + w.reason);
    CHECK(waiting.all.refusals().any_with("as node " + std::to_string(options.node.value()) + ": " +
                                          w.reason));
  }
  waiting.completes();
}

TEST_CASE("A node with a wrong key or none is told only that, and keys are in no message") {
  waiting_job waiting;
  for (const bool any : {true, false}) {
    auto options = waiting.all.options(1);
    options.job_hash = 0x5678;  // must not be revealed without the key
    options.key_file = any ? write_key(waiting.folder / "bad", bad_key) : "";
    const auto got = membership::join(options, "");
    REQUIRE_FALSE(got.ok());
    CHECK(got.message() == "node 1: rendezvous 127.0.0.1:" + std::to_string(waiting.all.port()) +
                               ": refused by node 0: key refused");
    CHECK(got.message().find(bad_key.substr(0, 8)) == std::string::npos);
  }
  CHECK(waiting.all.refusals().count() == 2);
  for (const auto& line : waiting.all.refusals().all()) {
    CHECK(line.ends_with(" as node 1: key refused"));
    CHECK(line.find(good_key.substr(0, 8)) == std::string::npos);
  }
  waiting.completes();
}

TEST_CASE("A node does not join a node 0 that does not have the key") {
  // It sends a challenge and accepts any claim.
  const auto listening = *listen_on_loopback();
  std::thread impostor{[&] {
    pollfd caller{listening.fd, POLLIN, 0};
    ::poll(&caller, 1, 10'000);
    const int fd = ::accept(listening.fd, nullptr, nullptr);
    const auto hello = control::open_bytes(control::to_frame(control::challenge{}));
    const auto yes = control::open_bytes(control::to_frame(control::accept{}));
    (void)::send(fd, hello.data(), hello.size(), MSG_NOSIGNAL);
    (void)::send(fd, yes.data(), yes.size(), MSG_NOSIGNAL);
    char bytes[4096];
    while (::recv(fd, bytes, sizeof bytes, 0) > 0) {
    }
    ::close(fd);
  }};
  const test::scratch_folder folder;
  job fooled{2};
  fooled.use_key(write_key(folder / "key", good_key));
  auto options = fooled.options(1);
  options.rendezvous_port = listening.port;
  const auto got = membership::join(options, "");
  impostor.join();
  ::close(listening.fd);
  REQUIRE_FALSE(got.ok());
  CHECK(got.message().find("did not prove that it has the key") != std::string::npos);
}

TEST_CASE("A replay of a recorded join is refused, even by the same node 0") {
  const test::scratch_folder folder;
  job all{3};
  all.use_key(write_key(folder / "key", good_key));
  auto zero = begin_join(all.options(0));
  relay tap{all.port()};
  std::stop_source stop;
  auto options = all.options(1);
  options.rendezvous_port = tap.port();
  options.stop = stop.get_token();
  auto tapped = begin_join(options);
  // Only an admitted node sends more than a hello and a claim. After it disconnects, its number is
  // available again.
  REQUIRE(eventually([&] { return tap.said_by_nodes().size() > 200; }));
  stop.request_stop();
  CHECK_FALSE(tapped.get().ok());

  raw_connection replay{all.port()};
  replay.send(tap.said_by_nodes());
  CHECK(replay.refusal() == "key refused");
  CHECK(all.refusals().any_with("as node 1: key refused"));
  auto one = begin_join(all.options(1));
  auto two = begin_join(all.options(2));
  CHECK(zero.get().ok());
  CHECK(one.get().ok());
  CHECK(two.get().ok());
}

TEST_CASE("An injected frame ends the connection") {
  job all{2};
  relay between{all.port()};
  auto zero = begin_join(all.options(0));
  auto options = all.options(1);
  options.rendezvous_port = between.port();
  auto one = *begin_join(options).get();
  auto other = *zero.get();
  lines lost;
  one->on_lost([&](node_id, const std::string& why) { lost.add(why); });
  auto forged = control::to_frame(control::lost{1, "a lie"});
  forged.payload += std::string(32, '\0');  // where the seal would be
  between.inject(control::open_bytes(forged));
  REQUIRE(eventually([&] { return lost.count() == 1; }, 2s));
  CHECK(lost.all().front() == "node 0 (stage 0) was lost: got a frame with a wrong seal");
}

TEST_CASE("A node number that is taken or out of range is refused") {
  job all{3};
  auto zero = begin_join(all.options(0));
  relay link_of_one{all.port()};
  auto options_of_one = all.options(1);
  options_of_one.rendezvous_port = link_of_one.port();
  auto one = begin_join(options_of_one);
  // Only an admitted node sends more than a hello and a claim.
  REQUIRE(eventually([&] { return link_of_one.said_by_nodes().size() > 200; }));
  const auto refusal = [&](std::uint32_t node) {
    // join() checks its options first; a raw claim bypasses that check.
    raw_connection raw{all.port()};
    const control::secret key = control::secret::without_key_file();
    const control::job_identity identity{"0.1.0", "a job", 0x1234, 0, 3};
    control::client_handshake me{key, identity, node_id{node}, *control::fresh_nonce()};
    raw.send(control::open_bytes(me.greeting()));
    const auto challenge = raw.next();
    REQUIRE(challenge.has_value());
    raw.send(control::open_bytes(me.handle(*challenge)->answer));
    return raw.refusal();
  };
  CHECK(refusal(3) == "node: expected 0 to 2, got 3");
  CHECK(refusal(4294967295u) == "node: expected 0 to 2, got 4294967295");
  CHECK(refusal(0) == "node 0 is the node that listens");
  const auto again = begin_join(all.options(1)).get();
  REQUIRE_FALSE(again.ok());
  CHECK(again.message().find("refused by node 0: node 1 has already joined from 127.0.0.1:") !=
        std::string::npos);
  auto two = begin_join(all.options(2));
  CHECK(zero.get().ok());
  CHECK(one.get().ok());
  CHECK(two.get().ok());
}

TEST_CASE("A node that joins after the job has begun is refused, and the job continues") {
  job all{2};
  auto nodes = join_all(all, 2);
  auto options = all.options(1);
  const auto late = membership::join(options, "");
  REQUIRE_FALSE(late.ok());
  // It may be a restart of the same node before its loss was detected.
  CHECK(late.failure().kind == error_kind::node_lost);
  CHECK(late.message().ends_with("refused by node 0: node 1 is too late: all 2 nodes have joined"));
  auto one = std::async(std::launch::async, [&] { return nodes[1]->all_gather("1", 5s); });
  CHECK(nodes[0]->all_gather("0", 5s).ok());
  CHECK(one.get().ok());
  leave_all(nodes);
}

TEST_CASE("A node that restarts while the previous job ends waits for the next job") {
  job all{3};
  auto nodes = join_all(all, 3);
  nodes[2].reset();
  CHECK(nodes[0]->loss(10s));
  auto options = all.options(2);
  options.join_timeout = 300ms;
  const auto early = membership::join(options, "");
  REQUIRE_FALSE(early.ok());
  INFO(early.message());
  CHECK(early.message().find("did not join within 0.3 s: cannot connect") != std::string::npos);
  CHECK(early.failure().kind == error_kind::node_lost);
  CHECK(all.refusals().all().empty());
}

TEST_CASE("Another protocol or wire version is refused with an explanation") {
  waiting_job waiting;
  raw_connection http{waiting.all.port()};
  http.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  CHECK(http.refusal() == "not an rrfp node: expected a frame of 1 to 4096 bytes, got 542393671");

  raw_connection other{waiting.all.port()};
  control::hello future;
  future.wire = 9;
  other.send(control::open_bytes(control::to_frame(future)));
  CHECK(other.refusal() == "wire version: expected 2, got 9");

  raw_connection no_magic{waiting.all.port()};
  control::hello strange;
  strange.mark = 1;
  no_magic.send(control::open_bytes(control::to_frame(strange)));
  CHECK(no_magic.refusal() == "not an rrfp node: expected a hello");

  raw_connection twice{waiting.all.port()};
  const auto hello = control::open_bytes(control::to_frame(control::hello{}));
  twice.send(hello + hello);
  CHECK(twice.refusal() == "expected a claim after the hello");
  CHECK(waiting.all.refusals().count() == 4);
  waiting.completes();
}

TEST_CASE("Connections that send little or nothing do not block a join") {
  waiting_job waiting;
  std::vector<std::unique_ptr<raw_connection>> silent;
  for (int i = 0; i < 150; ++i) {
    silent.push_back(std::make_unique<raw_connection>(waiting.all.port()));
    silent.back()->send(std::string_view{"\x40\0\0\0\x01", static_cast<std::size_t>(i % 6)});
  }
  const auto begun = clock::now();
  waiting.completes();
  CHECK(clock::now() - begun < 2s);
  // At most 64 connections are kept.
  CHECK(waiting.all.refusals().any_with("closed for a newer connection"));
}

TEST_CASE("Random and truncated bytes do not affect the job") {
  waiting_job waiting;
  std::mt19937 random{20240607};
  const auto number = [&](std::uint32_t below) {
    return std::uniform_int_distribution<std::uint32_t>{0, below - 1}(random);
  };
  const auto hello = control::open_bytes(control::to_frame(control::hello{}));
  control::claim claimed{{"0.1.0", "a job", 0x1234, 0, 2}, 1, {}};
  const auto claim = control::open_bytes(control::to_frame(claimed));
  for (int i = 0; i < 300; ++i) {
    std::string bytes;
    switch (i % 4) {
      case 0:  // noise
        for (auto left = number(600); left > 0; --left) bytes += static_cast<char>(number(256));
        break;
      case 1:  // a frame with a believable head
        bytes = std::string{static_cast<char>(number(64)), 0, 0, 0, static_cast<char>(number(64))};
        for (auto left = number(100); left > 0; --left) bytes += static_cast<char>(number(256));
        break;
      case 2:  // cut off
        bytes =
            (hello + claim).substr(0, number(static_cast<std::uint32_t>((hello + claim).size())));
        break;
      default:  // one byte changed
        bytes = hello + claim;
        bytes[number(static_cast<std::uint32_t>(bytes.size()))] ^=
            static_cast<char>(1 + number(255));
        break;
    }
    raw_connection raw{waiting.all.port()};
    raw.send(bytes);
    if (i % 3 == 0) raw.end_writing();
  }
  waiting.completes();
  CHECK(waiting.all.refusals().count() == 101);
  CHECK(waiting.all.refusals().all().back() == "further refused joins are not reported");
}

}  // namespace rrfp::actors::testing
