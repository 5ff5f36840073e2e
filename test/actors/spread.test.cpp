// A session spread over nodes, here threads of one process with all that lies between nodes:
// microbatches of different lengths cross as they are, and the bits are those of one process.
#include <future>

#include <rrfp/actors/membership.hpp>
#include <rrfp/plan/node_places.hpp>

#include "small_session.hpp"

// Last: libtorch has a CHECK of its own.
#include <catch2/catch.hpp>

namespace {

using namespace rrfp;
using namespace rrfp::actors;
using namespace rrfp::actors::test;

constexpr std::uint32_t microbatches = 6;

job::train_options three_steps() {
  auto t = compute::test::small_train();
  t.steps = 3;
  return t;
}

run_result run_here(const choice_of_run& c) {
  auto opened = session::open(small_setup(c, compute::test::small_model(), three_steps()));
  REQUIRE(opened.ok());
  return (*opened)->run();
}

run_result join_and_run(const choice_of_run& c, const std::string& tls,
                        const membership_options& seat) {
  auto members = membership::join(seat, "");
  if (!members) return {ending::node_lost, members.message(), {}, {}};
  job::job j;
  j.pipeline.stages = c.shape.stages;
  auto places = plan::node_places::make(j, seat.nodes);
  job::transport_options transport;
  transport.tls = tls;
  auto opened = session::open(small_setup(c, compute::test::small_model(), three_steps()),
                              cluster{members->get(), *places, transport, 7, 0});
  if (!opened) return {ending::failed, opened.message(), {}, {}};
  auto result = (*opened)->run();
  (*members)->leave();
  return result;
}

/// What node 0 of so many says.
run_result run_on_nodes(const choice_of_run& c, std::uint32_t nodes, const std::string& tls) {
  const auto listening = *listen_on_loopback();
  std::vector<std::future<run_result>> others;
  membership_options seat;
  seat.nodes = nodes;
  seat.rendezvous_port = listening.port;
  seat.job_id = "spread";
  for (std::uint32_t n = 1; n < nodes; ++n) {
    seat.rank = node_id{n};
    others.push_back(std::async(std::launch::async, join_and_run, c, tls, seat));
  }
  seat.rank = node_id{0};
  seat.listen_fd = listening.fd;
  auto result = join_and_run(c, tls, seat);
  for (auto& other : others) {
    const auto end = other.get();
    INFO(end.message);
    CHECK(end.how == ending::done);
  }
  return result;
}

}  // namespace

TEST_CASE("microbatches of different lengths train over nodes to the bits of one process") {
  const std::string tls = GENERATE("auto", "tcp");
  const pipeline_shape shape{4, 1, microbatches, placement::linear};
  const auto expected = run_here({shape});
  REQUIRE(expected.how == ending::done);
  for (const std::uint32_t nodes : {2U, 4U})
    for (const auto mode : {dispatch_mode::in_order, dispatch_mode::ready})
      for (const std::uint64_t weather : {0U, 5U}) {
        INFO(nodes << " nodes, " << name(mode) << ", weather " << weather);
        const auto result = run_on_nodes({shape, mode, "zb_h1", weather}, nodes, tls);
        INFO(result.message);
        REQUIRE(result.how == ending::done);
        CHECK(result.summary.losses_xxh64 == expected.summary.losses_xxh64);
        CHECK(result.summary.weights_xxh64 == expected.summary.weights_xxh64);
      }
}
