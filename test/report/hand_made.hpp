/// Traces of a few tasks with times that can be added by hand, in the format of the runtime.
#pragma once

#include <string>
#include <vector>

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <rrfp/report/timeline.hpp>

namespace rrfp::report::testing {

/// Times are whole microseconds.
class hand_made {
 public:
  struct details {
    int rank = 0;
    int step = 0;
    int seq = -1;  ///< -1: the next unused number
    int delay = 0;
    int slots = 0;
    int bytes = 0;
    std::string reason = "only_choice";
    int skipped = 0;
  };

  /// Begins a run with one process per stage; later calls add further runs.
  hand_made& run(const std::string& title, int stages) {
    first_ += stages_;
    stages_ = stages;
    for (int s = 0; s < stages; ++s) process(first_ + s, fmt::format("{}: stage {}", title, s));
    return *this;
  }
  hand_made& process(int id, const std::string& name) {
    return event(fmt::format(
        R"({{"name":"process_name","ph":"M","pid":{},"tid":0,"args":{{"name":"{}"}}}})", id, name));
  }

  hand_made& task(int stage, const std::string& what, int decided, int begin, int end) {
    return task(stage, what, decided, begin, end, details{});
  }
  /// `delay_us`: in place of d.delay, as text with decimals.
  hand_made& task(int stage, const std::string& what, int decided, int begin, int end, details d,
                  const std::string& delay_us = "") {
    if (d.seq < 0) d.seq = next_seq_++;
    const auto kind = what.substr(0, what.find_first_of("0123456789"));
    event(fmt::format(
        R"({{"name":"{}","cat":"{}","ph":"X","pid":{},"tid":{},"ts":{}.000,"dur":{}.000,"args":{{)"
        R"("step":{},"mb":0,"chunk":0,"seq":{},"reason":"{}","skipped":{},"folds":0,)"
        R"("decided_us":{}.000,"delay_us":{}}}}})",
        what, kind, first_ + stage, d.rank, begin, end - begin, d.step, d.seq, d.reason, d.skipped,
        decided, delay_us.empty() ? std::to_string(d.delay) : delay_us));
    event(fmt::format(R"({{"name":"slots","ph":"C","pid":{},"ts":{},"args":{{"held":{}}}}})",
                      first_ + stage, end, d.slots));
    return event(fmt::format(
        R"({{"name":"activation bytes","ph":"C","pid":{},"ts":{},"args":{{"held":{}}}}})",
        first_ + stage, end, d.bytes));
  }

  hand_made& wait(int stage, const std::string& why, const std::string& head, int begin, int end,
                  int step = 0) {
    return event(fmt::format(
        R"({{"name":"wait: {}","cat":"wait","ph":"X","pid":{},"tid":1000,"ts":{}.000,"dur":{}.000,)"
        R"("args":{{"step":{},"for":"{}"}}}})",
        why, first_ + stage, begin, end - begin, step, head));
  }

  /// The record that the job itself makes of a step.
  hand_made& step(int number, int begin, int took, int peak_bytes) {
    return event(fmt::format(
        R"({{"name":"step","cat":"step","ph":"i","s":"t","pid":{},"tid":1001,"ts":{}.000,)"
        R"("args":{{"step":{},"took_us":{}.000,"peak_bytes":{}}}}})",
        first_, begin, number, took, peak_bytes));
  }

  std::string text(int dropped = 0) const {
    return fmt::format(
        "{{\"traceEvents\":[\n{}\n],\"displayTimeUnit\":\"ms\",\"otherData\":{{\"records_dropped\":"
        "{}}}}}\n",
        events_, dropped);
  }
  trace_file read() const {
    auto read = parse_trace(text(), "hand-made");
    if (!read) FAIL(read.message());
    return std::move(*read);
  }

  hand_made& event(const std::string& e) {
    if (!events_.empty()) events_ += ",\n";
    events_ += e;
    return *this;
  }

 private:
  std::string events_;
  int first_ = 0;
  int stages_ = 0;
  int next_seq_ = 0;
};

/// Converts microseconds to nanoseconds.
constexpr nanoseconds us(std::int64_t t) { return t * 1000; }

inline timeline all_steps(const traced_run& run) {
  auto made = make_timeline(run, step_id{0}, step_id{~std::uint64_t{0}});
  REQUIRE(made.ok());
  return std::move(*made);
}

/// Two stages, two microbatches, fused backward; 95 us.
inline hand_made two_stages() {
  hand_made t;
  t.run("two stages", 2)
      .wait(0, "input", "F0", 0, 1)
      .task(0, "F0", 1, 2, 12)
      .task(0, "F1", 12, 12, 22)
      .wait(0, "input", "BW0", 22, 40)
      .task(0, "BW0", 40, 41, 61)
      .wait(0, "input", "BW1", 61, 75)
      .task(0, "BW1", 75, 75, 95)
      .wait(0, "complete", "the next step", 95, 99)
      .wait(1, "input", "F0", 0, 14)
      .task(1, "F0", 14, 15, 25)
      .task(1, "BW0", 25, 25, 38)
      .task(1, "F1", 38, 39, 50)
      .task(1, "BW1", 50, 50, 72)
      .wait(1, "complete", "the next step", 72, 99);
  return t;
}

}  // namespace rrfp::report::testing
