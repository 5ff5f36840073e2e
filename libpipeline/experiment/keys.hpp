/// The keys of an experiment file, and the structs that they fill.
#pragma once

#include <rrfp/experiment/experiment.hpp>
#include <rrfp/job/key_table.hpp>

namespace rrfp::experiment {

/// The keys before the first table.
enum class engine_choice : std::uint8_t { simulator, wall_clock, both };

struct head_options {
  std::string name;
  engine_choice engine = engine_choice::simulator;
  double time_scale = 1;
  std::vector<std::uint32_t> seeds{1, 2, 3};
  std::uint64_t steps = 3;
  std::string baseline;
  std::vector<std::string> ablation;
};

struct head_draft {
  head_options options;
};

/// A [[run]] table: it expands to one run for each combination of its lists.
struct run_matrix {
  std::string name;
  std::vector<run_mode> mode{run_mode::ready};
  std::vector<std::string> policy{"bfw"};
  std::vector<hint_quality> hint{hint_quality::own};
  std::vector<double> notice_ms{0};
  std::vector<std::optional<std::uint32_t>> slots{std::nullopt};
  std::uint64_t slot_bytes = 0;
  std::vector<std::uint32_t> run_ahead{0};
  std::vector<admission> admit{admission::loaded};
  paper_column paper = paper_column::none;
};

/// The matrix with this single run.
run_matrix run_matrix_of(const run_options& r);

struct run_draft {
  run_matrix matrix;
};

struct weather_name {
  std::string name;
};

struct weather_draft {
  weather_name label;
  weather::jitter_options jitter;
  weather::conditions conditions;
};

const job::key_table<head_draft>& head_keys();
const job::key_table<workload_entry>& workload_keys();
const job::key_table<run_draft>& run_keys();
const job::key_table<weather_draft>& weather_keys();

/// "auto", "none", "1f1b", "p" or a number, as a TOML value.
job::value slots_value(const std::optional<std::uint32_t>& slots);

}  // namespace rrfp::experiment
