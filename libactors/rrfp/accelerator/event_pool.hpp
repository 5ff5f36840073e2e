/// A pool of reusable events, because creating an event costs more than recording it.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include <rrfp/accelerator/platform.hpp>

namespace rrfp::accelerator {

class event_pool;

/// An event in use; its destructor returns it to the pool, from any thread.
class pooled_event {
 public:
  pooled_event() = default;
  pooled_event(std::shared_ptr<event_pool> pool, std::unique_ptr<event> e);
  pooled_event(pooled_event&&) = default;
  pooled_event& operator=(pooled_event&& other) noexcept;
  ~pooled_event() { give_back(); }

  event& operator*() const { return *event_; }
  explicit operator bool() const { return event_ != nullptr; }

 private:
  void give_back();

  std::shared_ptr<event_pool> pool_;
  std::unique_ptr<event> event_;
};

/// Thread-safe. Holds as many events as were in use at once: lookahead bounds the queued launches,
/// and messages in flight bound the copies.
class event_pool : public std::enable_shared_from_this<event_pool> {
 public:
  using maker = std::function<result<std::unique_ptr<event>>()>;

  static std::shared_ptr<event_pool> make(maker make_event);

  result<pooled_event> take();
  std::size_t unused() const;

 private:
  friend class pooled_event;
  explicit event_pool(maker make_event) : make_(std::move(make_event)) {}

  const maker make_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<event>> unused_;
};

}  // namespace rrfp::accelerator
