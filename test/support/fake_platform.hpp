/// Fake devices on the host: work in a stream runs at once on the calling thread, and its event
/// completes when the test says so.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <deque>
#include <mutex>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <rrfp/accelerator/platform.hpp>

namespace rrfp::accelerator::test {

class fake_event final : public event {
 public:
  struct state {
    std::atomic<bool> done = false;
    std::atomic<bool> broken = false;
    std::atomic<int> queries = 0;
  };

  result<bool> query() override {
    ++seen->queries;
    if (seen->broken) return error{"fakeEventQuery on device 0: broken"};
    return seen->done.load();
  }

  std::shared_ptr<state> seen = std::make_shared<state>();
};

class fake_lane final : public lane {
 public:
  /// `holds`: recorded events complete when the test calls finish(); otherwise at once.
  explicit fake_lane(bool holds = false) : holds_(holds) {}

  /// `is_full`: tensors from the host count as foreign, and copy_in() runs out of memory.
  at::Device device() const override {
    return is_full ? at::Device{at::kCPU, 0} : at::Device{at::kCPU};
  }
  void run(stream, const std::function<void()>& work) override { work(); }
  result<std::unique_ptr<event>> make_event(bool) override {
    ++made;
    return std::unique_ptr<event>{std::make_unique<fake_event>()};
  }
  status record(event& e, stream) override {
    if (fails) return error{"fakeEventRecord on device 0: out of order"};
    auto& seen = static_cast<fake_event&>(e).seen;
    seen->done = !holds_;
    const std::lock_guard lock{mutex_};
    recorded_.push_back(seen);
    return success();
  }
  result<double> milliseconds_between(event&, event&) override { return 2.0; }
  status delay(std::chrono::nanoseconds time) override {
    delayed += time.count();
    return success();
  }
  void claim(const at::Tensor&) override { ++claims; }
  status copy_out(const at::Tensor& from, std::byte* to) override {
    std::copy_n(static_cast<const std::byte*>(from.const_data_ptr()), from.nbytes(), to);
    return success();
  }
  result<at::Tensor> copy_in(const at::Tensor& from) override {
    if (is_full) return error{"out of memory, tried to allocate 2 GiB"};
    return from.clone();
  }
  result<at::Tensor> make_receive_buffer(at::IntArrayRef shape, at::ScalarType type) override {
    if (fails) return error{"no memory"};
    return at::empty(shape, type);
  }
  compute::memory_counts memory() const override { return {1000, 1500, 2000}; }

  std::size_t recorded() const {
    const std::lock_guard lock{mutex_};
    return recorded_.size();
  }
  /// Completes all events up to the i-th recorded one.
  void finish(std::size_t i) {
    const std::lock_guard lock{mutex_};
    for (std::size_t k = 0; k <= i; ++k) recorded_[k]->done = true;
  }

  std::atomic<bool> fails = false;
  std::atomic<bool> is_full = false;
  std::atomic<int> made = 0;
  std::atomic<int> claims = 0;
  std::atomic<std::int64_t> delayed = 0;

 private:
  const bool holds_;
  mutable std::mutex mutex_;
  std::deque<std::shared_ptr<fake_event::state>> recorded_;
};

class fake_platform final : public platform {
 public:
  explicit fake_platform(std::uint32_t devices) : devices_(devices, "fake") {}

  const std::vector<std::string>& devices() const override { return devices_; }
  result<std::shared_ptr<lane>> open_lane(std::uint32_t device) override {
    opened.push_back(device);
    auto made = std::make_shared<fake_lane>();
    made->is_full = is_full;
    return std::shared_ptr<lane>{std::move(made)};
  }
  status enter_thread() override { return success(); }
  void* allocate_pinned(std::size_t bytes) override { return std::aligned_alloc(64, bytes); }
  void free_pinned(void* memory) override { std::free(memory); }
  std::shared_ptr<tp_coord::collective> make_collective(
      std::shared_ptr<tp_coord::collective> control, std::shared_ptr<lane>,
      const tp_coord::collective_options&) override {
    ++collectives;
    return control;
  }

  std::vector<std::uint32_t> opened;
  int collectives = 0;
  bool is_full = false;  ///< of new lanes

 private:
  std::vector<std::string> devices_;
};

}  // namespace rrfp::accelerator::test
