/// The keys that an experiment adds to those of a job, and the structs that they fill.
#pragma once

#include <rrfp/job/key_table.hpp>

#include "experiment.hpp"

namespace rrfp::experiment {

/// The place in engine_words.
enum class engine_choice : std::uint8_t {};

/// What the keys before the first table say.
struct head_options {
  experiment made;
  std::string job;
  engine_choice engine = {};
};

const job::key_table<head_options>& head_keys();
/// The keys of [[workload]], [[run]] and [[weather]], in this order.
const job::key_table<entry>& entry_keys(std::size_t kind);

inline constexpr std::string_view kinds[] = {"workload", "run", "weather"};

}  // namespace rrfp::experiment
