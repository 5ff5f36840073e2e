/// Nodes join in any order, also before node 0 listens, and a join that waits ends.
#include <algorithm>
#include <atomic>
#include <random>
#include <string_view>

#include <dlfcn.h>
#include <netdb.h>

#include "support.hpp"

namespace {

constexpr const char* late_host = "late-host.test";
/// That of `late_host`; null: its name is not known.
std::atomic<const char*> late_address = nullptr;

}  // namespace

/// In place of the C library's, for `late_host`.
extern "C" int getaddrinfo(const char* host, const char* service, const addrinfo* hints,
                           addrinfo** found) {
  static const auto original =
      reinterpret_cast<decltype(&getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  if (host != nullptr && std::string_view{host} == late_host) {
    const char* const now = late_address;
    if (now == nullptr || (hints->ai_flags & AI_NUMERICHOST) != 0) return EAI_NONAME;
    host = now;
  }
  return original(host, service, hints, found);
}

namespace rrfp::actors::testing {
namespace {

double seconds_since(clock::time_point begun) {
  return std::chrono::duration<double>(clock::now() - begun).count();
}

}  // namespace

TEST_CASE("All nodes of a job join in any order and know each other") {
  const auto nodes = GENERATE(2u, 3u, 5u, 8u);
  job all{nodes};
  std::vector<std::uint32_t> order(nodes);
  for (std::uint32_t i = 0; i < nodes; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), std::mt19937{nodes});

  std::vector<std::future<joined>> under_way(nodes);
  for (const auto node : order) {
    under_way[node] = begin_join(all.options(node));
    std::this_thread::sleep_for(5ms);
  }
  std::vector<std::unique_ptr<membership>> members;
  for (auto& one : under_way) {
    auto got = one.get();
    INFO((got.ok() ? std::string{} : got.message()));
    REQUIRE(got.ok());
    members.push_back(*std::move(got));
  }
  for (std::uint32_t node = 0; node < nodes; ++node) {
    CHECK(members[node]->node() == node_id{node});
    const auto& others = members[node]->members();
    CHECK(members[node]->nodes() == nodes);
    REQUIRE(others.size() == (node == 0 ? nodes : 1));
    for (std::uint32_t i = 0; i < others.size(); ++i) {
      CHECK(others[i].node == node_id{i});
      CHECK(others[i].host == "127.0.0.1");
      CHECK(others[i].description == "stage " + std::to_string(i));
    }
  }
  CHECK(all.refusals().all().empty());
  leave_all(members);
}

TEST_CASE("The only node of a job joins alone") {
  job alone{1};
  auto members = join_all(alone, 1);
  CHECK(members[0]->members().size() == 1);
  CHECK(members[0]->clock_offset() == 0ns);
  auto answered = tell_all(*members[0], "mine", 1s);
  REQUIRE(answered.ok());
  CHECK(*answered == "mine");
  leave_all(members);
}

TEST_CASE("Nodes wait until node 0 listens") {
  // The port is known, but no process listens on it yet.
  std::uint16_t port = 0;
  {
    const auto free = *listen_on_loopback();
    port = free.port;
    ::close(free.fd);
  }
  job late{3};
  const auto at = [&](std::uint32_t node) {
    auto o = late.options(node);
    if (o.listen_fd >= 0) ::close(std::exchange(o.listen_fd, -1));
    o.rendezvous_port = port;
    o.rendezvous_host = "localhost";
    if (node == 0) o.rendezvous_host = "127.0.0.1";
    return o;
  };
  auto one = begin_join(at(1));
  auto two = begin_join(at(2));
  std::this_thread::sleep_for(400ms);
  auto zero = begin_join(at(0));
  auto a = zero.get();
  auto b = one.get();
  auto c = two.get();
  INFO((a.ok() ? "" : a.message()) << (b.ok() ? "" : b.message()) << (c.ok() ? "" : c.message()));
  REQUIRE((a.ok() && b.ok() && c.ok()));
}

TEST_CASE(
    "Node 0 waits until the name of the rendezvous is its own, and not longer than the others") {
  job named{2};
  const auto at = [&](std::uint32_t node) {
    auto o = named.options(node);
    if (o.listen_fd >= 0) ::close(std::exchange(o.listen_fd, -1));
    if (node == 0) o.rendezvous_host = late_host;
    o.rendezvous_port = named.port();
    return o;
  };
  const test::scratch_folder folder;
  named.use_key(write_key(folder / "key", std::string(32, 'k')));
  SECTION("it becomes known, first with an address of another machine") {
    auto zero = begin_join(at(0));
    auto one = begin_join(at(1));
    std::this_thread::sleep_for(300ms);
    late_address = "192.0.2.1";
    std::this_thread::sleep_for(900ms);
    late_address = "127.0.0.1";
    auto a = zero.get();
    auto b = one.get();
    INFO((a.ok() ? "" : a.message()) << (b.ok() ? "" : b.message()));
    CHECK((a.ok() && b.ok()));
  }
  SECTION("it stays unknown") {
    auto options = at(0);
    options.join_timeout = 800ms;
    const auto zero = begin_join(options).get();
    REQUIRE_FALSE(zero.ok());
    CHECK(zero.failure().kind == error_kind::node_lost);
    CHECK_THAT(zero.message(),
               Catch::Contains("did not join within 0.8 s: host 'late-host.test': "));
  }
  late_address = nullptr;
}

TEST_CASE("Nodes with the same key join, whether or not the key file ends with a newline") {
  const test::scratch_folder folder;
  job secured{2};
  secured.use_key(write_key(folder / "key", "0123456789abcdef0123456789abcdef\n"));
  auto zero = begin_join(secured.options(0));
  auto other = secured.options(1);
  other.key_file = write_key(folder / "key2", "0123456789abcdef0123456789abcdef");
  auto one = begin_join(other);
  CHECK(zero.get().ok());
  CHECK(one.get().ok());
}

TEST_CASE("The clock offset of two nodes on one machine is almost zero") {
  job all{2};
  auto members = join_all(all, 2);
  CHECK(members[0]->clock_offset() == 0ns);
  // Half of the quickest of eight round trips through two threads.
  CHECK(std::abs(members[1]->clock_offset().count()) < 5'000'000);
  leave_all(members);
}

TEST_CASE("After the join timeout, every process names the missing nodes") {
  job incomplete{4};
  auto options = incomplete.options(0);
  options.join_timeout = 600ms;
  auto zero = begin_join(options);
  auto two = begin_join(incomplete.options(2));
  const auto of_zero = zero.get();
  const auto of_two = two.get();
  REQUIRE_FALSE(of_zero.ok());
  REQUIRE_FALSE(of_two.ok());
  const auto missing =
      "the 4 nodes of the job did not join within 0.6 s: waiting for "
      "nodes 1, 3 (listening on 127.0.0.1:" +
      std::to_string(incomplete.port()) + ")";
  CHECK(of_zero.message() == "node 0: " + missing);
  CHECK(of_two.message() == "node 2: node 0 gave up: " + missing);
}

TEST_CASE("After a join timeout on any node, all nodes may join again") {
  job incomplete{3};
  std::vector<std::future<joined>> joining;
  for (const std::uint32_t node : {0u, 1u}) {
    auto options = incomplete.options(node);
    if (node == 0) options.join_timeout = 600ms;
    joining.push_back(begin_join(options));
  }
  for (auto& one : joining) {
    const auto failed = one.get();
    REQUIRE_FALSE(failed.ok());
    CHECK(failed.failure().kind == error_kind::node_lost);
  }
}

TEST_CASE("A node that disconnects while others join is reported at once, and may join again") {
  job all{3};
  lines reports;
  const auto options = [&](std::uint32_t node) {
    auto o = all.options(node);
    o.on_gone_early = [&reports, node](const std::string& line) {
      reports.add("node " + std::to_string(node) + " says: " + line);
    };
    return o;
  };
  auto zero = begin_join(options(0));
  // The end of a handshake is not visible from outside, so the time grows until it suffices.
  for (auto stay = 50ms; reports.count() == 0 && stay < 5s; stay *= 2) {
    std::stop_source stop;
    auto early = options(1);
    early.stop = stop.get_token();
    auto one = begin_join(early);
    std::this_thread::sleep_for(stay);
    stop.request_stop();
    CHECK_FALSE(one.get().ok());
    eventually([&] { return reports.count() > 0; }, 200ms);
  }
  CHECK(reports.all() ==
        std::vector<std::string>{"node 0 says: node 1 (stage 1) disconnected before the job began: "
                                 "connection closed; waiting for it to join again"});
  auto one = begin_join(options(1));
  auto two = begin_join(options(2));
  CHECK(zero.get().ok());
  CHECK(one.get().ok());
  CHECK(two.get().ok());
  CHECK(reports.count() == 1);
}

TEST_CASE("If node 0 is killed while others join, they report it, and it may start again") {
  const auto rendezvous = *listen_on_loopback();
  const auto start = [&](std::uint32_t node) {
    return std::make_unique<test::program>(std::vector<std::string>{
        RRFP_MEMBERSHIP_NODE, std::to_string(node), "3", std::to_string(rendezvous.port),
        std::to_string(node == 0 ? rendezvous.fd : -1), "leave"});
  };
  lines reports;
  membership_options options;
  options.nodes = 3;
  options.node = node_id{1};
  options.rendezvous_port = rendezvous.port;
  options.job_id = "test";
  options.version = "1";
  options.on_gone_early = [&](const std::string& line) { reports.add(line); };
  auto one = begin_join(options);
  for (auto stay = 100ms; reports.count() == 0 && stay < 5s; stay *= 2) {
    auto zero = start(0);
    std::this_thread::sleep_for(stay);
    zero->signal(SIGKILL);
    zero->wait();
    eventually([&] { return reports.count() > 0; }, 200ms);
  }
  CHECK(reports.all() ==
        std::vector<std::string>{"node 0 disconnected before the job began: connection "
                                 "closed; waiting for it to join again"});
  const auto zero = start(0);
  const auto two = start(2);
  const auto member = one.get();
  REQUIRE(member.ok());
  (*member)->leave();
  CHECK(zero->wait().code == 0);
  CHECK(two->wait().code == 0);
  ::close(rendezvous.fd);
}

TEST_CASE("A node whose join times out says what it waited for") {
  job incomplete{3};
  auto zero = begin_join(incomplete.options(0));
  auto options = incomplete.options(1);
  options.join_timeout = 600ms;
  const auto one = begin_join(options).get();
  REQUIRE_FALSE(one.ok());
  CHECK(one.message() ==
        "node 1: the 3 nodes of the job did not join within 0.6 s: node 0 is "
        "waiting for node 2");
  // Its node number is available again, so the job can still begin.
  auto again = begin_join(incomplete.options(1));
  auto two = begin_join(incomplete.options(2));
  CHECK(zero.get().ok());
  CHECK(again.get().ok());
  CHECK(two.get().ok());
}

TEST_CASE("A node that finds no listener names the rendezvous") {
  job nobody{2};
  auto options = nobody.options(1);
  ::close(nobody.listen_fd());
  options.join_timeout = 300ms;
  const auto one = begin_join(options).get();
  REQUIRE_FALSE(one.ok());
  CHECK(one.failure().kind == error_kind::node_lost);
  CHECK(one.message() ==
        "node 1: the 2 nodes of the job did not join within 0.3 s: cannot "
        "connect to the rendezvous 127.0.0.1:" +
            std::to_string(options.rendezvous_port) + ": Connection refused");
}

TEST_CASE("An interrupt ends a join that waits") {
  const auto waiter =
      GENERATE("node 0 waits for nodes", "a node waits for node 0", "a node waits for others");
  INFO(waiter);
  job incomplete{3};
  std::stop_source stop;
  std::optional<std::future<joined>> zero;
  auto options = incomplete.options(waiter[0] == 'n' ? 0 : 1);
  if (waiter[0] == 'a' && std::string{waiter}.ends_with("node 0")) ::close(incomplete.listen_fd());
  if (std::string{waiter}.ends_with("others")) zero = begin_join(incomplete.options(0));
  options.stop = stop.get_token();
  auto waiting = begin_join(options);
  std::this_thread::sleep_for(300ms);
  const auto begun = clock::now();
  stop.request_stop();
  const auto ended = waiting.get();
  CHECK(seconds_since(begun) < 0.1);
  REQUIRE_FALSE(ended.ok());
  CHECK(ended.message().find("interrupted while joining: ") != std::string::npos);
  if (zero) {
    auto one = begin_join(incomplete.options(1));
    auto two = begin_join(incomplete.options(2));
    CHECK(zero->get().ok());
  }
}

TEST_CASE("An address that is not loopback requires a key, on either side") {
  job open{2};
  auto listens = open.options(0);
  ::close(std::exchange(listens.listen_fd, -1));
  listens.rendezvous_host = "0.0.0.0";
  listens.rendezvous_port = 0;
  const auto zero = begin_join(listens).get();
  REQUIRE_FALSE(zero.ok());
  CHECK(zero.message() ==
        "node 0: listening on 0.0.0.0:0 requires a key, in transport.key_file or the variable "
        "RRFP_KEY: without one a job may listen on a loopback address only (127.0.0.1)");

  auto calls = open.options(1);
  calls.rendezvous_host = "192.0.2.1";
  const auto one = begin_join(calls).get();
  REQUIRE_FALSE(one.ok());
  CHECK(one.message() == "node 1: joining at 192.0.2.1:" + std::to_string(open.port()) +
                             " requires a key, in transport.key_file or the variable RRFP_KEY: "
                             "without one a job may use "
                             "a loopback address only");

  const int wide = ::socket(AF_INET, SOCK_STREAM, 0);
  REQUIRE(::listen(wide, 8) == 0);  // unbound: any address, a free port
  job handed{2};
  auto with_socket = handed.options(0);
  ::close(std::exchange(with_socket.listen_fd, wide));
  const auto refused = begin_join(with_socket).get();
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.message().find("requires a key: set transport.key_file or RRFP_KEY") !=
        std::string::npos);
}

TEST_CASE("With a key a job may listen on every address") {
  const test::scratch_folder folder;
  job open{2};
  open.use_key(write_key(folder / "key", std::string(32, 'k')));
  std::uint16_t port = 0;
  const int wide = ::socket(AF_INET, SOCK_STREAM, 0);
  REQUIRE(::listen(wide, 8) == 0);
  sockaddr_in at{};
  socklen_t size = sizeof at;
  REQUIRE(::getsockname(wide, reinterpret_cast<sockaddr*>(&at), &size) == 0);
  port = ntohs(at.sin_port);
  auto listens = open.options(0);
  ::close(std::exchange(listens.listen_fd, wide));
  auto zero = begin_join(listens);
  auto calls = open.options(1);
  calls.rendezvous_port = port;
  auto one = begin_join(calls);
  CHECK(zero.get().ok());
  CHECK(one.get().ok());
}

TEST_CASE("Without a key file, the key is that of the variable RRFP_KEY") {
  const test::scratch_folder folder;
  const auto set_key = [](const std::string& text) { ::setenv("RRFP_KEY", text.c_str(), 1); };
  const auto outcome = [&](const std::string& file_of_zero) {
    job open{2};
    const int wide = ::socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(::listen(wide, 8) == 0);
    sockaddr_in at{};
    socklen_t size = sizeof at;
    REQUIRE(::getsockname(wide, reinterpret_cast<sockaddr*>(&at), &size) == 0);
    auto listens = open.options(0);
    listens.key_file = file_of_zero;
    listens.join_timeout = 2s;
    ::close(std::exchange(listens.listen_fd, wide));
    auto zero = begin_join(listens);
    auto calls = open.options(1);
    calls.rendezvous_port = ntohs(at.sin_port);
    auto one = begin_join(calls).get();
    auto first = zero.get();
    std::string text;  // of either side, which may tell the other one or just be gone
    for (const auto* side : {&one, &first})
      if (!side->ok()) text += side->message() + "\n";
    return text;
  };
  const std::string key = "a key of more than sixteen bytes";
  set_key(key);
  CHECK(outcome("") == "");
  CHECK(outcome(write_key(folder / "same", key + "\n")) == "");
  const auto refused = outcome(write_key(folder / "other", good_key));
  CHECK(refused.find("key refused") != std::string::npos);
  CHECK(refused.find(key) == std::string::npos);
  set_key("fifteen bytes..");
  CHECK(outcome("").find("variable RRFP_KEY: expected 16 to 4096 bytes, got 15") !=
        std::string::npos);
  set_key(std::string(4097, 'k'));
  CHECK(outcome("").find("variable RRFP_KEY: expected 16 to 4096 bytes, got more") !=
        std::string::npos);
  set_key("");
  CHECK(outcome("").find("requires a key") != std::string::npos);
  ::unsetenv("RRFP_KEY");
}

TEST_CASE("A key file that is readable for others, too short, too long or missing is an error") {
  const test::scratch_folder folder;
  const auto message_of = [&](const std::string& file) {
    job secured{2};
    secured.use_key(file);
    const auto zero = membership::join(secured.options(0));
    REQUIRE_FALSE(zero.ok());
    return zero.message();
  };
  const auto wide = write_key(folder / "wide", std::string(32, 'k'), 0644);
  CHECK(message_of(wide) == "key file '" + wide +
                                "': expected access for the owner only (mode 0600), "
                                "got mode 0644: run chmod 600");
  const auto group = write_key(folder / "group", std::string(32, 'k'), 0640);
  CHECK(message_of(group).find("got mode 0640") != std::string::npos);
  const auto brief = write_key(folder / "short", "fifteen bytes..\n");
  CHECK(message_of(brief) == "key file '" + brief + "': expected 16 to 4096 bytes, got 15");
  const auto big = write_key(folder / "long", std::string(4097, 'k'));
  CHECK(message_of(big) == "key file '" + big + "': expected 16 to 4096 bytes, got more");
  CHECK(message_of(folder / "none") ==
        "key file '" + folder / "none" + "': No such file or directory");
  CHECK(message_of(folder / "") == "key file '" + folder / "" + "': expected a regular file");
}

TEST_CASE("An impossible option is an error that says what was expected") {
  const auto message_of = [](auto change) {
    membership_options o;
    o.nodes = 2;
    o.node = node_id{1};
    change(o);
    const auto got = membership::join(o);
    REQUIRE_FALSE(got.ok());
    return got.message();
  };
  CHECK(message_of([](auto& o) { o.nodes = 0; }) == "number of nodes: expected 1 to 4096, got 0");
  CHECK(message_of([](auto& o) { o.node = node_id{2}; }) == "node: expected 0 to 1, got 2");
  CHECK(message_of([](auto& o) { o.node_timeout = 500ms; }) ==
        "node timeout: expected three heartbeats of 200 ms or more, got 500 ms");
  CHECK(message_of([](auto& o) { o.listen_fd = ::dup(0); }) ==
        "only node 0 may have a listening socket");
  CHECK(message_of([](auto& o) { o.job_id = std::string(257, 'j'); }) ==
        "a job name of 257 bytes, expected 256 at most");
}

}  // namespace rrfp::actors::testing
