/// Measures the overhead of the cuda device on a GPU. Prints one line of JSON per measurement.
///
///   gpu_bench            all measurements, a few seconds
///
/// launch_gap: idle time of the device between two tasks of 500 us, with 0, 1 or 2 launches waiting
/// behind the running one. arrival: from the launch by the supervisor to the call that queues the
/// kernel, and to its known end, minus the kernel time. staging: copies of a tensor to a pinned
/// slab and back into new device memory. nccl: an all-reduce of one rank, and of two ranks on this
/// device if NCCL lets them share it (NCCL_MULTI_RANK_GPU_ENABLE=1, 2.30 and later).
#include <cstdio>
#include <cstdlib>
#include <future>
#include <mutex>
#include <thread>

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <fmt/format.h>

#include <rrfp/accelerator/load.hpp>
#include <rrfp/base/statistics.hpp>
#include <rrfp/torch/tensors.hpp>
#include <rrfp/torch_actors/accelerated_device.hpp>
#include <rrfp/tp_coord/in_process_collective.hpp>

namespace {

using namespace rrfp;
using namespace rrfp::actors;
using namespace std::chrono_literals;
using clock_type = std::chrono::steady_clock;
using microseconds = std::chrono::duration<double, std::micro>;

constexpr auto task_time = 500us;
constexpr auto result_timeout = 30s;

template <class T>
T get(std::future<T> awaited) {
  if (awaited.wait_for(result_timeout) == std::future_status::ready) return awaited.get();
  fmt::print(stderr, "gpu_bench: no result within 30 s\n");
  std::_Exit(1);
}

struct bench {
  std::shared_ptr<accelerator::platform> platform;
  std::shared_ptr<accelerator::lane> lane;
  std::unique_ptr<accelerated_device> device;

  static bench open() {
    auto loaded = accelerator::load_cuda(true);
    if (!loaded) {
      fmt::print(stderr, "gpu_bench: {}\n", loaded.message());
      std::exit(2);
    }
    bench b;
    b.platform = *loaded;
    b.lane = b.platform->open_lane(0).value();
    auto slabs = ucx::slab_pool::make(
        1 << 28, {[p = b.platform](std::size_t bytes) { return p->allocate_pinned(bytes); },
                  [p = b.platform](void* memory) { p->free_pinned(memory); }});
    b.device = std::make_unique<accelerated_device>(
        "bench",
        accelerated_parts{b.lane, std::make_shared<accelerator::event_poller>(50us), slabs, true},
        50us);
    return b;
  }
};

/// The times of one task.
struct task_times {
  clock_type::time_point launched;
  clock_type::time_point ended;
  microseconds busy;
};

/// Acts as a supervisor: keeps `lookahead` launches behind the running one until `count` have run.
class feeder {
 public:
  feeder(accelerated_device& device, std::uint32_t lookahead, int count)
      : device_(device), lookahead_(lookahead), left_(count) {}

  std::vector<task_times> run() {
    for (std::uint32_t i = 0; i <= lookahead_; ++i) launch();
    get(all_.get_future());
    return tasks_;
  }

 private:
  void launch() {
    {
      const std::lock_guard lock{mutex_};
      if (left_ == 0) return;
      --left_;
      ++running_;
    }
    const auto task = std::make_shared<task_times>();
    device_.occupy(
        [task] {
          task->launched = clock_type::now();
          return std::chrono::nanoseconds{task_time};
        },
        [this, task](const occupancy& o) {
          task->ended = clock_type::now();
          task->busy = o.busy.value_or(0ns);
          launch();
          bool last = false;
          {
            const std::lock_guard lock{mutex_};
            tasks_.push_back(*task);
            last = --running_ == 0 && left_ == 0;
          }
          if (last) all_.set_value(true);  // may destroy this object
        });
  }

  accelerated_device& device_;
  const std::uint32_t lookahead_;
  std::mutex mutex_;
  int left_;
  int running_ = 0;
  std::vector<task_times> tasks_;
  std::promise<bool> all_;
};

void measure_launch_gap(bench& b) {
  constexpr int count = 400;
  feeder{*b.device, 1, 20}.run();
  for (const std::uint32_t lookahead : {0U, 1U, 2U}) {
    const auto tasks = feeder{*b.device, lookahead, count}.run();
    microseconds busy{0};
    for (std::size_t i = 1; i < tasks.size(); ++i) busy += tasks[i].busy;
    // From the end of the first task to the end of the last: all time outside of kernels is idle.
    const microseconds wall = tasks.back().ended - tasks.front().ended;
    fmt::print(R"({{"measure":"launch_gap","lookahead":{},"idle_us":{:.2f},"kernel_us":{:.1f}}})"
               "\n",
               lookahead, (wall - busy).count() / (count - 1), busy.count() / (count - 1));
  }
}

void measure_arrival(bench& b) {
  std::vector<double> to_launch;
  std::vector<double> beyond;
  for (int i = 0; i < 200; ++i) {
    std::this_thread::sleep_for(200us);
    std::promise<task_times> done;
    const auto arrived = clock_type::now();
    clock_type::time_point launched;
    b.device->occupy(
        [&] {
          launched = clock_type::now();
          return std::chrono::nanoseconds{100us};
        },
        [&](const occupancy& o) {
          done.set_value({launched, clock_type::now(), o.busy.value_or(0ns)});
        });
    const auto task = get(done.get_future());
    to_launch.push_back(microseconds{task.launched - arrived}.count());
    beyond.push_back((microseconds{task.ended - arrived} - task.busy).count());
  }
  fmt::print(R"({{"measure":"arrival","to_launch_us":{:.2f},"round_trip_beyond_kernel_us":{:.2f}}})"
             "\n",
             median(to_launch), median(beyond));
}

void measure_staging(bench& b) {
  for (const std::int64_t bytes : {64LL << 10, 1LL << 20, 16LL << 20}) {
    at::Tensor t;
    b.lane->run(accelerator::stream::compute, [&] {
      t = at::ones({bytes}, at::TensorOptions{at::kByte}.device(b.lane->device()));
      t.sum().cpu();  // waits until the tensor is complete
    });
    std::vector<double> out;
    std::vector<double> in;
    for (int i = 0; i < 30; ++i) {
      std::promise<tensor_buffer> copied_out;
      const auto begun = clock_type::now();
      b.device->copy_out(compute::to_buffer(t),
                         [&](result<tensor_buffer> c) { copied_out.set_value(c.value()); });
      auto host = get(copied_out.get_future());
      const auto between = clock_type::now();
      std::promise<tensor_buffer> copied_in;
      b.device->copy_in(host, [&](result<tensor_buffer> c) { copied_in.set_value(c.value()); });
      get(copied_in.get_future());
      out.push_back(microseconds{between - begun}.count());
      in.push_back(microseconds{clock_type::now() - between}.count());
    }
    fmt::print(R"({{"measure":"staging","bytes":{},"out_us":{:.1f},"in_us":{:.1f}}})"
               "\n",
               bytes, median(out), median(in));
  }
}

/// Each rank is a thread with its own lane on the first device.
void measure_nccl(bench& b, std::uint32_t ranks) {
  constexpr std::size_t count = 1 << 20;
  auto control = tp_coord::make_in_process_group(ranks);
  std::vector<std::future<std::string>> all;
  for (std::uint32_t r = 0; r < ranks; ++r)
    all.push_back(std::async(std::launch::async, [&, r]() -> std::string {
      const auto lane = b.platform->open_lane(0).value();
      const auto group = b.platform->make_collective(std::move(control[r]), lane, {20s, true});
      std::string fields;
      lane->run(accelerator::stream::compute, [&] {
        auto t = at::full({count}, 1.0 + r, at::TensorOptions{}.device(lane->device()));
        const auto reduce = [&] {
          return group->all_reduce(tp_coord::operation::sum, t.mutable_data_ptr(), count,
                                   tp_coord::element::float32);
        };
        if (auto first = reduce(); !first) {
          fields = fmt::format(R"("failure":"{}")", first.message());
          return;
        }
        const double expected = ranks * (ranks + 1) / 2.0;
        if (t.ne(expected).any().item<bool>()) {
          fields = R"("failure":"a wrong sum")";
          return;
        }
        const auto begun = clock_type::now();
        constexpr int times = 20;
        for (int i = 0; i < times; ++i)
          if (auto again = reduce(); !again) {
            fields = fmt::format(R"("failure":"{}")", again.message());
            return;
          }
        t[0].item<float>();
        fields = fmt::format(R"("bytes":{},"us":{:.1f})", count * sizeof(float),
                             microseconds{clock_type::now() - begun}.count() / times);
      });
      return fields;
    }));
  std::vector<std::string> results;
  for (auto& one : all) results.push_back(get(std::move(one)));
  fmt::print(R"({{"measure":"nccl","ranks":{},{}}})"
             "\n",
             ranks, results.front());
}

}  // namespace

int main() {
  auto b = bench::open();
  fmt::print(R"({{"measure":"device","name":"{}","devices":{}}})"
             "\n",
             b.platform->devices()[0], b.platform->devices().size());
  measure_launch_gap(b);
  measure_arrival(b);
  measure_staging(b);
  measure_nccl(b, 1);
  const auto* const shared = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  if (shared != nullptr && std::string_view{shared} == "1") measure_nccl(b, 2);
}
