/// Messages to actors on other nodes: encoded and back, bytes that are none, and messages that do
/// not fit the run. More of it: test/fuzz/targets/actor_message.cpp.
#include <random>

#include <rrfp/actors/control/messages.hpp>

// Last: libtorch has a CHECK of its own.
#include <catch2/catch.hpp>

namespace {

using namespace rrfp;
using namespace rrfp::actors;

/// An actor that keeps what arrives.
template <class Message>
struct mailbox {
  std::vector<Message> got;
  caf::actor_system_config config;
  std::unique_ptr<caf::actor_system> system = std::make_unique<caf::actor_system>(config);
  // CAF reads a tuple of no arguments through a null pointer, so there is one.
  caf::actor actor = system->spawn(
      [](caf::event_based_actor* self, mailbox* m) -> caf::behavior {
        self->set_default_handler(caf::drop);
        return {[self, m](Message& message) {
          m->got.push_back(std::move(message));
          self->quit();
        }};
      },
      this);
  const std::vector<Message>& read() {
    system->await_all_actors_done();
    return got;
  }
};

const actor_address stage_3 = supervisor_of(replica_id{1}, stage_id{3});
const message_ranges ranges_of_run{{4, 2, 8, placement::interleaved}, 4, 2, 3};

/// Of node `here`; the ranks are on node 2.
directory directory_of(node_id here, directory::send_function send,
                       const message_ranges& r = ranges_of_run) {
  return {here, [](const rank_address&) { return node_id{2}; }, std::move(send), r};
}

/// The bytes of a post from node 0 to stage 3.
template <class Message>
std::string encoded_message(Message m) {
  std::string sent;
  const auto here = directory_of(node_id{0}, [&](node_id to, std::string message) {
    CHECK(to == node_id{2});
    sent = std::move(message);
  });
  post(here.find(stage_3), std::move(m));
  return sent;
}

/// Why a run refuses this message; empty: it does not.
template <class Message>
std::string refusal_of(Message m, const message_ranges& r = ranges_of_run) {
  mailbox<Message> box;
  auto there = directory_of(node_id{2}, {}, r);
  there.bind(stage_3, box.actor);
  const auto delivered = there.deliver(encoded_message(std::move(m)));
  there.close();
  if (!delivered) anon_send_exit(box.actor, caf::exit_reason::user_shutdown);
  CHECK(box.read().size() == (delivered ? 1 : 0));
  return delivered ? std::string{} : delivered.message();
}

stage_progress some_progress() {
  stage_progress m;
  m.state.stage = stage_id{3};
  m.state.core.microbatches = 8;
  m.state.core.progress.resize(16);
  return m;
}

stage_step_ended some_result() {
  stage_step_ended m;
  m.step = step_id{1};
  m.losses = {{microbatch_id{4}, 0.1, 77}, {microbatch_id{5}, -1e300, -1}};
  m.norms = {{{1, 2, 3}, 4.5}};
  m.peak_bytes = -5;
  m.last_end = std::int64_t{1} << 60;
  return m;
}

}  // namespace

TEST_CASE("A message to an actor of another node arrives there with all its members") {
  mailbox<stage_step_ended> box;
  auto there = directory_of(node_id{2}, {});
  there.bind(stage_3, box.actor);
  REQUIRE(there.deliver(encoded_message(some_result())).ok());
  const auto& got = box.read();
  REQUIRE(got.size() == 1);
  CHECK(got[0].step == step_id{1});
  REQUIRE(got[0].losses.size() == 2);
  CHECK(got[0].losses[1].mb == microbatch_id{5});
  CHECK(got[0].losses[1].mean == -1e300);
  REQUIRE(got[0].norms.size() == 1);
  CHECK(got[0].norms[0].at.rank == 3);
  CHECK(got[0].norms[0].squared == 4.5);
  CHECK(got[0].peak_bytes == -5);
  CHECK(got[0].last_end == std::int64_t{1} << 60);
  there.close();
}

TEST_CASE("A message to nobody, a cut one and random bytes are refused, and nothing is posted") {
  mailbox<failed> box;
  auto there = directory_of(node_id{2}, {});
  there.bind(stage_3, box.actor);
  const auto good = encoded_message(failed{{"why", error_kind::node_lost}});
  for (std::size_t size = 0; size < good.size(); ++size)
    CHECK_FALSE(there.deliver(good.substr(0, size)).ok());
  CHECK(there.deliver(good + "x").message() == "failed: its members do not have this size");
  auto nobody = good;
  nobody[1] = 9;  // the stage
  CHECK(there.deliver(nobody).message() == "its receiver is not on this node");
  auto unknown = good;
  unknown[13] = '\x7f';  // the code
  CHECK(there.deliver(unknown).message() == "no message has code 127");

  std::mt19937_64 random{1};
  const std::string messages[] = {good, encoded_message(some_result()),
                                  encoded_message(some_progress()),
                                  encoded_message(stage_weights{{}, {{}, {}}, {"a", "b"}})};
  for (int i = 0; i < 20'000; ++i) {
    auto message = messages[random() % std::size(messages)];
    for (std::uint64_t n = 1 + random() % 4; n > 0; --n)
      message[14 + random() % (message.size() - 14)] = static_cast<char>(random());
    // Another message than the actor expects stays unread in its mailbox.
    static_cast<void>(there.deliver(message));
  }
  box.read();
  there.close();
  CHECK(there.deliver("anything").ok());
}

TEST_CASE(
    "A message whose ids and kinds are not those of the run is refused, and the error says which") {
  begin_step begin{.step = step_id{1}, .microbatches = {{{9, 0}}}};
  CHECK(refusal_of(begin) == "");
  begin.microbatches = {{{9}}};
  CHECK(refusal_of(begin) == "begin_step: the counts of microbatches: expected 2, got 1");
  begin.microbatches = {{{9, microbatches_max + 1}}};
  CHECK(refusal_of(begin) == "begin_step: microbatches: expected less than 65537, got 65537");
  begin.purpose = static_cast<compute::step_purpose>(3);
  CHECK(refusal_of(begin) == "begin_step: a kind: expected less than 3, got 3");

  const auto arrival_of = [](task_kind kind, std::uint32_t mb, std::uint32_t chunk,
                             std::uint32_t rank) {
    return arrived{step_id{1}, {kind, microbatch_id{mb}, chunk_id{chunk}, rank_id{rank}}};
  };
  CHECK(refusal_of(arrival_of(task_kind::backward, 7, 1, 3)) == "");
  CHECK(refusal_of(arrival_of(task_kind::weight, 7, 1, 3)) ==
        "arrived: the kind of an arrival: expected less than 2, got 2");
  CHECK(refusal_of(arrival_of(task_kind::forward, microbatches_max, 1, 3)) ==
        "arrived: microbatch: expected less than 65536, got 65536");
  CHECK(refusal_of(arrival_of(task_kind::forward, 7, 2, 3)) ==
        "arrived: chunk: expected less than 2, got 2");
  CHECK(refusal_of(arrival_of(task_kind::forward, 7, 1, 4)) ==
        "arrived: rank: expected less than 4, got 4");

  launch_done done;
  done.launched.folds = {microbatch_id{65535}, 1};
  CHECK(refusal_of(done) == "");
  done.launched.folds = {microbatch_id{65535}, 2};
  CHECK(refusal_of(done) ==
        "launch_done: the end of the folds: expected less than 65537, got 65537");
  done.launched = {};
  done.launched.piece.count = 0;
  CHECK(refusal_of(done) == "launch_done: piece: expected less than 0, got 0");
  done.launched.piece = {};
  done.launched.pass = static_cast<forward_pass>(3);
  CHECK(refusal_of(done) == "launch_done: a kind: expected less than 3, got 3");

  CHECK(refusal_of(stage_weights{{stage_id{4}, rank_id{0}, replica_id{0}}, {}, {}}) ==
        "stage_weights: stage: expected less than 4, got 4");
  CHECK(refusal_of(stage_weights{{stage_id{0}, rank_id{0}, replica_id{2}}, {}, {}}) ==
        "stage_weights: replica: expected less than 2, got 2");
  CHECK(refusal_of(copy_offered{{0, stage_id{0}, rank_id{0}}, {node_id{3}, 1, 1}, 1}) ==
        "copy_offered: node: expected less than 3, got 3");
  CHECK(refusal_of(failed{{"why", static_cast<error_kind>(4)}}) ==
        "failed: a kind: expected less than 4, got 4");

  auto result = some_result();  // microbatches of losses are numbered over the replicas
  result.losses.push_back({microbatch_id{131'071}, 0, 1});
  CHECK(refusal_of(result) == "");
  result.losses.push_back({microbatch_id{131'072}, 0, 1});
  CHECK(refusal_of(result) ==
        "stage_step_ended: microbatch: expected less than 131072, got 131072");
}

TEST_CASE("A message whose tables are not as large as the run is refused") {
  auto progress = some_progress();
  CHECK(refusal_of(progress) == "");
  progress.state.core.microbatches = 9;
  CHECK(refusal_of(progress) == "stage_progress: progress: expected 18, got 16");
  progress.state.core.microbatches = 65537;
  CHECK(refusal_of(progress) ==
        "stage_progress: microbatches: expected less than 65537, got 65537");
  progress = some_progress();
  progress.state.core.progress.pop_back();
  CHECK(refusal_of(progress) == "stage_progress: progress: expected 16, got 15");
  progress = some_progress();
  progress.state.core.running.emplace_back();
  CHECK(refusal_of(progress) == "stage_progress: ages: expected 1, got 0");
  progress.state.ages.push_back(1);
  CHECK(refusal_of(progress) == "");
  progress.state.core.holders.emplace_back(65536);
  CHECK(refusal_of(progress) == "stage_progress: microbatch: expected less than 65536, got 65536");
}

TEST_CASE("A message about checkpoints or copies is refused by a run that makes none") {
  auto both = ranges_of_run;
  both.saves = both.copies = true;
  CHECK(refusal_of(take_snapshot{1}) == "take_snapshot: this run makes no checkpoints");
  CHECK(refusal_of(snapshot_taken{1}) == "snapshot_taken: this run makes no checkpoints");
  CHECK(refusal_of(snapshot_written{1, {}, 0, 0, {}}) ==
        "snapshot_written: this run makes no checkpoints");
  CHECK(refusal_of(restore_state{}) == "restore_state: this run makes no copies");
  CHECK(refusal_of(copy_state{1, 1}) == "copy_state: this run makes no copies");
  CHECK(refusal_of(copy_offered{}) == "copy_offered: this run makes no copies");
  CHECK(refusal_of(fetch_copy{}) == "fetch_copy: this run makes no copies");
  CHECK(refusal_of(keep_copies{}) == "keep_copies: this run makes no copies");
  CHECK(refusal_of(take_snapshot{1}, both) == "");
  CHECK(refusal_of(snapshot_written{1, {}, 0, 0, {}}, both) == "");
  CHECK(refusal_of(restore_state{}, both) == "");
  CHECK(refusal_of(copy_state{1, 1}, both) == "");
  CHECK(refusal_of(fetch_copy{}, both) == "");
}
