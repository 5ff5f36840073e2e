#include <chrono>
#include <condition_variable>
#include <mutex>
#include <queue>
#include <thread>
#include <vector>

#include <rrfp/actors/transport.hpp>

namespace rrfp::actors {

namespace {

using clock = std::chrono::steady_clock;

class delaying_transport final : public transport {
 public:
  delaying_transport(std::unique_ptr<transport> inner, link_delay delay)
      : inner_(std::move(inner)), delay_(std::move(delay)), thread_([this] { forward(); }) {}

  ~delaying_transport() override { close(); }

  void bind(rank_address address, message_sink sink) override {
    inner_->bind(address, std::move(sink));
  }

  void send(message m) override {
    const std::chrono::duration<double, std::milli> held{delay_(m.header)};
    if (held.count() <= 0) return inner_->send(std::move(m));
    const auto due = clock::now() + std::chrono::duration_cast<clock::duration>(held);
    const std::lock_guard lock{mutex_};
    if (closed_) return;
    const bool is_next = held_.empty() || due < held_.top().due;
    held_.push({due, next_number_++, std::move(m)});
    if (is_next) wake_.notify_one();
  }

  void close() override {
    {
      const std::lock_guard lock{mutex_};
      closed_ = true;
      held_ = {};
    }
    wake_.notify_one();
    if (thread_.joinable()) thread_.join();
    inner_->close();
  }

 private:
  struct held_message {
    clock::time_point due;
    std::uint64_t number;
    message what;

    bool operator<(const held_message& other) const {
      return std::tie(other.due, other.number) < std::tie(due, number);  // the earliest on top
    }
  };

  void forward() {
    std::unique_lock lock{mutex_};
    while (!closed_) {
      if (held_.empty()) {
        wake_.wait(lock);
        continue;
      }
      if (const auto due = held_.top().due; due > clock::now()) {
        wake_.wait_until(lock, due);
        continue;
      }
      auto m = held_.top().what;
      held_.pop();
      lock.unlock();
      inner_->send(std::move(m));
      lock.lock();
    }
  }

  const std::unique_ptr<transport> inner_;
  const link_delay delay_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::priority_queue<held_message> held_;
  std::uint64_t next_number_ = 0;
  bool closed_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<transport> make_delaying_transport(std::unique_ptr<transport> inner,
                                                   link_delay delay) {
  return std::make_unique<delaying_transport>(std::move(inner), std::move(delay));
}

}  // namespace rrfp::actors
