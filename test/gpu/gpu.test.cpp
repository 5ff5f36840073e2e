/// What holds on a CUDA device. Without one the program ends with code 77, and says what is
/// missing.
#include <cstdio>
#include <cstdlib>
#include <future>
#include <thread>

#include <ATen/ATen.h>
#include <catch2/catch.hpp>

#include <rrfp/accelerator/event_poller.hpp>
#include <rrfp/accelerator/load.hpp>
#include <rrfp/compute/operators.hpp>
#include <rrfp/compute/stage_compute.hpp>
#include <rrfp/tp_coord/in_process_collective.hpp>

#include "accelerated_device.hpp"
#include "small_session.hpp"

namespace rrfp::actors {

namespace {

using namespace std::chrono_literals;
using accelerator::stream;

const pipeline_shape four_stages{4, 1, 8, placement::linear};

std::shared_ptr<accelerator::platform> cuda() {
  auto loaded = accelerator::load_cuda(true);
  if (loaded) return *loaded;
  std::printf("skipped: %s\n", loaded.message().c_str());
  std::exit(77);
}

accelerated_device device_on(const std::shared_ptr<accelerator::lane>& lane) {
  const auto platform = cuda();
  auto pinned = ucx::slab_pool::make(
      1 << 26, {[platform](std::size_t bytes) { return platform->allocate_pinned(bytes); },
                [platform](void* memory) { platform->free_pinned(memory); }});
  return {"gpu", {lane, std::make_shared<accelerator::event_poller>(50us), pinned, true}, 0us};
}

/// Waits, at most 10 s.
void finish(accelerator::lane& lane, stream s) {
  const auto e = lane.make_event(false).value();
  REQUIRE(lane.record(*e, s));
  for (int i = 0; i < 10'000 && !e->query().value(); ++i) std::this_thread::sleep_for(1ms);
  REQUIRE(e->query().value());
}

run_summary trained(const test::choice_of_run& c, bool on_gpu) {
  auto train = compute::test::small_train();
  train.steps = 5;
  auto setup = test::small_setup(c, compute::test::small_model(), train);
  if (on_gpu) setup.accelerated = accelerated_devices{cuda(), {0}, true, std::nullopt};
  auto opened = session::open(std::move(setup));
  REQUIRE(opened);
  auto result = (*opened)->run();
  INFO(result.message);
  REQUIRE(result.how == ending::done);
  return result.summary;
}

class greedy_module final : public compute::stage_module {
 public:
  greedy_module() {
    parameters_.push_back({"scale", at::ones({1}).requires_grad_(), compute::tie::none});
  }
  std::span<const compute::parameter> parameters() const override { return parameters_; }
  at::Tensor forward(const compute::forward_input&) override {
    return at::empty({std::int64_t{1} << 42}, parameters_[0].value.options());
  }

 private:
  std::vector<compute::parameter> parameters_;
};

}  // namespace

TEST_CASE("a tensor goes out and comes in as it was") {
  const auto lane = cuda()->open_lane(0).value();
  auto device = device_on(lane);
  const auto t = at::randn({300, 700});
  std::promise<at::Tensor> there;
  device.bring_in(t, [&](result<at::Tensor> copy) { there.set_value(copy.value()); });
  const auto on_gpu = there.get_future().get();
  REQUIRE(on_gpu.device() == lane->device());
  CHECK(device.can_read(on_gpu));
  CHECK_FALSE(device.can_read(t));
  std::promise<at::Tensor> back;
  device.bring_out(on_gpu, [&](result<at::Tensor> copy) { back.set_value(copy.value()); });
  CHECK(back.get_future().get().equal(t));
}

TEST_CASE("an injected delay takes its time on the device") {
  const auto lane = cuda()->open_lane(0).value();
  auto device = device_on(lane);
  for (int i = 0; i < 2; ++i) {  // the first one loads the kernel
    std::promise<occupancy> done;
    device.occupy([] { return 20ms; }, [&](const occupancy& o) { done.set_value(o); });
    const auto o = done.get_future().get();
    REQUIRE(o.outcome.ok());
    if (i == 0) continue;
    CHECK(*o.busy > 15ms);
    CHECK(*o.busy < 150ms);  // the clock of an idle device is slower than the one that is told
    CHECK(o.memory.reserved >= o.memory.allocated);
    CHECK(o.memory.allocated_peak >= o.memory.allocated);
  }
}

TEST_CASE("what is computed does not depend on the order, the lookahead or the run") {
  const auto of = [](dispatch_mode mode, std::uint32_t lookahead, std::uint64_t weather) {
    test::choice_of_run c{four_stages, mode};
    c.policy = mode == dispatch_mode::in_order ? "one_f_one_b" : "bfw";
    c.lookahead = lookahead;
    c.weather = weather;
    return trained(c, true);
  };
  const auto first = of(dispatch_mode::in_order, 0, 0);
  for (const auto& other : {of(dispatch_mode::in_order, 0, 0), of(dispatch_mode::ready, 1, 3),
                            of(dispatch_mode::ready, 2, 4)}) {
    CHECK(other.losses_xxh64 == first.losses_xxh64);
    CHECK(other.weights_xxh64 == first.weights_xxh64);
  }
  const auto host = trained({four_stages}, false);
  CHECK(first.loss_first == Approx(host.loss_first).epsilon(1e-4));
  CHECK(first.loss_last == Approx(host.loss_last).epsilon(1e-3));
}

TEST_CASE("a dropout mask is the same on the device") {
  const compute::dropout_key key{3, step_id{1}, microbatch_id{2}, 4, 5};
  const auto x = at::ones({64, 64});
  const auto lane = cuda()->open_lane(0).value();
  at::Tensor there;
  lane->run(stream::compute,
            [&] { there = compute::dropout(x.to(lane->device()), 0.3, key).cpu(); });
  CHECK(there.equal(compute::dropout(x, 0.3, key)));
}

TEST_CASE("out of memory on the device names the slots held") {
  const auto lane = cuda()->open_lane(0).value();
  std::vector<std::unique_ptr<compute::stage_module>> chunks;
  chunks.push_back(std::make_unique<greedy_module>());
  compute::stage_compute_config config{
      {1, 1, 2, placement::linear}, stage_id{0}, compute::test::small_train()};
  config.device = lane->device();
  const auto stage = compute::stage_compute::make(config, std::move(chunks),
                                                  std::make_shared<compute::test::uneven_source>(2))
                         .value();
  stage->begin_step(step_id{0});
  launch l;
  l.what = {task_kind::forward, microbatch_id{0}, chunk_id{0}};
  std::string said;
  try {
    lane->run(stream::compute, [&] { stage->run(l, {}); });
  } catch (const compute::compute_error& e) {
    CHECK(e.fault() == compute::compute_fault::memory);
    said = e.what();
  }
  CHECK_THAT(said, Catch::Contains("cuda:0 is out of memory with 1 slots held") &&
                       Catch::Contains("dispatch.slots"));
}

TEST_CASE("NCCL sums what one rank gives") {
  const auto platform = cuda();
  const auto lane = platform->open_lane(0).value();
  std::shared_ptr<tp_coord::collective> control =
      std::move(tp_coord::make_in_process_group(1).front());
  const auto group = platform->make_collective(control, lane, {});
  auto t = at::arange(1000, at::kFloat);
  lane->run(stream::compute, [&] {
    auto there = t.to(lane->device());
    const auto done = group->all_reduce(tp_coord::reduction::sum, there.mutable_data_ptr(), 1000,
                                        tp_coord::element::float32);
    INFO((done ? "" : done.message()));
    REQUIRE(done);
    CHECK(there.cpu().equal(t));
  });
  finish(*lane, stream::compute);
  CHECK(group->health().ok());
  group->abort("the test is over");
  CHECK(group->health().message() == "the test is over");
}

}  // namespace rrfp::actors
