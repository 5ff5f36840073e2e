#include <cstdio>

#include <fmt/format.h>

#include "commands.hpp"
#include "local_launch.hpp"
#include "refuse.hpp"
#include "training.hpp"

namespace rrfp::apps {

int run_command(const command_options& options) {
  interrupt_watch interrupts;
  const auto loaded = job::load_job(options.job, options.settings);
  if (!loaded) return refuse(loaded.message());
  for (const auto& note : loaded->notes) fmt::print(stderr, "rrfp-node: {}\n", note);
  const auto runs = job::variants(*loaded);
  const training_options outputs{options.json, options.trace};
  if (auto can = check_training(runs, outputs, options.local_nodes); !can)
    return refuse(can.message());
  if (options.local_nodes == 1) return train(runs, outputs, interrupts, {});
  return launch_nodes(options, *loaded, interrupts);
}

}  // namespace rrfp::apps
