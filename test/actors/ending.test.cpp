// Runs that fail or are interrupted end soon, with a reason.
#include <chrono>
#include <thread>

#include "small_session.hpp"

// Last: libtorch has a CHECK of its own.
#include "run_session.hpp"

namespace {

using namespace rrfp;
using namespace rrfp::actors;
using namespace rrfp::actors::test;
using Catch::Matchers::Contains;

const pipeline_shape shape{3, 1, 6, placement::linear};

session_setup setup_of(std::uint64_t steps) {
  auto train = compute::test::small_train();
  train.steps = steps;
  return small_setup({shape}, compute::test::small_model(), train);
}

class failing_source final : public compute::batch_source {
 public:
  compute::microbatch load(step_id step, microbatch_id mb) const override {
    if (step == step_id{1} && mb == microbatch_id{2}) throw std::runtime_error("the disk is gone");
    return good_.load(step, mb);
  }
  std::int64_t step_tokens(step_id step) const override { return good_.step_tokens(step); }

 private:
  compute::test::uneven_source good_{shape.microbatches};
};

}  // namespace

TEST_CASE("a failing task ends the run with an error that names stage and cause") {
  auto setup = setup_of(5);
  auto parts = small_parts(shape, compute::test::small_model(), setup.train);
  parts.data = std::make_shared<failing_source>();
  train(setup, std::move(parts));
  const auto r = run_session(std::move(setup));
  CHECK(r.how == ending::bad_input);
  CHECK_THAT(r.message, Contains("stage 0") && Contains("the disk is gone"));
  CHECK(r.summary.steps == 1);
}

TEST_CASE("a lost message ends the run with a report of who waits for what") {
  auto setup = setup_of(5);
  setup.hang_timeout_s = 0.5;
  setup.delays.link = [](step_id step, virtual_stage_id to, const rank_address&, const task& t) {
    const bool lost = step == step_id{1} && to == virtual_stage_id{2} &&
                      t == task{task_kind::forward, microbatch_id{4}, chunk_id{0}};
    return lost ? 1e7 : 0.0;
  };
  const auto begun = std::chrono::steady_clock::now();
  const auto r = run_session(std::move(setup));
  CHECK(r.how == ending::failed);
  CHECK_THAT(r.message,
             Contains("stage 2: step 2") && Contains("for F4, whose input comes from stage 1"));
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds{20});
}

TEST_CASE("a tensor of a microbatch that the run does not have ends the run") {
  class renumbering final : public transport {
   public:
    explicit renumbering(std::unique_ptr<transport> inner) : inner_(std::move(inner)) {}
    void bind(rank_address address, message_sink sink) override {
      inner_->bind(address, std::move(sink));
    }
    void send(message m) override {
      if (m.header.mb == microbatch_id{4}) m.header.mb = microbatch_id{shape.microbatches};
      inner_->send(std::move(m));
    }
    void close() override { inner_->close(); }

   private:
    const std::unique_ptr<transport> inner_;
  };
  auto setup = setup_of(5);
  setup.wrap_transport = [](std::unique_ptr<transport> inner) {
    return std::make_unique<renumbering>(std::move(inner));
  };
  const auto r = run_session(std::move(setup));
  CHECK(r.how == ending::failed);
  CHECK_THAT(r.message,
             Contains("stage 1: step 1: an input of microbatch 6: expected less than 6"));
}

TEST_CASE("an interrupt ends a run during a long task") {
  auto setup = setup_of(1000);
  setup.delays.compute = [](step_id, const rank_address&, const task&) { return 60'000.0; };
  auto opened = session::open(std::move(setup));
  REQUIRE(opened.ok());
  std::thread other{[&] {
    std::this_thread::sleep_for(std::chrono::milliseconds{300});
    (*opened)->interrupt();
  }};
  const auto begun = std::chrono::steady_clock::now();
  const auto r = (*opened)->run();
  other.join();
  CHECK(r.how == ending::interrupted);
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds{20});
}

TEST_CASE("an interrupt before run() ends the run") {
  auto opened = session::open(setup_of(1000));
  REQUIRE(opened.ok());
  (*opened)->interrupt();
  CHECK((*opened)->run().how == ending::interrupted);
}

TEST_CASE("an interrupt at any moment of the start ends the run") {
  for (int i = 0; i < 40; ++i) {
    auto opened = session::open(setup_of(100'000));
    REQUIRE(opened.ok());
    std::thread other{[&] {
      std::this_thread::sleep_for(std::chrono::microseconds{100 * i});
      (*opened)->interrupt();
    }};
    const auto begun = std::chrono::steady_clock::now();
    const auto r = (*opened)->run();
    other.join();
    INFO("after " << 100 * i << " us");
    CHECK(r.how == ending::interrupted);
    CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds{20});
  }
}

TEST_CASE("a run of zero steps ends at once with the initial weights") {
  const auto r = run_session(setup_of(0));
  CHECK(r.how == ending::done);
  CHECK(r.summary.steps == 0);
  CHECK(r.summary.weights_xxh64 != 0);
}

TEST_CASE("a model that cannot be made is refused before the start") {
  auto setup = setup_of(1);
  torch_model parts;
  parts.make_chunk = [](virtual_stage_id, std::shared_ptr<compute::rank_group>) {
    auto model = compute::test::small_model();
    model.heads = 5;
    return compute::make_model_chunk(model, {0, 1}, 1);
  };
  train(setup, std::move(parts));
  const auto opened = session::open(std::move(setup));
  REQUIRE_FALSE(opened.ok());
  CHECK_THAT(opened.message(), Contains("stage 0"));
}
