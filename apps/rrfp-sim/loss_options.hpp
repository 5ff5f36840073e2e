/// The options of --losses, for all programs that have it.
#pragma once

#include <CLI/CLI.hpp>

#include "../common/checks.hpp"
#include "losses.hpp"

namespace rrfp::apps {

/// Returns --losses itself.
inline CLI::Option* add_loss_options(CLI::App& app, loss_options& wanted) {
  constexpr double seconds_max = 1e7;
  auto* losses = app.add_option("--losses", wanted.mtbf_hours,
                                "What losses of nodes cost: mean hours between two\n"
                                "losses of one node, as in 100,1000,10000")
                     ->delimiter(',')
                     ->take_all()
                     ->allow_extra_args(false)
                     ->check(between(0.001, 1e9));
  const auto add = [&](const char* name, auto& value, const char* help, auto least, auto most) {
    return app.add_option(name, value, help)->needs(losses)->check(between(least, most));
  };
  add("--nodes", wanted.nodes, "Number of nodes; default: one for each rank", 1U, 4096U);
  add("--replace-s", wanted.replace,
      "Seconds until a lost node has been replaced, from\nwhen its loss is noticed", 0.0,
      seconds_max)
      ->capture_default_str();
  add("--repair-s", wanted.repair,
      "The same where the others go on without it (reroute);\ndefault: as --replace-s", 0.0,
      seconds_max);
  add("--restart-s", wanted.restart, "Seconds that the start of the whole job takes then", 0.0,
      seconds_max)
      ->capture_default_str();
  add("--checkpoint-s", wanted.checkpoint, "Seconds by which a checkpoint delays the training", 0.0,
      seconds_max)
      ->capture_default_str();
  return losses;
}

}  // namespace rrfp::apps
