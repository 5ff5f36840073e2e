/// What the actor of a node tells the job.
#include <rrfp/actors/stage/node_actor.hpp>

// Last: libtorch has a CHECK of its own.
#include <catch2/catch.hpp>

using namespace rrfp;
using namespace rrfp::actors;

TEST_CASE(
    "pieces of copies are progress, on their node and for the job, which hears little of them") {
  caf::actor_system_config config;
  caf::actor_system system{config};
  std::atomic<int> heard = 0;
  const auto job = system.spawn(
      [](caf::event_based_actor* self, std::atomic<int>* count) -> caf::behavior {
        return {[=](const copies_arrive&) { ++*count; }, [=](const failed&) { self->quit(); }};
      },
      &heard);
  const auto context = std::make_shared<run_context>();
  context->counters = std::make_shared<metrics::run_counters>();
  const auto node = actors::spawn<node_actor>(system, hosted_actors{}, actor_ref{job}, context,
                                              [](const job_ended&) {});
  CHECK(context->silence() > 1'000'000'000);  // never any progress
  for (int i = 0; i < 100; ++i) post(node, copy_piece{{4, stage_id{0}, rank_id{0}}, 0, "bytes"});
  post(node, node_lost{"the others have left"});
  system.await_all_actors_done();
  CHECK(context->silence() < 60'000'000'000);
  CHECK(heard >= 1);
  CHECK(heard < 100);
}
