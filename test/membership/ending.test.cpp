/// The end of a job whose lost nodes are replaced: replacements that come after it, and processes
/// that were replaced.
#include <atomic>
#include <csignal>

#include <sys/wait.h>

#include "support.hpp"

namespace rrfp::actors {
namespace {

using namespace testing;

using standing = std::shared_ptr<process_standing>;

standing fenced() { return std::make_shared<process_standing>(true); }

/// Node 0 listens at the port of the job, so that its replacement can, too.
membership_options options_of(job& j, std::uint32_t node, standing of) {
  auto o = j.options(node == 0 ? 1 : node);
  o.node = node_id{node};
  o.description = "stage " + std::to_string(node);
  o.standing = std::move(of);
  o.telling_max = 10s;
  return o;
}

/// Two nodes that have joined.
struct pair {
  explicit pair(job& j) {
    ::close(j.listen_fd());
    auto first = begin_join(options_of(j, 0, of_0));
    auto second = begin_join(options_of(j, 1, of_1));
    node_0 = *first.get();
    node_1 = *second.get();
  }
  /// Agrees on the end.
  void finish() const {
    auto other = std::async(std::launch::async, [&] { return node_1->finish(10s).ok(); });
    REQUIRE(node_0->finish(10s).ok());
    REQUIRE(other.get());
  }

  standing of_0 = fenced(), of_1 = fenced();
  std::unique_ptr<membership> node_0, node_1;
};

TEST_CASE("the replacement of a node that was lost at the very end is told that the job is over") {
  job j{2};
  pair both{j};
  both.finish();
  both.node_1.reset();  // without a word
  CHECK_FALSE(both.node_0->loss(300ms).has_value());
  auto left = std::async(std::launch::async, [&] { both.node_0->leave(20s); });
  const auto replacement = fenced();
  CHECK_FALSE(begin_join(options_of(j, 1, replacement)).get().ok());
  CHECK(replacement->is_over());
  CHECK(left.wait_for(5s) == std::future_status::ready);
}

TEST_CASE("the replacement of a node 0 that was lost at the very end is told by the others") {
  job j{2};
  pair both{j};
  both.finish();
  both.node_0.reset();
  auto left = std::async(std::launch::async, [&] { both.node_1->leave(20s); });
  const auto replacement = fenced();
  CHECK_FALSE(begin_join(options_of(j, 0, replacement)).get().ok());
  CHECK(replacement->is_over());
  CHECK(left.wait_for(5s) == std::future_status::ready);
}

TEST_CASE("the replacement of node 0 knows the end even if all others have ended, too") {
  job j{2};
  const auto options = [&j](std::uint32_t node, standing of) {
    auto o = options_of(j, node, std::move(of));
    o.telling_max = 2s;
    return o;
  };
  ::close(j.listen_fd());
  const auto child = ::fork();
  if (child == 0) {
    auto members = membership::join(options(0, fenced()));
    if (members.ok() && (*members)->finish(10s).ok()) (*members)->leave(20s);
    ::_exit(0);
  }
  auto node_1 = *begin_join(options(1, fenced())).get();
  REQUIRE(node_1->finish(10s).ok());
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  node_1.reset();  // without a word
  const auto replacement = fenced();
  CHECK_FALSE(begin_join(options(0, replacement)).get().ok());
  CHECK(replacement->is_over());
  // Once: the next run of the same job begins.
  auto first = begin_join(options(0, fenced()));
  CHECK(begin_join(options(1, fenced())).get().ok());
  CHECK(first.get().ok());
}

TEST_CASE("a node may end its process at the moment when nobody is left to be told of the end") {
  job j{2};
  pair both{j};
  both.finish();
  std::atomic<int> ended = 0;
  auto other = std::async(std::launch::async, [&] { both.node_1->leave(20s, [&] { ++ended; }); });
  both.node_0->leave(20s, [&] { ++ended; });
  other.get();
  CHECK(ended == 2);
  // Not while a replacement may still come.
  pair again{j};
  again.finish();
  again.node_1.reset();
  again.node_0->leave(300ms, [&] { ++ended; });
  CHECK(ended == 2);
}

TEST_CASE("a process that was declared lost may not join again, its replacement may") {
  job j{2};
  pair both{j};
  both.node_1.reset();
  REQUIRE(both.node_0->loss(10s).has_value());
  both.node_0.reset();
  auto first = begin_join(options_of(j, 0, both.of_0));
  const auto woken = begin_join(options_of(j, 1, both.of_1)).get();
  REQUIRE_FALSE(woken.ok());
  CHECK(woken.failure().kind == error_kind::node_lost);
  CHECK(both.of_1->is_lost());
  CHECK(begin_join(options_of(j, 1, fenced())).get().ok());
  CHECK(first.get().ok());
}

TEST_CASE("a replacement of node 0 finds the port in use as long as the process before it has it") {
  job j{2};
  pair both{j};
  const auto early = begin_join(options_of(j, 0, fenced())).get();
  REQUIRE_FALSE(early.ok());
  CHECK(early.failure().kind == error_kind::node_lost);
}

TEST_CASE("a node that waits says for whom") {
  job j{3};
  ::close(j.listen_fd());
  lines waiting;
  auto o = options_of(j, 0, fenced());
  o.join_timeout = 2500ms;
  o.on_waiting = [&](std::string text) { waiting.add(std::move(text)); };
  CHECK_FALSE(membership::join(o).ok());
  CHECK(waiting.any_with("waiting for nodes 1, 2"));
}

}  // namespace
}  // namespace rrfp::actors
