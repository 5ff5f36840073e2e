#include "process_engine.hpp"

#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <thread>

#include <rrfp/io/parse_json.hpp>

#include "node_job.hpp"

namespace rrfp::apps {

namespace {

namespace fs = std::filesystem;
using clock = std::chrono::steady_clock;
using experiment::cell;
using experiment::fault_kind;
using experiment::outcome;

constexpr std::chrono::milliseconds poll_period{5};
/// A job that reports nothing for so long beyond its own limit hangs.
constexpr double patience_s = 120;

class scratch_folder {
 public:
  scratch_folder() {
    const auto* const parent = std::getenv("TMPDIR");
    path_ = (fs::path{parent != nullptr ? parent : "/tmp"} / "rrfp-jitter-XXXXXX").string();
    if (::mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  scratch_folder(const scratch_folder&) = delete;
  scratch_folder& operator=(const scratch_folder&) = delete;
  ~scratch_folder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// What the JSON log of a job has told.
struct progress_of_job {
  std::map<std::uint64_t, double> step_ms;           ///< as reported, by number from 1
  std::map<std::uint64_t, clock::time_point> ended;  ///< when that was first seen
  nlohmann::json summary;
};

void record(const std::string& line, progress_of_job& to) {
  auto parsed = parse_json(line);
  // A node that was killed may leave half a line, which another one continues.
  if (std::holds_alternative<json_fault>(parsed)) return;
  auto& event = std::get<nlohmann::json>(parsed);
  const auto kind = event.value("event", "");
  if (kind == "summary") to.summary = std::move(event);
  if (kind != "step") return;
  const auto step = event.at("step").get<std::uint64_t>();
  to.step_ms[step] = event.at("step_ms").get<double>();
  to.ended.try_emplace(step, clock::now());
}

/// Makes the fault of a cell happen once.
class fault {
 public:
  fault(const cell& c, const node_job& job) : what_(c.fault), job_(job) {}

  void advance(std::uint64_t complete_steps) {
    if (what_.kind == fault_kind::none || complete_steps < what_.step) return;
    if (stopped_ != 0) {
      if (clock::now() < until_) return;
      ::kill(stopped_, SIGCONT);
      what_.kind = fault_kind::none;
      return;
    }
    const auto pid = job_.pid_of(what_.node);
    if (!pid) return;  // it starts
    if (what_.kind == fault_kind::kill) {
      ::kill(*pid, SIGKILL);
      what_.kind = fault_kind::none;
      return;
    }
    ::kill(*pid, SIGSTOP);
    stopped_ = *pid;
    until_ = clock::now() + std::chrono::microseconds{std::llround(what_.seconds * 1e6)};
  }
  bool is_over() const { return what_.kind == fault_kind::none; }

 private:
  experiment::node_fault what_;
  const node_job& job_;
  pid_t stopped_ = 0;
  clock::time_point until_;
};

/// The times of the steps, in modelled milliseconds.
result<std::vector<double>> times_of(const cell& c, const progress_of_job& seen) {
  std::vector<double> step_ms;
  for (const auto& [step, ms] : seen.step_ms) {
    const auto before = seen.ended.find(step - 1);
    const bool is_observed = c.fault.kind != fault_kind::none && before != seen.ended.end();
    const std::chrono::duration<double, std::milli> between =
        is_observed ? seen.ended.at(step) - before->second : clock::duration{};
    step_ms.push_back((is_observed ? between.count() : ms) / c.job.device.time_scale);
  }
  if (step_ms.size() == c.job.train.steps && seen.summary.is_object()) return step_ms;
  return error{"rrfp-jitter-node reported " + std::to_string(step_ms.size()) + " of " +
                   std::to_string(c.job.train.steps) + " steps",
               error_kind::failed};
}

result<outcome> outcome_of(const cell& c, const progress_of_job& seen) {
  const auto step_ms = times_of(c, seen);
  if (!step_ms) return step_ms.failure();
  const auto scale = c.job.device.time_scale;
  std::vector<experiment::stage_time> stages;
  for (const auto& s : seen.summary.at("stages")) {
    const auto ms = [&](const char* key) { return s.at(key).get<double>() / scale; };
    experiment::stage_time stage{.busy_ms = ms("busy_ms"),
                                 .blocked_ms = ms("blocked_ms"),
                                 .ranks_ms = ms("ranks_ms"),
                                 .agreement = {},
                                 .memory = {},
                                 .launch_gap_ms = ms("launch_gap_ms")};
    s.at("peak_slots").get_to(stage.memory.slots_peak);
    s.at("peak_bytes").get_to(stage.memory.bytes_peak);
    stages.push_back(stage);
  }
  experiment::outcome_sum sum{c};
  sum.add(*step_ms, stages);
  return sum.finish();
}

}  // namespace

result<outcome> run_in_processes(const cell& c) {
  if (auto good = check_cell(c); !good) return good.failure();
  const scratch_folder folder;
  if (folder.path().empty())
    return error{"cannot create a folder for temporary files", error_kind::failed};
  auto started = node_job::start(c.job, c.nodes, folder.path());
  if (!started) return started.failure();
  auto& job = **started;
  progress_of_job seen;
  fault planned{c, job};
  auto heard = clock::now();
  const std::chrono::duration<double> limit{c.job.run.hang_timeout_s + c.fault.seconds +
                                            patience_s};
  for (bool over = false; !over;) {
    // Asked first: what a job wrote before its end is read once more.
    over = job.is_over();
    for (const auto& line : job.new_lines()) {
      record(line, seen);
      heard = clock::now();
    }
    planned.advance(seen.step_ms.empty() ? 0 : seen.step_ms.rbegin()->first);
    if (clock::now() - heard > limit)
      return error{"rrfp-jitter-node reported nothing for too long", error_kind::failed};
    if (!over) std::this_thread::sleep_for(poll_period);
  }
  if (auto ended = job.outcome(); !ended) return ended.failure();
  if (!planned.is_over()) return error{"the job ended before the fault", error_kind::failed};
  return outcome_of(c, seen);
}

}  // namespace rrfp::apps
