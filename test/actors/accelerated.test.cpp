#include <future>
#include <thread>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <rrfp/accelerator/event_poller.hpp>
#include <rrfp/torch/tensors.hpp>
#include <rrfp/torch_actors/accelerated_device.hpp>
#include <rrfp/torch_actors/accelerated_ranks.hpp>

#include "eventually.hpp"
#include "fake_platform.hpp"
#include "small_session.hpp"

#include <catch2/catch.hpp>

namespace rrfp::actors {

namespace {

using namespace std::chrono_literals;
using accelerator::test::fake_lane;
using accelerator::test::fake_platform;
using Catch::Matchers::Contains;
using rrfp::test::eventually;

const pipeline_shape two_stages{2, 1, 4, placement::linear};

std::shared_ptr<ucx::slab_pool> host_slabs() { return ucx::slab_pool::make(1 << 20); }

struct one_device {
  explicit one_device(bool holds, bool measured = false)
      : lane(std::make_shared<fake_lane>(holds)),
        device("test",
               {lane, std::make_shared<accelerator::event_poller>(50us), host_slabs(), measured},
               0us) {}

  std::shared_ptr<fake_lane> lane;
  accelerated_device device;
};

session_setup setup_on(std::shared_ptr<fake_platform> platform, const test::choice_of_run& c) {
  auto setup = test::small_setup(c, compute::test::small_model(), compute::test::small_train());
  compute_on(setup, {std::move(platform), {0}, true, std::nullopt});
  return setup;
}

run_summary summary_of(session_setup setup) {
  auto opened = session::open(std::move(setup));
  REQUIRE(opened);
  const auto result = (*opened)->run();
  INFO(result.message);
  REQUIRE(result.how == ending::done);
  return result.summary;
}

}  // namespace

TEST_CASE("launches queue on the device and end in order, when the device reports it") {
  one_device d{true};
  std::atomic<int> begun = 0;
  std::mutex mutex;
  std::vector<int> ended;
  for (int i = 0; i < 3; ++i)
    d.device.occupy(
        [&] {
          ++begun;
          return 0ns;
        },
        [&, i](const occupancy& o) {
          const std::lock_guard lock{mutex};
          if (o.outcome.ok() && o.busy) ended.push_back(i);
        });
  // All launches are in the stream before the first one ends.
  CHECK(eventually([&] { return d.lane->recorded() == 3; }));
  CHECK(begun == 3);
  {
    const std::lock_guard lock{mutex};
    CHECK(ended.empty());
  }
  d.lane->finish(1);
  CHECK(eventually([&] {
    const std::lock_guard lock{mutex};
    return ended == std::vector<int>{0, 1};
  }));
  d.lane->finish(2);
  CHECK(eventually([&] {
    const std::lock_guard lock{mutex};
    return ended.size() == 3;
  }));
}

TEST_CASE("an injected delay occupies the device, not the host") {
  one_device d{false};
  std::promise<void> done;
  const auto begun = std::chrono::steady_clock::now();
  d.device.occupy([] { return 1h; }, [&](const occupancy&) { done.set_value(); });
  REQUIRE(done.get_future().wait_for(10s) == std::future_status::ready);
  CHECK(std::chrono::steady_clock::now() - begun < 10s);
  CHECK(d.lane->delayed == std::chrono::nanoseconds{1h}.count());
}

TEST_CASE("with measuring enabled, the device measures its times") {
  one_device d{false, true};
  std::promise<occupancy> done;
  d.device.occupy([] { return 0ns; }, [&](const occupancy& o) { done.set_value(o); });
  const auto o = done.get_future().get();
  CHECK(o.busy == 2ms);
}

TEST_CASE("a failed device call ends the launch with an error that names the call") {
  one_device d{false};
  d.lane->fails = true;
  std::promise<std::string> why;
  d.device.occupy([] { return 0ns; },
                  [&](const occupancy& o) { why.set_value(o.outcome.message()); });
  CHECK(why.get_future().get() == "fakeEventRecord on device 0: out of order");
}

TEST_CASE("a stopped device ends no launch and accepts no more work") {
  one_device d{true};
  std::atomic<bool> called = false;
  d.device.occupy([] { return 0ns; }, [&](const occupancy&) { called = true; });
  CHECK(eventually([&] { return d.lane->recorded() == 1; }));
  d.device.stop();
  d.lane->finish(0);
  d.device.post([&] { called = true; });
  std::this_thread::sleep_for(5ms);
  CHECK_FALSE(called);
}

TEST_CASE("copies to and from the device report when they are done") {
  one_device d{true};
  const auto t = at::arange(1000, at::kFloat).view({10, 100});
  for (const bool out : {true, false}) {
    std::promise<tensor_buffer> copied;
    auto future = copied.get_future();
    const auto before = d.lane->recorded();
    const auto then = [&](result<tensor_buffer> copy) { copied.set_value(copy.value()); };
    if (out)
      d.device.copy_out(compute::to_buffer(t), then);
    else
      d.device.copy_in(compute::to_buffer(t), then);
    REQUIRE(d.lane->recorded() == before + 1);
    CHECK(future.wait_for(5ms) == std::future_status::timeout);
    d.lane->finish(before);
    const auto copy = compute::to_tensor(future.get());
    CHECK(copy.equal(t));
    CHECK(copy.const_data_ptr() != t.const_data_ptr());
  }
}

TEST_CASE("a tensor without elements can be copied out") {
  one_device d{false};
  std::promise<tensor_buffer> copied;
  d.device.copy_out(make_host_buffer(dtype::float32, {0, 8}),
                    [&](result<tensor_buffer> t) { copied.set_value(*t); });
  CHECK(copied.get_future().get().sizes == std::vector<std::int64_t>{0, 8});
}

TEST_CASE("without pinned memory, copying out fails with a message") {
  const auto none = ucx::slab_pool::make(
      1 << 20, {[](std::size_t) { return static_cast<void*>(nullptr); }, [](void*) {}});
  accelerated_device device{"test",
                            {std::make_shared<fake_lane>(),
                             std::make_shared<accelerator::event_poller>(50us), none, false},
                            0us};
  std::string why;
  device.copy_out(make_host_buffer(dtype::float32, {4}),
                  [&](result<tensor_buffer> t) { why = t.message(); });
  CHECK(why == "out of pinned memory: cannot copy 16 bytes from cpu");
}

TEST_CASE("a slab pool allocates with the given functions and frees with them") {
  std::atomic<int> taken = 0;
  std::atomic<int> returned = 0;
  {
    const auto pool = ucx::slab_pool::make(512, {[&](std::size_t bytes) {
                                                   ++taken;
                                                   return std::aligned_alloc(64, bytes);
                                                 },
                                                 [&](void* memory) {
                                                   ++returned;
                                                   std::free(memory);
                                                 }});
    { const auto a = pool->take(256), b = pool->take(256), c = pool->take(256); }
    CHECK(taken == 3);
    CHECK(returned == 1);  // two are kept
    const auto again = pool->take(200);
    CHECK(taken == 3);
  }
  CHECK(returned == 3);
}

TEST_CASE("a session on devices with streams gives the same bits as one on the host") {
  const auto lookahead = GENERATE(0U, 2U);
  const auto weather = GENERATE(0U, 7U);
  test::choice_of_run c{two_stages};
  c.lookahead = lookahead;
  c.weather = weather;
  const auto platform = std::make_shared<fake_platform>(1);
  const auto there = summary_of(setup_on(platform, c));
  const auto here =
      summary_of(test::small_setup(c, compute::test::small_model(), compute::test::small_train()));
  CHECK(there.losses_xxh64 == here.losses_xxh64);
  CHECK(there.weights_xxh64 == here.weights_xxh64);
  CHECK(platform->opened == std::vector<std::uint32_t>{0, 0});
  CHECK(there.device_memory().allocated == 1000);
  CHECK(there.device_memory().allocated_peak == 1500);
  CHECK(there.stages[1].device_memory.reserved == 2000);
  CHECK(here.device_memory().reserved == 0);
}

TEST_CASE("a device that runs out of memory ends the run on all stages with a message") {
  /// Runs out of memory at microbatch 2.
  class greedy final : public compute::stage_module {
   public:
    explicit greedy(std::unique_ptr<compute::stage_module> inner) : inner_(std::move(inner)) {}
    status check(const compute::microbatch& mb) const override { return inner_->check(mb); }
    std::span<const compute::parameter> parameters() const override { return inner_->parameters(); }
    at::Tensor forward(const compute::forward_input& in) override {
      if (in.mb == microbatch_id{2})
        C10_THROW_ERROR(OutOfMemoryError, "Tried to allocate 2 GiB\nand a page of advice");
      return inner_->forward(in);
    }

   private:
    const std::unique_ptr<compute::stage_module> inner_;
  };
  for (const std::uint32_t of : {0, 1}) {
    auto setup = setup_on(std::make_shared<fake_platform>(1), test::choice_of_run{two_stages});
    auto parts = test::small_parts(two_stages, compute::test::small_model(), setup.train);
    parts.make_chunk = [of, make = parts.make_chunk](
                           virtual_stage_id vs,
                           auto group) -> result<std::unique_ptr<compute::stage_module>> {
      auto made = make(vs, group);
      if (!made || vs.value() != of) return made;
      return std::unique_ptr<compute::stage_module>{std::make_unique<greedy>(std::move(*made))};
    };
    train(setup, std::move(parts));
    auto opened = session::open(std::move(setup));
    REQUIRE(opened);
    const auto ended = (*opened)->run();
    CHECK(ended.how == ending::failed);
    INFO(ended.message);
    CHECK_THAT(ended.message,
               Contains(fmt::format("stage {}, F2 of step 1: ", of)) &&
                   Contains("is out of memory with ") && Contains(" slots held") &&
                   Contains("lower dispatch.slots, data.microbatch_size or data.max_tokens, or set "
                            "pipeline.recompute = true"));
  }
}

TEST_CASE("when an input finds no device memory, the run ends and reports the slots held") {
  const auto platform = std::make_shared<fake_platform>(1);
  platform->is_full = true;
  auto opened = session::open(setup_on(platform, test::choice_of_run{two_stages}));
  REQUIRE(opened);
  const auto ended = (*opened)->run();
  CHECK(ended.how == ending::failed);
  INFO(ended.message);
  CHECK_THAT(ended.message,
             Contains("stage 1, the input of microbatch 0 of step 1: cpu:0 is out of memory with 0 "
                      "slots held (out of memory, tried to allocate 2 GiB); lower dispatch.slots"));
}

TEST_CASE("a copy without an event keeps its memory") {
  one_device d{true};
  d.lane->fails = true;
  const auto t = make_host_buffer(dtype::float32, {4});
  std::string why;
  d.device.copy_in(t, [&](result<tensor_buffer> copy) { why = copy.message(); });
  CHECK(why == "fakeEventRecord on device 0: out of order");
  CHECK(t.owner.use_count() == 2);
}

TEST_CASE("replicas that share a device sum in host memory, others on the device") {
  test::choice_of_run c{two_stages};
  const auto collectives_of = [&](std::vector<std::uint32_t> use,
                                  std::optional<job::collectives_kind> how) {
    const auto platform = std::make_shared<fake_platform>(4);
    auto setup = setup_on(platform, c);
    setup.replicas = 2;
    auto parts = test::small_parts(c.shape, compute::test::small_model(), setup.train);
    parts.data = std::make_shared<compute::test::uneven_source>(2 * c.shape.microbatches);
    train(setup, std::move(parts));
    compute_on(setup, {platform, std::move(use), true, how});
    const auto opened = session::open(std::move(setup));
    return opened ? std::to_string(platform->collectives) : opened.message();
  };
  CHECK(collectives_of({0}, std::nullopt) == "0");
  CHECK(collectives_of({0}, job::collectives_kind::host) == "0");
  CHECK(
      collectives_of({0}, job::collectives_kind::nccl) ==
      "device.collectives: \"nccl\" with replicas expects a device for each rank, but cpu of stage "
      "0 is shared: use more devices, fewer stages or replicas a node, or \"host\"");
}

TEST_CASE("tensor-parallel ranks that would share a device are refused") {
  test::choice_of_run c{two_stages};
  auto setup = setup_on(std::make_shared<fake_platform>(1), c);
  setup.ranks = 2;
  CHECK(session::open(std::move(setup)).message() ==
        "device.gpus: expected one device for each of the 4 ranks of this process, because their "
        "collectives run on the devices, got 1");
}

}  // namespace rrfp::actors
