#include "accelerated_device.hpp"

#include <algorithm>
#include <utility>

#include <rrfp/torch/tensors.hpp>

namespace rrfp::actors {

using accelerator::pooled_event;
using accelerator::stream;

accelerated_device::accelerated_device(std::string name, accelerated_parts parts,
                                       std::chrono::microseconds spin)
    : parts_(std::move(parts)),
      events_(accelerator::event_pool::make(
          [lane = parts_.lane, timed = parts_.measured] { return lane->make_event(timed); })),
      launches_(parts_.poller->open_queue()),
      copies_(parts_.poller->open_queue()),
      thread_(std::move(name), spin) {}

accelerated_device::~accelerated_device() { stop(); }

/// Copies in progress write to slabs that the pool keeps; the run is over, so nobody takes them
/// again.
void accelerated_device::stop() {
  thread_.stop();
  parts_.poller->close_queue(launches_);
  parts_.poller->close_queue(copies_);
}

void accelerated_device::post(std::function<void()> work) {
  thread_.post([this, work = std::move(work)] { parts_.lane->run(stream::compute, work); });
}

void accelerated_device::occupy(std::function<std::chrono::nanoseconds()> work,
                                std::function<void(const occupancy&)> after) {
  thread_.post([this, work = std::move(work), after = std::move(after)] { launch(work, after); });
}

void accelerated_device::launch(const std::function<std::chrono::nanoseconds()>& work,
                                const std::function<void(const occupancy&)>& after) {
  const auto begun = clock::now();
  std::shared_ptr<pooled_event> first;
  auto into = begin_measuring(first);
  std::chrono::nanoseconds more{0};
  try {
    if (into) parts_.lane->run(stream::compute, [&] { more = work(); });
  } catch (const std::exception& e) {  // from the device: `work` does not throw
    into = error{e.what()};
  }
  if (into && more.count() > 0) into = parts_.lane->delay(more);
  auto last = into ? events_->take() : result<pooled_event>{into.failure()};
  if (last) into = parts_.lane->record(**last, stream::compute);
  if (!last || !into) return after({last ? into : status{last.failure()}, {}, {}});
  auto& mark = **last;
  parts_.poller->watch(launches_, std::move(*last),
                       [this, begun, first, &mark, after](const status& done) {
                         after(end_of(begun, first.get(), mark, done));
                       });
}

status accelerated_device::begin_measuring(std::shared_ptr<pooled_event>& first) {
  if (!parts_.measured) return success();
  auto e = events_->take();
  if (!e) return e.failure();
  first = std::make_shared<pooled_event>(std::move(*e));
  return parts_.lane->record(**first, stream::compute);
}

occupancy accelerated_device::end_of(clock::time_point begun, pooled_event* first,
                                     accelerator::event& last, const status& done) {
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

bool accelerated_device::can_read(const tensor_buffer& b) {
  if (!b.defined()) return true;
  const auto t = compute::to_tensor(b);
  if (t.device() != parts_.lane->device()) return false;
  parts_.lane->claim(t);
  return true;
}

void accelerated_device::copy_in(tensor_buffer from, on_copied then) {
  auto mark = events_->take();
  if (!mark) return then(mark.failure());
  auto to = parts_.lane->copy_in(compute::to_tensor(from));
  if (!to) return then(to.failure());
  when_copied({std::move(from), compute::to_buffer(std::move(*to))}, std::move(*mark),
              std::move(then));
}

void accelerated_device::copy_out(tensor_buffer from, on_copied then) {
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

void accelerated_device::when_copied(copy c, pooled_event mark, on_copied then) {
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

}  // namespace rrfp::actors
