#include "world.hpp"

#include <algorithm>

namespace rrfp::cluster {

sink_id world::add_sink(event_sink& to) {
  sinks_.push_back(&to);
  return static_cast<sink_id>(sinks_.size() - 1);
}

void world::push(const timed& e) {
  queue_.push_back(e);
  std::push_heap(queue_.begin(), queue_.end(), std::greater<>{});
}

void world::call(nanoseconds after, std::function<void()> work) {
  std::uint32_t place = 0;
  if (free_works_.empty()) {
    place = static_cast<std::uint32_t>(works_.size());
    works_.push_back(std::move(work));
  } else {
    place = free_works_.back();
    free_works_.pop_back();
    works_[place] = std::move(work);
  }
  push({now_ + after, order_++, functions, 0, place});
}

bool world::advance() {
  if (queue_.empty()) return false;
  std::pop_heap(queue_.begin(), queue_.end(), std::greater<>{});
  const auto e = queue_.back();
  queue_.pop_back();
  now_ = e.at;
  ++events_;
  if (e.to == functions) {
    const auto work = std::move(works_[e.argument]);
    free_works_.push_back(e.argument);
    work();
  } else if (auto* const to = sinks_[e.to]) {
    to->on_event(e.what, e.argument);
  }
  return true;
}

}  // namespace rrfp::cluster
