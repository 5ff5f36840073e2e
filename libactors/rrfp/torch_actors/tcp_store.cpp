#include "tcp_store.hpp"

#include <atomic>
#include <cstdlib>
#include <exception>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <rrfp/compute/compute_error.hpp>

namespace rrfp::actors {

namespace {

std::atomic<int> rendezvous_of_process = 0;

/// The agent's store outlives its processes: those that it starts again have keys of their own.
std::string next_key() {
  const auto* const restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return fmt::format("rrfp/rendezvous/{}/{}", restarts == nullptr ? "0" : restarts,
                     rendezvous_of_process++);
}

/// Calls `f`; an exception of the store becomes an error, its first line.
template <class F>
auto guarded(const std::string& name, F f) -> result<decltype(f())> {
  try {
    return f();
  } catch (const std::exception& e) {
    return error{fmt::format("{}: {}", name, compute::first_line_of(e)), error_kind::node_lost};
  }
}

class tcp_store final : public agent_store {
 public:
  tcp_store(std::string name, c10::intrusive_ptr<c10d::TCPStore> store,
            std::chrono::steady_clock::time_point deadline)
      : name_(std::move(name)), key_(next_key()), store_(std::move(store)), deadline_(deadline) {}

  status publish(std::uint16_t port) override {
    const auto text = std::to_string(port);
    const auto done = guarded(name_, [&] {
      store_->set(key_, std::vector<std::uint8_t>(text.begin(), text.end()));
      return true;
    });
    return done ? success() : status{done.failure()};
  }

  result<std::uint16_t> find(const std::stop_token& stop) override {
    constexpr std::chrono::milliseconds pause{20};
    for (;;) {
      const auto is_there = guarded(name_, [&] { return store_->check({key_}); });
      if (!is_there) return is_there.failure();
      if (*is_there) break;
      if (stop.stop_requested()) return error{"interrupted while joining", error_kind::interrupted};
      if (std::chrono::steady_clock::now() > deadline_)
        return error{name_ + ": node 0 did not publish its port in time", error_kind::node_lost};
      std::this_thread::sleep_for(pause);
    }
    return guarded(name_, [&] {
      const auto bytes = store_->get(key_);
      return static_cast<std::uint16_t>(std::stoul(std::string(bytes.begin(), bytes.end())));
    });
  }

 private:
  const std::string name_;  ///< in messages
  const std::string key_;
  const c10::intrusive_ptr<c10d::TCPStore> store_;
  const std::chrono::steady_clock::time_point deadline_;
};

}  // namespace

result<std::unique_ptr<agent_store>> connect_tcp_store(const launch_place& place,
                                                       std::chrono::milliseconds limit) {
  const auto name = fmt::format("the store of torchrun at {}:{}", place.host, place.port);
  const auto deadline = std::chrono::steady_clock::now() + limit;
  c10d::TCPStoreOptions options;
  options.port = place.port;
  options.waitWorkers = false;
  options.timeout = limit;
  auto store =
      guarded(name, [&] { return c10::make_intrusive<c10d::TCPStore>(place.host, options); });
  if (!store) return store.failure();
  return std::unique_ptr<agent_store>{
      std::make_unique<tcp_store>(name, *std::move(store), deadline)};
}

}  // namespace rrfp::actors
