#include "cell.hpp"

#include <algorithm>
#include <fstream>
#include <numeric>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include <rrfp/base/check.hpp>

namespace rrfp::experiment {

namespace {

/// Raise this whenever an unchanged description leads to a different outcome.
constexpr int description_version = 3;

/// The shares of an outcome, and the times of stages that they are of.
constexpr std::pair<double figures::*, double stage_time::*> shares[] = {
    {&figures::blocked, &stage_time::blocked_ms},
    {&figures::ranks, &stage_time::ranks_ms},
    {&figures::gathering, &stage_time::gathering_ms},
    {&figures::deferred, &stage_time::deferred_ms}};

/// The contents of a file on which the outcome depends; its name says nothing about it.
std::string content_of(std::string_view key, const std::string& path) {
  std::ifstream file{path, std::ios::binary};
  std::ostringstream content;
  content << file.rdbuf();
  return fmt::format(" {}={}", key,
                     file.is_open() ? checksum(content.view()) : path + ": cannot be read");
}

}  // namespace

cell cell_at(const experiment& e, std::size_t number, engine_kind engine) {
  RRFP_CHECK(number < e.cells(), "the number must be below e.cells()");
  const auto next = [&](std::size_t size) {
    const auto at = number % size;
    number /= size;
    return at;
  };
  const auto seed = e.seeds[next(e.seeds.size())];
  const auto& run = e.runs[next(e.runs.size())];
  const auto& weather = e.weathers[next(e.weathers.size())];
  const auto& workload = e.workloads[number];
  cell c{workload.name, weather.name,  run.name,          workload.job, run.hint, engine, 1,
         weather.fault, run.agreement, workload.gather_ms};
  weather.settings.apply_to(c.job);
  run.settings.apply_to(c.job);
  c.job.name = run.name;
  c.job.jitter.seed = seed;
  const auto device = std::exchange(c.job.device, {});
  switch (engine) {
    case engine_kind::simulator: break;
    case engine_kind::wall_clock:
      // Messages within a process are handed over, not copied; their size has no effect.
      c.job.device = {job::device_kind::emulated, e.time_scale, 1};
      break;
    case engine_kind::processes:
      c.nodes = e.nodes;
      c.job.device = device;
      if (device.kind == job::device_kind::emulated) c.job.device.time_scale = e.time_scale;
      break;
  }
  return c;
}

std::string description_of(const cell& c) {
  auto text =
      fmt::format("v{} engine={} hint={}", description_version, name(c.engine), name(c.hint));
  const bool is_real = c.engine == engine_kind::processes;
  for (const auto& s : job::changes(c.job))
    if (is_real || is_cell_key(s.key)) text += fmt::format(" {}={}", s.key, s.value);
  if (is_real) text += fmt::format(" nodes={}", c.nodes);
  if (const auto& f = c.fault; f.kind != fault_kind::none)
    text += fmt::format(" fault={} node={} step={} seconds={:f}", name(f.kind), f.node, f.step,
                        f.seconds);
  if (c.agreement != rank_agreement::arrivals)
    text +=
        fmt::format(" agreement={} gather_ms={}", name(c.agreement), job::to_toml({c.gather_ms}));
  const auto& policy = c.job.dispatch.policy;
  for (const std::string kind : {"table", "lib"})
    if (policy.starts_with(kind + ":")) text += content_of(kind, policy.substr(kind.size() + 1));
  if (!c.job.delays.file.empty()) text += content_of("delays", c.job.delays.file);
  const auto& histogram = study::options_of(c.job).texts.histogram;
  if (!histogram.empty()) text += content_of("histogram", histogram);
  return text;
}

std::string checksum(std::string_view text) {
  std::uint64_t sum = 0xcbf29ce484222325U;
  for (const char c : text) sum = (sum ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return fmt::format("{:016x}", sum);
}

void figures::add(const figures& part, double parts) {
  for (const auto share : {&figures::idle, &figures::blocked, &figures::ranks, &figures::gathering,
                           &figures::deferred, &figures::launch_gap_ms})
    this->*share += part.*share / parts;
  agreement += part.agreement;
  slots_peak = std::max(slots_peak, part.slots_peak);
  activation_bytes_peak = std::max(activation_bytes_peak, part.activation_bytes_peak);
  held_bytes_peak = std::max(held_bytes_peak, part.held_bytes_peak);
}

double outcome::mean_ms() const {
  return std::accumulate(step_ms.begin(), step_ms.end(), 0.0) / static_cast<double>(step_ms.size());
}

outcome_sum::outcome_sum(const cell& c)
    : model_(study::workload_of(c.job).value()),
      replicas_(c.job.pipeline.replicas),
      devices_(c.job.pipeline.stages * replicas_) {
  made_.step_ms.assign(c.job.train.steps, 0);
}

void outcome_sum::add(const std::vector<double>& step_ms, const std::vector<stage_time>& stages) {
  RRFP_CHECK(step_ms.size() == made_.step_ms.size(), "every replica runs every step");
  for (std::size_t i = 0; i < step_ms.size(); ++i)
    made_.step_ms[i] = std::max(made_.step_ms[i], step_ms[i]);
  for (std::uint32_t s = 0; s < stages.size(); ++s) {
    const auto& of = stages[s];
    const auto& memory = of.memory;
    busy_ms_ += of.busy_ms;
    for (const auto& [share, ms] : shares) made_.*share += of.*ms;
    made_.agreement += of.agreement;
    made_.launch_gap_ms = std::max(made_.launch_gap_ms, of.launch_gap_ms);
    made_.slots_peak = std::max(made_.slots_peak, memory.slots_peak);
    if (model_ == nullptr) continue;
    const auto weights = static_cast<std::uint64_t>(model_->static_bytes(stage_id{s}));
    made_.activation_bytes_peak = std::max(made_.activation_bytes_peak, memory.bytes_peak);
    made_.held_bytes_peak = std::max(made_.held_bytes_peak, memory.bytes_peak + weights);
  }
}

outcome outcome_sum::finish() {
  double all_ms = 0;
  for (auto& ms : made_.step_ms) {
    if (model_) ms += model_->gradient_exchange_ms();
    all_ms += ms * devices_;
  }
  if (all_ms > 0) {
    made_.idle = 1 - busy_ms_ / all_ms;
    for (const auto& [share, ms] : shares) made_.*share /= all_ms;
  }
  made_.launch_gap_ms /= static_cast<double>(made_.step_ms.size()) * replicas_;
  return made_;
}

}  // namespace rrfp::experiment
