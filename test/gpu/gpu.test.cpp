/// Tests on a CUDA device. Without one the program prints what is missing and exits with code 77.
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <thread>

#include <ATen/ATen.h>
#include <catch2/catch.hpp>

#include <rrfp/accelerator/event_poller.hpp>
#include <rrfp/accelerator/load.hpp>
#include <rrfp/torch/operators.hpp>
#include <rrfp/torch/stage_compute.hpp>
#include <rrfp/torch_actors/accelerated_device.hpp>
#include <rrfp/tp_coord/in_process_collective.hpp>

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

/// Waits for the stream, at most 10 s. Also on threads other than Catch's, whose checks are for one
/// thread.
void finish(accelerator::lane& lane, stream s) {
  const auto e = lane.make_event(false).value();
  if (!lane.record(*e, s)) throw std::runtime_error("the stream takes no event");
  for (int i = 0; i < 10'000 && !e->query().value(); ++i) std::this_thread::sleep_for(1ms);
  if (!e->query().value()) throw std::runtime_error("the stream has not finished within 10 s");
}

run_summary trained(const test::choice_of_run& c, bool on_gpu) {
  auto train = compute::test::small_train();
  train.steps = 5;
  auto setup = test::small_setup(c, compute::test::small_model(), train);
  if (on_gpu) compute_on(setup, {cuda(), {0}, true, std::nullopt});
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

TEST_CASE("a tensor copied to the device and back has the same bits") {
  const auto lane = cuda()->open_lane(0).value();
  auto device = device_on(lane);
  const auto t = at::randn({300, 700});
  const auto on_host = compute::to_buffer(t);
  std::promise<tensor_buffer> there;
  device.copy_in(on_host, [&](result<tensor_buffer> copy) { there.set_value(copy.value()); });
  const auto on_gpu = there.get_future().get();
  REQUIRE(compute::to_tensor(on_gpu).device() == lane->device());
  CHECK(device.can_read(on_gpu));
  CHECK_FALSE(device.can_read(on_host));
  std::promise<tensor_buffer> back;
  device.copy_out(on_gpu, [&](result<tensor_buffer> copy) { back.set_value(copy.value()); });
  CHECK(compute::to_tensor(back.get_future().get()).equal(t));
}

TEST_CASE("memory that a stream has claimed is not reused before the stream has read it") {
  const auto platform = cuda();
  const auto maker = platform->open_lane(0).value();
  const auto reader = platform->open_lane(0).value();
  constexpr std::int64_t count = 1 << 20;
  const auto ones_of = [&](float value) {
    return at::full({count}, value, at::TensorOptions{}.device(maker->device()));
  };
  const bool is_receive_buffer = GENERATE(false, true);
  at::Tensor t;
  if (is_receive_buffer)
    t = reader->make_receive_buffer({count}, at::kFloat).value();
  else
    maker->run(stream::compute, [&] { t = ones_of(1); });
  maker->run(stream::compute, [&] { t.fill_(1); });
  finish(*maker, stream::compute);
  const auto* const memory = t.const_data_ptr();
  at::Tensor seen;
  reader->claim(t);
  // The first launch of a kernel loads it, which may wait for the device.
  reader->run(stream::compute, [&] { seen = at::zeros_like(t).add_(t).zero_(); });
  REQUIRE(reader->delay(1ns));
  finish(*reader, stream::compute);
  REQUIRE(reader->delay(100ms));
  reader->run(stream::compute, [&] { seen.add_(t); });
  t.reset();
  // Of the same size and stream, and filled at once.
  at::Tensor next;
  if (is_receive_buffer)
    next = reader->make_receive_buffer({count}, at::kFloat).value();
  else
    maker->run(stream::compute, [&] { next = ones_of(2); });
  CHECK(next.const_data_ptr() != memory);
  finish(*reader, stream::compute);
  CHECK(seen.eq(1).all().item<bool>());
}

TEST_CASE("an injected delay keeps the device busy") {
  const auto lane = cuda()->open_lane(0).value();
  auto device = device_on(lane);
  for (int i = 0; i < 2; ++i) {  // the first one loads the kernel
    std::promise<occupancy> done;
    device.occupy([] { return 20ms; }, [&](const occupancy& o) { done.set_value(o); });
    const auto o = done.get_future().get();
    REQUIRE(o.outcome.ok());
    if (i == 0) continue;
    CHECK(*o.busy > 15ms);
    CHECK(*o.busy < 150ms);  // an idle device runs at less than its reported clock rate
    CHECK(o.memory.reserved >= o.memory.allocated);
    CHECK(o.memory.allocated_peak >= o.memory.allocated);
  }
}

TEST_CASE("results do not depend on the order, the lookahead or the run") {
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
  std::string message;
  try {
    lane->run(stream::compute, [&] { stage->run(l, {}); });
  } catch (const compute::compute_error& e) {
    CHECK(e.fault() == compute::compute_fault::memory);
    message = e.what();
  }
  CHECK_THAT(message, Catch::Contains("cuda:0 is out of memory with 1 slots held") &&
                          Catch::Contains("dispatch.slots"));
}

TEST_CASE("NCCL sums a group of one rank") {
  const auto platform = cuda();
  const auto lane = platform->open_lane(0).value();
  std::shared_ptr<tp_coord::collective> control =
      std::move(tp_coord::make_in_process_group(1).front());
  const auto group = platform->make_collective(control, lane, {});
  auto t = at::arange(1000, at::kFloat);
  lane->run(stream::compute, [&] {
    auto there = t.to(lane->device());
    const auto done = group->all_reduce(tp_coord::operation::sum, there.mutable_data_ptr(), 1000,
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

namespace {

/// Runs `work(rank, lane, group)` for each rank on its own thread and device. The communicators
/// wait at most `limit`.
template <class Work>
void on_ranks(std::uint32_t ranks, std::chrono::milliseconds limit, Work work) {
  const auto platform = cuda();
  auto control = tp_coord::make_in_process_group(ranks);
  using group = std::shared_ptr<tp_coord::collective>;
  std::vector<std::future<group>> all;
  for (std::uint32_t r = 0; r < ranks; ++r)
    all.push_back(std::async(std::launch::async, [&, r]() -> group {
      const auto lane = platform->open_lane(r).value();
      auto made = platform->make_collective(std::move(control[r]), lane, {limit, true});
      lane->run(stream::compute, [&] { work(r, *lane, *made); });
      finish(*lane, stream::compute);
      return made;
    }));
  // The first group that ends aborts the calls of the others.
  std::vector<group> ended;
  for (auto& one : all) ended.push_back(one.get());
}

bool has_devices(std::size_t count) {
  const auto there = cuda()->devices().size();
  if (there < count) WARN("skipped: expected " << count << " devices, got " << there);
  return there >= count;
}

at::Tensor summand(std::uint32_t rank, std::int64_t count) {
  return at::sin(at::arange(count, at::kFloat) + 1000.0 * rank);
}

}  // namespace

TEST_CASE("NCCL sums in the order of the ranks") {
  const auto ranks = GENERATE(2U, 3U, 4U);
  if (!has_devices(ranks)) return;
  // Small sums are gathered whole, large ones in parts, also of unequal size.
  for (const std::int64_t count : {5, 1000, 40'001}) {
    auto expected = summand(0, count);
    for (std::uint32_t r = 1; r < ranks; ++r) expected.add_(summand(r, count));
    on_ranks(ranks, 20s, [&](std::uint32_t r, accelerator::lane& lane, auto& group) {
      auto t = summand(r, count).to(lane.device());
      const auto done =
          group.all_reduce(tp_coord::operation::sum, t.mutable_data_ptr(),
                           static_cast<std::size_t>(count), tp_coord::element::float32);
      if (!done) throw std::runtime_error(done.message());
      if (!t.cpu().equal(expected)) throw std::runtime_error("the sum differs");
    });
  }
}

TEST_CASE("a rank waits for one that does not join NCCL no longer than the limit") {
  if (!has_devices(2)) return;
  const auto platform = cuda();
  auto control = tp_coord::make_in_process_group(2);
  const auto lane = platform->open_lane(0).value();
  // It only receives the unique id.
  std::array<std::int64_t, 16> id{};
  auto other = std::async(std::launch::async, [&] {
    return control[1]->broadcast(id.data(), id.size(), tp_coord::element::int64, rank_id{0});
  });
  const auto group = platform->make_collective(std::move(control[0]), lane, {500ms, true});
  lane->run(stream::compute, [&] {
    auto t = at::ones({4}, at::TensorOptions{}.device(lane->device()));
    const auto done = group->all_reduce(tp_coord::operation::sum, t.mutable_data_ptr(), 4,
                                        tp_coord::element::float32);
    REQUIRE_FALSE(done);
    CHECK_THAT(done.message(),
               Catch::Contains("ncclCommInitRankConfig on device 0, rank 0 of 2: ") &&
                   Catch::Contains("another rank did not join"));
  });
  CHECK(other.get().ok());
  CHECK_FALSE(group->health().ok());
}

TEST_CASE("with compare_calls, ranks that call NCCL for different tasks get an error") {
  if (!has_devices(2)) return;
  const auto platform = cuda();
  auto control = tp_coord::make_in_process_group(2);
  const auto call = [&](std::uint32_t r) {
    const auto lane = platform->open_lane(r).value();
    const auto group = platform->make_collective(std::move(control[r]), lane, {20s, true, true});
    std::string message;
    lane->run(stream::compute, [&] {
      auto t = at::ones({4}, at::TensorOptions{}.device(lane->device()));
      const auto reduce = [&] {
        return group->all_reduce(tp_coord::operation::sum, t.mutable_data_ptr(), 4,
                                 tp_coord::element::float32);
      };
      if (const auto done = reduce(); !done) throw std::runtime_error(done.message());
      group->begin(
          {step_id{1}, launch_seq{2}, {task_kind::forward, microbatch_id{r}, chunk_id{0}}});
      message = reduce().message();
    });
    return message;
  };
  auto other = std::async(std::launch::async, [&] { return call(1); });
  const auto message = call(0);
  CHECK_THAT(message, Catch::Contains("F0") && Catch::Contains("F1"));
  CHECK(other.get() == message);
}

TEST_CASE("abort() ends a sum that another rank never joins") {
  if (!has_devices(2)) return;
  std::atomic<int> joined{0};
  on_ranks(2, 20s, [&](std::uint32_t r, accelerator::lane& lane, auto& group) {
    auto t = at::ones({4}, at::TensorOptions{}.device(lane.device()));
    const auto reduce = [&] {
      return group.all_reduce(tp_coord::operation::sum, t.mutable_data_ptr(), 4,
                              tp_coord::element::float32);
    };
    if (!reduce()) throw std::runtime_error("the first sum");
    ++joined;
    if (r == 1) {
      while (joined.load() < 3) std::this_thread::sleep_for(1ms);
      return;
    }
    // It waits on the device, not on this thread.
    if (!reduce()) throw std::runtime_error("the second sum");
    group.abort("the other one has died");
    ++joined;
    if (group.health().message() != "the other one has died") throw std::runtime_error("health");
  });
}

}  // namespace rrfp::actors
