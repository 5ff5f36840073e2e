/// The options of programs that read recorded runs, for what logs leave out.
#pragma once

#include <CLI/CLI.hpp>

#include <rrfp/foreign/read_traces.hpp>

#include "checks.hpp"

namespace rrfp::apps {

inline void add_trace_options(CLI::App& app, foreign::read_options& wanted) {
  app.add_option("--stages", wanted.stages,
                 "Stages of a job whose log with timers does not say\n"
                 "them")
      ->check(between(std::uint32_t{1}, report::traced_stages_max));
  app.add_option("--microbatches", wanted.microbatches, "The same, microbatches of a step")
      ->check(between(std::uint32_t{1}, report::traced_microbatches_max));
}

}  // namespace rrfp::apps
