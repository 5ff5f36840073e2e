/// Virtual time and what happens in it: a queue of events, the nodes' processes, and how the run
/// fails. One run is one world; nothing outlives it.
#pragma once

#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "scenario.hpp"

namespace rrfp::cluster {

/// A checker found a fault of the runtime.
class violation : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

#define RRFP_EXPECT(condition, text) \
  (static_cast<bool>(condition) ? static_cast<void>(0) : throw ::rrfp::cluster::violation(text))

struct traffic;

/// What receives the events that come often; functions serve for all others.
class event_sink {
 public:
  virtual ~event_sink() = default;
  virtual void on_event(std::uint32_t what, std::uint32_t argument) = 0;
};

/// Names an event_sink for its lifetime; events of one that has gone are dropped.
using sink_id = std::uint32_t;

class world {
 public:
  world(scenario drawn, std::FILE* trace) : c(std::move(drawn)), trace_(trace) {}
  world(const world&) = delete;

  const scenario c;
  traffic* counted = nullptr;  ///< null: messages are not counted

  nanoseconds now() const { return now_; }
  std::uint64_t events() const { return events_; }

  sink_id add_sink(event_sink& to);
  void remove_sink(sink_id id) { sinks_[id] = nullptr; }
  void post(sink_id to, nanoseconds after, std::uint32_t what, std::uint32_t argument) {
    push({now_ + after, order_++, to, what, argument});
  }
  void call(nanoseconds after, std::function<void()> work);

  /// Runs the next event; false if there is none.
  bool advance();

  bool traces() const { return trace_ != nullptr; }
  void note(const std::string& line) const {
    if (trace_ != nullptr)
      std::fprintf(trace_, "%12.3f ms  %s\n", static_cast<double>(now_) / ms, line.c_str());
  }

 private:
  struct timed {
    nanoseconds at;
    std::uint64_t order;
    sink_id to;
    std::uint32_t what;
    std::uint32_t argument;

    bool operator>(const timed& other) const {
      return at != other.at ? at > other.at : order > other.order;
    }
  };
  static constexpr sink_id functions = ~sink_id{0};

  void push(const timed& e);

  nanoseconds now_ = 0;
  std::uint64_t order_ = 0;
  std::uint64_t events_ = 0;
  std::vector<timed> queue_;
  std::vector<event_sink*> sinks_;
  std::vector<std::function<void()>> works_;
  std::vector<std::uint32_t> free_works_;
  std::FILE* const trace_;
};

}  // namespace rrfp::cluster
