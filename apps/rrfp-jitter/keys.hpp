/// The keys that an experiment adds to those of a job, and the structs that they fill.
#pragma once

#include <rrfp/job/key_table.hpp>

#include "experiment.hpp"

namespace rrfp::experiment {

/// The place in engine_words.
enum class engine_choice : std::uint8_t {};

/// The keys before the first table.
struct head_options {
  std::string name;
  std::string job;
  engine_choice engine = {};
  std::uint32_t nodes = 2;
  std::vector<std::uint32_t> seeds{1, 2, 3};
  std::string baseline;
  std::vector<std::string> ablation;
};

struct head_draft {
  head_options options;
};

/// What an entry of any kind sets besides keys of a job.
struct entry_options {
  std::string name;
  hint_quality hint = hint_quality::own;
  paper_column paper = paper_column::none;
  rank_agreement agreement = rank_agreement::arrivals;
  double gather_ms = default_gather_ms;
};

struct entry_draft {
  entry_options options;
  paper_figures paper;
  node_fault fault;
};

const job::key_table<head_draft>& head_keys();
/// The keys of [[workload]], [[run]] and [[weather]], in this order.
const job::key_table<entry_draft>& entry_keys(std::size_t kind);

inline constexpr std::string_view kinds[] = {"workload", "run", "weather"};

}  // namespace rrfp::experiment
