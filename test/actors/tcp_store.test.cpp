/// How nodes find the port of node 0 in the store of torchrun's agent, here a store in this
/// process.
#include <chrono>
#include <cstdlib>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <rrfp/torch_actors/tcp_store.hpp>

// Last: libtorch has a CHECK of its own.
#include <catch2/catch.hpp>

namespace rrfp::actors {
namespace {

using Catch::Matchers::Contains;
using namespace std::chrono_literals;

class agent {
 public:
  launch_place place(std::uint32_t node) const {
    return {2, node_id{node}, "127.0.0.1", server_->getPort(), true};
  }
  /// Whether a port was published after so many restarts.
  bool has_port_of_restart(int restarts) const {
    for (int i = 0; i < 16; ++i)
      if (server_->check({fmt::format("rrfp/rendezvous/{}/{}", restarts, i)})) return true;
    return false;
  }

 private:
  static c10d::TCPStoreOptions options() {
    c10d::TCPStoreOptions o;
    o.port = 0;
    o.isServer = true;
    o.waitWorkers = false;
    return o;
  }
  c10::intrusive_ptr<c10d::TCPStore> server_ =
      c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options());
};

TEST_CASE("a node waits in the store for the port of node 0") {
  const agent torchrun;
  // Objects made one after the other in one process are of different rendezvous.
  auto waiting = connect_tcp_store(torchrun.place(1), 10s);
  REQUIRE(waiting.ok());
  std::stop_source stop;
  stop.request_stop();
  CHECK((*waiting)->find(stop.get_token()).failure().kind == error_kind::interrupted);

  auto other = connect_tcp_store(torchrun.place(0), 200ms);
  REQUIRE(other.ok());
  REQUIRE((*other)->publish(4321).ok());
  CHECK((*other)->find({}).value() == 4321);
  CHECK(!(*waiting)->find(stop.get_token()));

  auto late = connect_tcp_store(torchrun.place(1), 200ms);
  REQUIRE(late.ok());
  const auto none = (*late)->find({});
  CHECK(none.failure().kind == error_kind::node_lost);
  CHECK_THAT(none.message(), Contains("the store of torchrun at 127.0.0.1:") &&
                                 Contains("node 0 did not publish its port in time"));
}

TEST_CASE("processes that torchrun has started again do not find the port from before") {
  const agent torchrun;
  for (const int restarts : {0, 1}) {
    CHECK(!torchrun.has_port_of_restart(restarts));
    ::setenv("TORCHELASTIC_RESTART_COUNT", std::to_string(restarts).c_str(), 1);
    REQUIRE(connect_tcp_store(torchrun.place(0), 10s).value()->publish(4321).ok());
    CHECK(torchrun.has_port_of_restart(restarts));
  }
  ::unsetenv("TORCHELASTIC_RESTART_COUNT");
}

TEST_CASE("a store that does not answer is an error in time") {
  const launch_place place{2, node_id{1}, "127.0.0.1", 1, true};
  const auto store = connect_tcp_store(place, 300ms);
  REQUIRE(!store);
  CHECK(store.failure().kind == error_kind::node_lost);
  CHECK_THAT(store.message(), Contains("the store of torchrun at 127.0.0.1:1: "));
  CHECK_THAT(store.message(), !Contains("\n"));
}

}  // namespace
}  // namespace rrfp::actors
