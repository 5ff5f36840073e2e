#include <map>
#include <shared_mutex>

#include <rrfp/actors/transport.hpp>
#include <rrfp/schedule/check.hpp>

namespace rrfp::actors {

namespace {

class in_process_transport final : public transport {
 public:
  void bind(rank_address address, message_sink sink) override {
    const std::unique_lock lock{mutex_};
    if (closed_) return;  // a sink kept now would keep its actor for ever
    RRFP_CHECK(sinks_.emplace(address, std::move(sink)).second, "an address is bound once");
  }

  void send(message m) override {
    const std::shared_lock lock{mutex_};
    if (closed_) return;
    const auto found = sinks_.find(m.header.to);
    RRFP_CHECK(found != sinks_.end(), "the receiver is bound");
    found->second(std::move(m));
  }

  void close() override {
    // A sink may hold the last reference to its actor, whose end may wait for a thread that sends:
    // sinks die outside the lock.
    std::map<rank_address, message_sink> dying;
    const std::unique_lock lock{mutex_};
    closed_ = true;
    dying.swap(sinks_);
  }

 private:
  std::shared_mutex mutex_;
  std::map<rank_address, message_sink> sinks_;
  bool closed_ = false;
};

}  // namespace

std::unique_ptr<transport> make_in_process_transport() {
  return std::make_unique<in_process_transport>();
}

}  // namespace rrfp::actors
