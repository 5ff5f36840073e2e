#include "accelerated_device.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

#include <rrfp/torch/tensors.hpp>

namespace rrfp::actors {

namespace {

using accelerator::event_pool;
using accelerator::pooled_event;
using accelerator::stream;
using clock = std::chrono::steady_clock;

}  // namespace

/// Shared with the callbacks that the poller still holds.
class accelerated_device::streams : public std::enable_shared_from_this<streams> {
 public:
  explicit streams(accelerated_parts parts)
      : parts_(std::move(parts)),
        events_(event_pool::make(
            [lane = parts_.lane, timed = parts_.measured] { return lane->make_event(timed); })),
        launches_(parts_.poller->open_queue()),
        copies_(parts_.poller->open_queue()) {}

  void run(const std::function<void()>& work) { parts_.lane->run(stream::compute, work); }

  void launch(const std::function<std::chrono::nanoseconds()>& work,
              std::function<void(const occupancy&)> after) {
    const auto begun = clock::now();
    std::shared_ptr<pooled_event> first;
    auto into = begin_measuring(first);
    std::chrono::nanoseconds more{0};
    try {
      if (into) run([&] { more = work(); });
    } catch (const std::exception& e) {  // from the device: `work` does not throw
      into = error{e.what()};
    }
    if (into && more.count() > 0) into = parts_.lane->delay(more);
    auto last = into ? events_->take() : result<pooled_event>{into.failure()};
    if (last) into = parts_.lane->record(**last, stream::compute);
    if (!last || !into) return after({last ? into : status{last.failure()}, {}, {}});
    auto& mark = **last;
    parts_.poller->watch(
        launches_, std::move(*last),
        [self = shared_from_this(), begun, first, &mark, after = std::move(after)](
            const status& done) { after(self->end_of(begun, first.get(), mark, done)); });
  }

  bool is_here(const at::Tensor& t) const { return t.device() == parts_.lane->device(); }
  void claim(const at::Tensor& t) { parts_.lane->claim(t); }

  void copy_in(tensor_buffer from, on_copied then) {
    auto mark = events_->take();
    if (!mark) return then(mark.failure());
    auto to = parts_.lane->copy_in(compute::to_tensor(from));
    if (!to) return then(to.failure());
    when_copied({std::move(from), compute::to_buffer(std::move(*to))}, std::move(*mark),
                std::move(then));
  }

  void copy_out(tensor_buffer from, on_copied then) {
    auto mark = events_->take();
    if (!mark) return then(mark.failure());
    auto slab = parts_.slabs->take(from.bytes());
    if (slab.data() == nullptr)
      return then(error{"out of pinned memory: cannot copy " + std::to_string(from.bytes()) +
                        " bytes from " + parts_.lane->device().str()});
    if (auto put = parts_.lane->copy_out(compute::to_tensor(from), slab.data()); !put)
      return then(put.failure());
    auto to = ucx::to_buffer(std::move(slab), from.type, from.sizes);
    when_copied({std::move(from), std::move(to)}, std::move(*mark), std::move(then));
  }

  /// No callback runs after it has returned. Copies in progress write to slabs that the pool keeps;
  /// the run is over, so nobody takes them again.
  void close() {
    parts_.poller->close_queue(launches_);
    parts_.poller->close_queue(copies_);
  }

 private:
  struct copy {
    tensor_buffer from;
    tensor_buffer to;
  };

  status begin_measuring(std::shared_ptr<pooled_event>& first) {
    if (!parts_.measured) return success();
    auto e = events_->take();
    if (!e) return e.failure();
    first = std::make_shared<pooled_event>(std::move(*e));
    return parts_.lane->record(**first, stream::compute);
  }

  /// Called for the launches in their order.
  occupancy end_of(clock::time_point begun, pooled_event* first, accelerator::event& last,
                   const status& done) {
    const auto now = clock::now();
    occupancy o{done, now - std::max(begun, last_end_), {}};
    last_end_ = now;
    if (!done) return o;
    o.memory = parts_.lane->memory();
    if (first == nullptr) return o;
    const auto ms = parts_.lane->milliseconds_between(**first, last);
    if (!ms) {
      o.outcome = ms.failure();
      return o;
    }
    o.busy = std::chrono::nanoseconds{static_cast<std::int64_t>(*ms * 1e6)};
    return o;
  }

  /// Keeps both tensors until the copy is done.
  void when_copied(copy c, pooled_event mark, on_copied then) {
    if (auto recorded = parts_.lane->record(*mark, stream::copy); !recorded) {
      // Without an event, nobody knows when the device stops using them: keep them for ever.
      {
        const std::lock_guard lock{mutex_};
        kept_for_ever_.push_back(std::move(c));
      }
      return then(recorded.failure());
    }
    parts_.poller->watch(copies_, std::move(mark),
                         [c = std::move(c), then = std::move(then)](const status& done) mutable {
                           c.from = {};
                           if (!done) return then(done.failure());
                           then(std::move(c.to));
                         });
  }

  const accelerated_parts parts_;
  const std::shared_ptr<event_pool> events_;
  const accelerator::event_poller::queue_id launches_;
  const accelerator::event_poller::queue_id copies_;
  clock::time_point last_end_;
  std::mutex mutex_;
  std::vector<copy> kept_for_ever_;
};

accelerated_device::accelerated_device(std::string name, accelerated_parts parts,
                                       std::chrono::microseconds spin)
    : streams_(std::make_shared<streams>(std::move(parts))), thread_(std::move(name), spin) {}

accelerated_device::~accelerated_device() { stop(); }

void accelerated_device::post(std::function<void()> work) {
  thread_.post([s = streams_, work = std::move(work)] { s->run(work); });
}

void accelerated_device::occupy(std::function<std::chrono::nanoseconds()> work,
                                std::function<void(const occupancy&)> after) {
  thread_.post(
      [s = streams_, work = std::move(work), after = std::move(after)] { s->launch(work, after); });
}

bool accelerated_device::can_read(const tensor_buffer& b) {
  if (!b.defined()) return true;
  const auto t = compute::to_tensor(b);
  if (!streams_->is_here(t)) return false;
  streams_->claim(t);
  return true;
}

void accelerated_device::copy_in(tensor_buffer t, on_copied then) {
  streams_->copy_in(std::move(t), std::move(then));
}

void accelerated_device::copy_out(tensor_buffer t, on_copied then) {
  streams_->copy_out(std::move(t), std::move(then));
}

void accelerated_device::stop() {
  thread_.stop();
  streams_->close();
}

}  // namespace rrfp::actors
