#include <rrfp/accelerator/event_pool.hpp>

#include <utility>

namespace rrfp::accelerator {

pooled_event::pooled_event(std::shared_ptr<event_pool> pool, std::unique_ptr<event> e)
    : pool_(std::move(pool)), event_(std::move(e)) {}

pooled_event& pooled_event::operator=(pooled_event&& other) noexcept {
  if (this == &other) return *this;
  give_back();
  pool_ = std::move(other.pool_);
  event_ = std::move(other.event_);
  return *this;
}

void pooled_event::give_back() {
  if (event_ == nullptr) return;
  const std::lock_guard lock{pool_->mutex_};
  pool_->unused_.push_back(std::move(event_));
}

std::shared_ptr<event_pool> event_pool::make(maker make_event) {
  return std::shared_ptr<event_pool>(new event_pool{std::move(make_event)});
}

result<pooled_event> event_pool::take() {
  {
    const std::lock_guard lock{mutex_};
    if (!unused_.empty()) {
      auto e = std::move(unused_.back());
      unused_.pop_back();
      return pooled_event{shared_from_this(), std::move(e)};
    }
  }
  auto made = make_();
  if (!made) return made.failure();
  return pooled_event{shared_from_this(), std::move(*made)};
}

std::size_t event_pool::unused() const {
  const std::lock_guard lock{mutex_};
  return unused_.size();
}

}  // namespace rrfp::accelerator
