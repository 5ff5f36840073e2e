// Blocking sends: the transport alone, and runs of the real runtime.
#include <vector>

#include <rrfp/study/blocking_sends.hpp>

#include "run_setup.hpp"

#include "run_session.hpp"

namespace {

using namespace rrfp;
using namespace rrfp::actors;
using namespace rrfp::actors::test;

message_header header_of(std::uint32_t mb) {
  return {payload::activation,       step_id{0},
          microbatch_id{mb},         chunk_id{0},
          {stage_id{0}, rank_id{0}}, {stage_id{1}, rank_id{0}}};
}

/// Records when messages arrive and when their senders are notified.
struct recorded_wire {
  recorded_wire() : wire(make_in_process_transport(), {}, {}) {
    wire.bind({stage_id{0}, rank_id{0}}, [](message) {});
    wire.bind({stage_id{1}, rank_id{0}}, [this](message m) {
      events.push_back("arrived " + std::to_string(m.header.mb.value()));
    });
  }
  void send(std::uint32_t mb) {
    wire.send_output({header_of(mb), make_host_buffer(dtype::float32, {1})},
                     [this, mb] { events.push_back("received " + std::to_string(mb)); });
  }

  std::vector<std::string> events;
  study::blocking_transport wire;
};

using events = std::vector<std::string>;

session_setup blocking_setup(const pipeline_shape& shape, const std::string& policy,
                             double link_ms) {
  job::train_options train;
  train.steps = 2;
  auto s = run_setup({shape, dispatch_mode::in_order, policy}, train);
  s.emulated = emulated_device{
      [](step_id, const rank_address&, const task&) { return 1.0; },
      [](step_id, replica_id, virtual_stage_id, const task&) { return std::int64_t{16}; }, 1};
  s.delays.link = [link_ms](step_id, virtual_stage_id, const rank_address&, const task&) {
    return link_ms;
  };
  study::block_sends(s);
  return s;
}

}  // namespace

TEST_CASE("a message leaves when both ends have posted, in either order") {
  recorded_wire recorded;
  recorded.send(0);
  CHECK(recorded.events.empty());
  recorded.wire.post_receive(header_of(0));
  CHECK(recorded.events == events{"arrived 0", "received 0"});
  recorded.wire.post_receive(header_of(1));
  CHECK(recorded.events.size() == 2);
  recorded.send(1);
  CHECK(recorded.events == events{"arrived 0", "received 0", "arrived 1", "received 1"});
}

TEST_CASE("a receive releases only the message that it names") {
  recorded_wire recorded;
  recorded.send(0);
  recorded.send(1);
  recorded.wire.post_receive(header_of(1));
  CHECK(recorded.events == events{"arrived 1", "received 1"});
  auto gradient = header_of(0);
  gradient.kind = payload::gradient;
  recorded.wire.post_receive(gradient);
  CHECK(recorded.events.size() == 2);
  recorded.wire.close();
}

TEST_CASE("every fixed schedule of one chunk completes with blocking sends, with 1 and 2 ranks") {
  for (const auto* policy : {"one_f_one_b", "gpipe", "zb_h1"})
    for (const std::uint32_t ranks : {1U, 2U}) {
      INFO(policy << ", " << ranks << " ranks");
      auto setup = blocking_setup({4, 1, 8, placement::linear}, policy, 0.2);
      setup.ranks = ranks;
      const auto r = run_session(std::move(setup));
      INFO(r.message);
      REQUIRE(r.how == ending::done);
      CHECK(r.summary.steps == 2);
    }
}

TEST_CASE("a stage is blocked for at least the time that its messages take") {
  const pipeline_shape shape{3, 1, 6, placement::linear};
  const auto r = run_session(blocking_setup(shape, "one_f_one_b", 3));
  REQUIRE(r.how == ending::done);
  const double steps = 2;
  // Stage 0 sends each activation, stage 2 each gradient, stage 1 both.
  CHECK(r.summary.stages[0].blocked_ms >= steps * 6 * 3);
  CHECK(r.summary.stages[1].blocked_ms >= steps * 12 * 3);
  CHECK(r.summary.stages[2].blocked_ms >= steps * 6 * 3);
  auto free = blocking_setup(shape, "one_f_one_b", 3);
  free.wrap_outputs = nullptr;
  for (const auto& stage : run_session(std::move(free)).summary.stages)
    CHECK(stage.blocked_ms == 0);
}
