/// Small experiments for the tests.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "cell.hpp"

namespace rrfp::experiment::testing {

constexpr std::uint64_t gib = std::uint64_t{1} << 30;

/// The error line of an experiment, or "accepted".
inline std::string refusal(const std::string& text) {
  const auto made = parse_experiment(text, "x.toml");
  return made ? "accepted" : made.message();
}

inline experiment good(const std::string& text) {
  const auto made = parse_experiment(text, "x.toml");
  if (!made) throw std::runtime_error(made.message());
  return *made;
}

/// A file that is removed at the end of the test.
class scratch_file {
 public:
  explicit scratch_file(const std::string& text) {
    static int number = 0;
    path_ = (std::filesystem::temp_directory_path() /
             ("rrfp-experiment-" + std::to_string(::getpid()) + "-" + std::to_string(++number)))
                .string();
    std::ofstream{path_} << text;
  }
  scratch_file(const scratch_file&) = delete;
  scratch_file& operator=(const scratch_file&) = delete;
  ~scratch_file() { std::filesystem::remove(path_); }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Four equal stages, eight microbatches, one run, no disturbances.
inline cell plain_cell() {
  cell c;
  c.job.train.steps = 1;
  c.job.pipeline.stages = 4;
  c.job.pipeline.microbatches = 8;
  c.job.dispatch.mode = dispatch_mode::in_order;
  c.job.dispatch.policy = "one_f_one_b";
  return c;
}

/// A multimodal workload in the measured weather.
inline cell jittered_cell() {
  auto c = plain_cell();
  study::options_of(c.job).cost.preset = "qwen3-1.7b-vit-h";
  c.job.jitter = *simulate::conditions_of("measured");
  c.job.jitter.seed = 7;
  return c;
}

/// Blocking messages in order.
inline void block(cell& c) {
  c.job.dispatch.mode = dispatch_mode::in_order;
  study::options_of(c.job).dispatch.messages = study::messages_kind::blocking;
}

/// By readiness, with this policy.
inline void make_ready(cell& c, const char* policy) {
  c.job.dispatch.mode = dispatch_mode::ready;
  study::options_of(c.job).dispatch.messages = study::messages_kind::asynchronous;
  c.job.dispatch.policy = policy;
}

inline outcome run_well(const cell& c) {
  const auto ran = run_in_simulator(c);
  if (!ran) throw std::runtime_error(ran.message());
  return *ran;
}

}  // namespace rrfp::experiment::testing
