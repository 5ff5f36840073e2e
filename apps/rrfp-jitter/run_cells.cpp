#include "run_cells.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include <fmt/format.h>

#include <rrfp/base/check.hpp>

#include "../common/console.hpp"

namespace rrfp::apps {

namespace {

using experiment::engine_kind;

constexpr std::chrono::milliseconds live_interval{100};
constexpr std::chrono::seconds line_interval{5};

/// Progress of an experiment on stderr: a live line on a terminal, a line every few seconds
/// elsewhere.
class progress {
 public:
  /// `cells` is the number of cells to run, `engine` names the engine, and `work` is the sum of all
  /// arguments of cell_done().
  progress(std::string engine, std::size_t cells, double work)
      : engine_(std::move(engine)), cells_(cells), work_(work) {}

  /// `work`: the share of this cell, in any unit.
  void cell_done(double work) {
    ++done_;
    work_done_ += work;
    const auto now = clock::now();
    if (now - shown_ < (live_ ? live_interval : line_interval)) return;
    shown_ = now;
    const std::chrono::duration<double> passed = now - begun_;
    const auto left = work_done_ > 0 ? passed.count() * (work_ / work_done_ - 1) : 0;
    print_error("{}{}: {} of {} cells, {:.0f} s left{}", live_ ? "\r" : "", engine_, done_, cells_,
                left, live_ ? "   " : "\n");
  }
  /// Clears the line.
  void finish() const {
    if (live_) print_error("\r{:60}\r", "");
  }

 private:
  using clock = std::chrono::steady_clock;

  const std::string engine_;
  const std::size_t cells_;
  const double work_;
  const bool live_ = ::isatty(STDERR_FILENO) == 1;
  const clock::time_point begun_ = clock::now();
  std::size_t done_ = 0;
  double work_done_ = 0;
  clock::time_point shown_ = begun_;
};

/// The cells of one engine that are still to run, shared by the worker threads.
class work {
 public:
  /// `cost`: cost of each cell in `missing`, in any unit.
  work(const experiment::experiment& e, engine_kind engine, std::vector<std::size_t> missing,
       std::map<std::size_t, double> cost, experiment::store& done, const cell_options& options)
      : experiment_(e),
        engine_(engine),
        missing_(std::move(missing)),
        cost_(std::move(cost)),
        done_(done),
        options_(options),
        progress_(std::string{name(engine)}, missing_.size(), total()) {}

  status run(std::size_t threads) {
    std::vector<std::thread> all;
    try {
      while (all.size() < std::min(threads, missing_.size()))
        all.emplace_back([this] { run_some(); });
    } catch (const std::system_error&) {
      if (all.empty()) throw;  // fewer do, too
    }
    for (auto& thread : all) thread.join();
    progress_.finish();
    if (failed_) return *failed_;
    if (refused_.empty()) return success();
    // The other cells have run and are kept, so a corrected experiment need not repeat them.
    return error{refused_.begin()->second +
                 (refused_.size() == 1
                      ? ""
                      : fmt::format("; {} more cells cannot run", refused_.size() - 1))};
  }

 private:
  double total() const {
    double all = 0;
    for (const auto& [cell, cost] : cost_) all += cost;
    return all;
  }

  std::optional<std::size_t> next() {
    const std::lock_guard lock{mutex_};
    if (failed_ || next_ == missing_.size() || (options_.interrupted && options_.interrupted()))
      return std::nullopt;
    return missing_[next_++];
  }

  void run_some() {
    while (const auto number = next()) {
      const auto c = cell_at(experiment_, *number, engine_);
      const auto ran = run_cell(c);
      const std::lock_guard lock{mutex_};
      if (!ran)
        refused_[*number] = fmt::format("{}: run {}: {}: {}", experiment_.source, c.run,
                                        title_of(c, *number), ran.message());
      else if (const auto kept = done_.add(description_of(c), *ran); !kept)
        failed_ = kept.failure();
      progress_.cell_done(cost_.at(*number));
    }
  }

  const experiment::experiment& experiment_;
  const engine_kind engine_;
  const std::vector<std::size_t> missing_;
  const std::map<std::size_t, double> cost_;
  experiment::store& done_;
  const cell_options& options_;
  progress progress_;
  std::mutex mutex_;
  std::size_t next_ = 0;
  std::optional<error> failed_;  ///< the store cannot be written
  std::map<std::size_t, std::string> refused_;
};

std::size_t concurrent_cells(engine_kind engine, const cell_options& options) {
  switch (engine) {
    case engine_kind::simulator:
      return std::max<std::size_t>(std::thread::hardware_concurrency(), 1);
    case engine_kind::wall_clock: return options.jobs;
    case engine_kind::processes: return 1;  // they need the cores, and the devices
  }
  RRFP_CHECK(false, "unknown engine");
}

/// Cost of a cell on the wall clock, if the simulator has run it; otherwise equal for all cells.
double cost_of(const experiment::experiment& e, std::size_t number, const experiment::store& done) {
  const auto* known = done.find(description_of(cell_at(e, number, engine_kind::simulator)));
  return known != nullptr ? known->mean_ms() : 1;
}

}  // namespace

std::string title_of(const experiment::cell& c, std::size_t number) {
  return fmt::format("cell {} ({}, weather {}, {}, seed {})", number, c.workload, c.weather, c.run,
                     c.job.jitter.seed);
}

result<std::vector<experiment::engine_outcomes>> run_cells(const experiment::experiment& e,
                                                           experiment::store& done,
                                                           const cell_options& options) {
  std::vector<experiment::engine_outcomes> all;
  for (const auto engine : e.engines) {
    std::vector<std::size_t> missing;
    std::map<std::size_t, double> cost;
    for (std::size_t i = 0; i < e.cells(); ++i) {
      if (done.find(description_of(cell_at(e, i, engine))) != nullptr) continue;
      missing.push_back(i);
      cost[i] = cost_of(e, i, done);
    }
    // One seed after the other: what is compared runs at about the same time, and the deviation
    // over the seeds contains what the machine does over the whole time.
    std::ranges::stable_sort(missing, {}, [&](std::size_t i) { return i % e.seeds.size(); });
    if (missing.size() < e.cells())
      print_error("{} of {} cells were already done{}\n", e.cells() - missing.size(), e.cells(),
                  engine == engine_kind::wall_clock ? " on the wall clock" : "");
    work todo{e, engine, std::move(missing), std::move(cost), done, options};
    if (auto ran = todo.run(concurrent_cells(engine, options)); !ran) return ran.failure();

    experiment::engine_outcomes finished{engine, {}};
    for (std::size_t i = 0; i < e.cells(); ++i)
      if (const auto* o = done.find(description_of(cell_at(e, i, engine))))
        finished.outcomes.push_back(*o);
    all.push_back(std::move(finished));
    if (all.back().outcomes.size() < e.cells()) break;
  }
  return all;
}

result<experiment::outcome> run_cell(const experiment::cell& c) {
  switch (c.engine) {
    case engine_kind::simulator: return experiment::run_in_simulator(c);
    case engine_kind::wall_clock: return experiment::run_on_wall_clock(c);
    case engine_kind::processes: return run_in_processes(c);
  }
  RRFP_CHECK(false, "unknown engine");
}

}  // namespace rrfp::apps
