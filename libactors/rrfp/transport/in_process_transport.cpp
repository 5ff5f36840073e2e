#include <rrfp/base/check.hpp>

#include "sink_table.hpp"

namespace rrfp::actors {

namespace {

class in_process_transport final : public transport {
 public:
  void bind(rank_address address, message_sink sink) override {
    sinks_.bind(address, std::move(sink));
  }
  void send(message m) override {
    RRFP_CHECK(sinks_.deliver(std::move(m)) != messaging::delivery::not_bound,
               "the receiver is bound");
  }
  /// The tensor itself is handed over, in any memory.
  bool takes_device_memory(const rank_address&) const override { return true; }
  void close() override { sinks_.close(); }

 private:
  sink_table sinks_;
};

}  // namespace

std::unique_ptr<transport> make_in_process_transport() {
  return std::make_unique<in_process_transport>();
}

}  // namespace rrfp::actors
