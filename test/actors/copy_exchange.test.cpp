/// The copies of a node on their way.
#include <rrfp/actors/recovery/copy_exchange.hpp>

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
  const session_setup setup;
  run_context context{setup};
  context.counters = std::make_shared<metrics::run_counters>();
  context.actors.bind({actor_kind::job}, job);
  CHECK(context.silence() > 1'000'000'000);  // never any progress
  {
    copy_exchange copies{{1, std::make_shared<copy_store>(), {}}, context, node_id{0}, {}};
    const message_header of{payload::copy_piece, step_id{4}, {}, {}, {}, copies_at(node_id{0})};
    for (int i = 0; i < 100; ++i) copies.on_piece({of, make_host_buffer(dtype::uint8, {5})});
    while (heard == 0) std::this_thread::yield();
    copies.close();
  }
  post(job, failed{});
  system.await_all_actors_done();
  CHECK(context.silence() < 60'000'000'000);
  CHECK(heard < 100);
}
