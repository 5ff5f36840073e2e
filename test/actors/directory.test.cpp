/// Messages to actors on other nodes: as mail and back, and mail that is none. More of it:
/// test/fuzz/targets/mail.cpp.
#include <random>

#include "control/messages.hpp"

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
  caf::actor actor = system->spawn([this](caf::event_based_actor* self) -> caf::behavior {
    self->set_default_handler(caf::drop);
    return {[this, self](Message& m) {
      got.push_back(std::move(m));
      self->quit();
    }};
  });
  const std::vector<Message>& read() {
    system->await_all_actors_done();
    return got;
  }
};

const actor_address stage_3 = supervisor_of(replica_id{1}, stage_id{3});

/// The mail of a post from node 0 to stage 3, which is on node 2.
template <class Message>
std::string mail_of(Message m) {
  std::string sent;
  const directory here{node_id{0}, [](const rank_address&) { return node_id{2}; },
                       [&](node_id to, std::string mail) {
                         CHECK(to == node_id{2});
                         sent = std::move(mail);
                       }};
  post(here.find(stage_3), std::move(m));
  return sent;
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
  directory there;
  there.bind(stage_3, box.actor);
  REQUIRE(there.deliver(mail_of(some_result())));
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

TEST_CASE("Mail to nobody, cut mail and random mail is refused, and nothing is posted") {
  mailbox<failed> box;
  directory there;
  there.bind(stage_3, box.actor);
  const auto good = mail_of(failed{{"why", error_kind::node_lost}});
  for (std::size_t size = 0; size < good.size(); ++size)
    CHECK_FALSE(there.deliver(good.substr(0, size)));
  CHECK_FALSE(there.deliver(good + "x"));
  auto nobody = good;
  nobody[1] = 9;  // the stage
  CHECK_FALSE(there.deliver(nobody));
  auto unknown = good;
  unknown[13] = '\x7f';  // the code
  CHECK_FALSE(there.deliver(unknown));

  std::mt19937_64 random{1};
  const std::string mails[] = {good, mail_of(some_result()), mail_of(stage_progress{}),
                               mail_of(stage_weights{{}, {{}, {}}, {"a", "b"}})};
  for (int i = 0; i < 20'000; ++i) {
    auto mail = mails[random() % std::size(mails)];
    for (std::uint64_t n = 1 + random() % 4; n > 0; --n)
      mail[14 + random() % (mail.size() - 14)] = static_cast<char>(random());
    // Another message than the actor expects stays unread in its mailbox.
    there.deliver(mail);
  }
  box.read();
  there.close();
  CHECK(there.deliver("anything"));
}
