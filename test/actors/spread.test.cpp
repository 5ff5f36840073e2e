// A session over several nodes, here threads of one process that use the real membership and
// transport: microbatches of different lengths give the same bits as one process.
#include <future>

#include <rrfp/actors/checkpoint_tensors.hpp>
#include <rrfp/job/node_places.hpp>
#include <rrfp/membership/membership.hpp>
#include <rrfp/study/blocking_sends.hpp>
#include <rrfp/torch/tensors.hpp>

#include "program.hpp"
#include "small_session.hpp"

// Last: libtorch has a CHECK of its own.
#include <catch2/catch.hpp>

namespace rrfp::actors::test::spread {

namespace {

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

run_result ended(ending how, std::string message) {
  run_result nothing;
  nothing.how = how;
  nothing.message = std::move(message);
  return nothing;
}

run_result join_and_run(const choice_of_run& c, const std::string& tls,
                        const membership_options& seat) {
  auto members = membership::join(seat);
  if (!members) return ended(ending::node_lost, members.message());
  job::job j;
  j.pipeline.stages = c.shape.stages;
  auto places = job::node_places::make(j, seat.nodes);
  job::transport_options transport;
  transport.tls = tls;
  auto opened = session::open(small_setup(c, compute::test::small_model(), three_steps()),
                              cluster{members->get(), *places, transport, {7, {}}, 0});
  if (!opened) return ended(ending::failed, opened.message());
  auto result = (*opened)->run();
  (*members)->leave();
  return result;
}

/// Runs on `nodes` nodes and returns the result of node 0.
run_result run_on_nodes(const choice_of_run& c, std::uint32_t nodes, const std::string& tls) {
  const auto listening = *listen_on_loopback();
  std::vector<std::future<run_result>> others;
  membership_options seat;
  seat.nodes = nodes;
  seat.rendezvous_port = listening.port;
  seat.job_id = "spread";
  for (std::uint32_t n = 1; n < nodes; ++n) {
    seat.node = node_id{n};
    others.push_back(std::async(std::launch::async, join_and_run, c, tls, seat));
  }
  seat.node = node_id{0};
  seat.listen_fd = listening.fd;
  auto result = join_and_run(c, tls, seat);
  for (auto& other : others) {
    const auto end = other.get();
    INFO(end.message);
    CHECK(end.how == ending::done);
  }
  return result;
}

/// The weights of a model as a checkpoint of one rank.
checkpoint::found_checkpoint saved_weights(const std::string& folder,
                                           const job::model_options& model) {
  const auto chunk =
      compute::make_model_chunk(model, compute::test::nth_part(model, 0, 1), 1).value();
  std::vector<compute::named_buffer> tensors;
  for (const auto& p : chunk->parameters())
    tensors.push_back({p.name, compute::to_buffer(p.value.detach()), p.part, p.stored});
  checkpoint::found_checkpoint made{folder, {}};
  made.contents.step = 1;
  made.contents.files.push_back(write_rank(folder, stage_id{0}, rank_id{0}, 1, tensors).value());
  return made;
}

/// What session::open() says on each of two nodes.
std::vector<std::string> restored_on_two_nodes(const checkpoint::found_checkpoint& from) {
  const auto open = [&](const membership_options& seat) -> std::string {
    auto members = membership::join(seat);
    if (!members) return members.message();
    const choice_of_run c{{4, 1, microbatches, placement::linear}};
    job::job j;
    j.pipeline.stages = c.shape.stages;
    auto places = job::node_places::make(j, seat.nodes);
    auto setup = small_setup(c, compute::test::small_model(), three_steps());
    setup.resume = from;
    const auto opened =
        session::open(std::move(setup), cluster{members->get(), *places, {}, {7, {}}, 0});
    (*members)->leave();
    return opened ? "restored" : opened.message();
  };
  const auto listening = *listen_on_loopback();
  membership_options seat;
  seat.nodes = 2;
  seat.rendezvous_port = listening.port;
  seat.job_id = "restored";
  seat.node = node_id{1};
  auto other = std::async(std::launch::async, open, seat);
  seat.node = node_id{0};
  seat.listen_fd = listening.fd;
  auto mine = open(seat);
  return {mine, other.get()};
}

}  // namespace

TEST_CASE("all nodes name the tensor of a checkpoint that none of them has") {
  const rrfp::test::scratch_folder folder;
  auto model = compute::test::small_model();
  const auto same = saved_weights(folder / "", model);
  CHECK(restored_on_two_nodes(same) == std::vector<std::string>(2, "restored"));
  ++model.layers;
  for (const auto& message : restored_on_two_nodes(saved_weights(folder / "", model))) {
    INFO(message);
    CHECK(message.starts_with((folder / "") + ": tensor '"));
    CHECK(message.ends_with("': expected in the model, which has no such parameter"));
  }
}

TEST_CASE(
    "microbatches of different lengths give the same bits on several nodes as in one process") {
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

TEST_CASE("blocking sends give the same bits on several nodes as in one process") {
  choice_of_run c{
      {4, 1, microbatches, placement::linear}, dispatch_mode::in_order, "one_f_one_b", 5};
  const auto expected = run_here(c);
  REQUIRE(expected.how == ending::done);
  c.change = &study::block_sends;
  for (const std::uint32_t nodes : {2U, 4U}) {
    INFO(nodes << " nodes");
    const auto result = run_on_nodes(c, nodes, "auto");
    INFO(result.message);
    REQUIRE(result.how == ending::done);
    CHECK(result.summary.losses_xxh64 == expected.summary.losses_xxh64);
    CHECK(result.summary.weights_xxh64 == expected.summary.weights_xxh64);
    for (const auto& stage : result.summary.stages) CHECK(stage.blocked_ms > 0);
  }
}

}  // namespace rrfp::actors::test::spread
