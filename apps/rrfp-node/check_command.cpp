#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include <rrfp/actors/job_checkpoint.hpp>
#include <rrfp/actors/job_session.hpp>
#include <rrfp/actors/recovery.hpp>
#include <rrfp/base/units.hpp>
#include <rrfp/compute/estimate.hpp>
#include <rrfp/job/node_places.hpp>
#include <rrfp/job/schema.hpp>
#include <rrfp/policies/registry.hpp>

#include "../common/console.hpp"
#include "../common/program.hpp"
#include "commands.hpp"
#include "results.hpp"

namespace rrfp::apps {

namespace {

/// Float32: the weights and the state of the optimizer.
double bytes_of_state(std::uint64_t parameters, const job::train_options& train) {
  const double state = train.optimizer == job::optimizer_kind::adamw ? 2
                       : train.momentum > 0                          ? 1
                                                                     : 0;
  return static_cast<double>(parameters) * 4 * (1 + state);
}

std::uint64_t parameters_of(stage_id stage, const pipeline_shape& shape,
                            const std::vector<compute::chunk_estimate>& chunks) {
  std::uint64_t parameters = 0;
  for (std::uint32_t c = 0; c < shape.chunks; ++c)
    parameters += chunks[shape.virtual_stage(stage, chunk_id{c}).value()].parameters;
  return parameters;
}

/// What the copies for recovery take of the memory of the node that holds most: two of each rank of
/// replica 0 on its node, and two on its buddy.
double bytes_of_copies(const job::job& j, const pipeline_shape& shape,
                       const std::vector<compute::chunk_estimate>& chunks,
                       const job::node_places& places) {
  const std::vector<std::string> hosts(places.nodes(), "any");
  std::vector<double> held(places.nodes());
  for (std::uint32_t s = 0; s < shape.stages; ++s)
    for (std::uint32_t r = 0; r < j.pipeline.tp; ++r) {
      const auto node_of = [&](replica_id d) { return places.node_of(d, stage_id{s}, rank_id{r}); };
      const auto copies = 2 * bytes_of_state(parameters_of(stage_id{s}, shape, chunks), j.train);
      held[node_of(replica_id{0}).value()] += copies;
      if (const auto buddy = buddy_of(j.pipeline.replicas, node_of, places.hosts().spares, hosts))
        held[buddy->value()] += copies;
    }
  return *std::max_element(held.begin(), held.end());
}

std::string limit_text(const memory_limit& limit) {
  std::string text = limit.activations != 0 ? fmt::format("{} slots of a chunk", limit.activations)
                     : limit.slots != 0     ? fmt::format("{} slots", limit.slots)
                                            : "no slot limit";
  if (limit.run_ahead != 0) text += fmt::format(", run-ahead {}", limit.run_ahead);
  if (limit.bytes != 0)
    text += fmt::format(", {:.1f} MiB", static_cast<double>(limit.bytes) / mebibyte);
  return text;
}

/// Whether the job says how long the tasks of each stage take, not one time for all.
bool has_times(const job::job& j) {
  const auto& c = j.cost;
  return job::has_other_costs(j) ||
         std::max({c.forward_ms.size(), c.backward_ms.size(), c.weight_ms.size()}) > 1;
}

/// The share of each stage in the time of a step's tasks: by [cost], or else by the estimated
/// operations and the speed of the devices.
std::vector<double> shares_of(const job::job& j, const pipeline_shape& shape,
                              const std::vector<compute::chunk_estimate>& chunks) {
  std::vector<double> times(shape.stages);
  if (has_times(j)) {
    const auto costs = job::nominal_costs(j);
    for (std::uint32_t s = 0; s < shape.stages; ++s)
      for (std::uint32_t i = 0; i < shape.chunks * shape.microbatches; ++i)
        for (const auto kind : {task_kind::forward, task_kind::backward_weight})
          times[s] += milliseconds(
              costs.compute(step_id{0}, stage_id{s},
                            {kind, microbatch_id{i / shape.chunks}, chunk_id{i % shape.chunks}}));
  } else {
    for (const auto& c : chunks) {
      const auto stage = shape.at(c.vs).stage;
      times[stage.value()] +=
          (c.forward_flops + c.backward_flops + c.weight_flops) / job::speed_of(j, stage);
    }
  }
  const auto all = std::accumulate(times.begin(), times.end(), 0.0);
  for (auto& ms : times) ms = all > 0 ? ms / all : 0;
  return times;
}

void print_stages(const job::job& j, const job::dispatch_plan& dispatch,
                  const std::vector<compute::chunk_estimate>& chunks,
                  const std::optional<simulate::report>& predicted) {
  const auto shares = shares_of(j, dispatch.shape, chunks);
  print("{:>5}  {:<10} {:>7} {:>11} {:>11} {:>8} {:>10} {:>9}\n", "stage", "layers", "share",
        "parameters", "state MiB", "MiB/slot", "peak slots", "peak MiB");
  for (std::uint32_t s = 0; s < dispatch.shape.stages; ++s) {
    const stage_id stage{s};
    std::string layers;
    for (std::uint32_t c = 0; c < dispatch.shape.chunks; ++c) {
      const auto& chunk = chunks[dispatch.shape.virtual_stage(stage, chunk_id{c}).value()];
      layers += fmt::format("{}{}-{}", layers.empty() ? "" : ", ", chunk.layers.first,
                            chunk.layers.first + chunk.layers.count - 1);
    }
    const auto parameters = parameters_of(stage, dispatch.shape, chunks);
    // And the gradients.
    const auto bytes = bytes_of_state(parameters, j.train) + static_cast<double>(parameters) * 4;
    const auto slot =
        static_cast<double>(compute::slot_bytes(chunks, dispatch.shape, stage)) / mebibyte;
    const auto slots = predicted ? predicted->stages[s].memory.slots_peak : 0;
    print("{:>5}  {:<10} {:>5.1f} % {:>11} {:>11.1f} {:>8.2f} {:>10} {:>9}\n", s, layers,
          100 * shares[s], parameters, bytes / mebibyte, slot,
          predicted ? std::to_string(slots) : "-",
          predicted ? fmt::format("{:.1f}", slot * slots) : "-");
  }
  print("share: of the time of a step's tasks, by {}\n",
        has_times(j) ? "[cost]" : "estimated operations and cost.speed");
}

/// Whether the job says how long its tasks take; if not, all take the default of [cost].
bool knows_times(const job::job& j) {
  const job::cost_options none;
  const auto& c = j.cost;
  return has_times(j) || c.forward_ms != none.forward_ms || c.backward_ms != none.backward_ms ||
         c.weight_ms != none.weight_ms;
}

/// `check` simulates so many tasks of a run at most: about two seconds.
constexpr std::uint64_t simulated_tasks_max = 1'000'000;

/// At most `steps_max`; 0 if already one step has too many tasks.
std::uint64_t steps_to_simulate(const job::job& j, const pipeline_shape& shape) {
  constexpr std::uint64_t steps_max = 10;
  constexpr std::uint64_t kinds = 3;  // F, B, W
  const auto tasks =
      kinds * shape.stages * shape.chunks * shape.microbatches * std::uint64_t{j.pipeline.tp};
  return std::min(steps_max, simulated_tasks_max / tasks);
}

void print_prediction(const job::job& j, const simulate::report& predicted, std::uint64_t steps) {
  const auto mean = [&](simulate::nanoseconds t) {
    return milliseconds(t) / static_cast<double>(steps);
  };
  if (knows_times(j))
    return print(
        "predicted by simulation with [cost] and [jitter], {}:\n"
        "  step {:.1f} ms, bubble {:.1f} %, lower bound {:.1f} ms\n\n",
        steps == 1 ? "one step" : fmt::format("mean of {} steps", steps), mean(predicted.makespan),
        predicted.bubble_fraction * 100, mean(predicted.lower_bound));
  print(
      "step time: cannot be predicted: [cost] does not say how long a task takes.\n"
      "  With tasks of equal length, the bubble is {:.1f} %. To measure the tasks:\n"
      "  run with --trace T.json, then rrfp-report T.json --profile cost.toml, and set\n"
      "  cost.profile = \"cost.toml\"\n\n",
      predicted.bubble_fraction * 100);
}

/// What a run would do; changes nothing. Empty without checkpoint.dir.
result<std::string> describe_checkpoints(const job::job& j,
                                         const std::optional<actors::checkpoint_setup>& setup) {
  if (!setup) return std::string{};
  const auto choice = actors::choose_resume(j, *setup, checkpoint::verification::checksums);
  if (!choice) return choice.failure();
  const auto when = setup->every == 0 ? std::string{"at the end"}
                                      : fmt::format("every {} steps and at the end", setup->every);
  auto text =
      fmt::format("checkpoints {} in {}, the newest {} are kept; the run {}\n", when, setup->dir,
                  j.checkpoint.keep, choice->from ? line_of(*choice->from) : "starts");
  for (const auto& line : choice->skipped) text += "  skipped: " + line + "\n";
  for (const auto& line : choice->changed) text += "  " + line + "\n";
  return text;
}

using duration = std::chrono::duration<double>;
using clock = std::chrono::steady_clock;

int print_plan(const job::job& j, const actors::session_setup& setup, std::uint32_t nodes) {
  const auto steps = steps_to_simulate(j, job::effective_shape(j));
  const auto cut = job::layers_of_parts(j);
  const auto sizes = compute::expected_layout(j.model, j.data);
  const auto chunks = compute::estimate(j.model, sizes, cut, j.pipeline.tp, j.pipeline.recompute);
  const auto dispatch =
      job::simulation_of(j, policies::registry(), steps, replica_id{0},
                         [&, shape = job::effective_shape(j)](step_id, stage_id s, microbatch_id) {
                           return compute::slot_bytes(chunks, shape, s);
                         });
  if (!dispatch) return end_with(dispatch.failure());
  const auto places = job::node_places::make(j, nodes);
  if (!places) return end_with(places.failure());
  std::optional<simulate::report> predicted;
  if (steps > 0) {
    auto simulated = simulate::run(*dispatch, dispatch->costs);
    if (!simulated) return end_with(within(j.source, simulated.failure()));
    predicted = std::move(*simulated);
  }
  const auto checkpoints = describe_checkpoints(j, setup.checkpoint);
  if (!checkpoints) return end_with(checkpoints.failure());
  std::uint64_t parameters = 0;
  for (const auto& chunk : compute::estimate(j.model, sizes, cut)) parameters += chunk.parameters;
  print("{}: {} {}, lookahead {}, {}\n", j.name, name(j.dispatch.mode), dispatch->policies->name(),
        dispatch->lookahead, limit_text(dispatch->limits[0]));
  print("{} stages x {} chunks ({}), {} parameters\n", dispatch->shape.stages,
        dispatch->shape.chunks, name(dispatch->shape.layout), parameters);
  if (j.data.max_tokens != 0)
    print("as many microbatches of at most {} tokens as {} sequences need\n", j.data.max_tokens,
          dispatch->shape.microbatches * j.data.microbatch_size);
  else
    print("{} microbatches of {} x {} tokens\n", dispatch->shape.microbatches,
          j.data.microbatch_size, j.data.sequence_length);
  if (j.pipeline.replicas > 1)
    print("{} replicas, each with its own microbatches\n", j.pipeline.replicas);
  if (j.pipeline.tp > 1)
    print("{} tensor-parallel ranks per stage; the table shows one rank\n", j.pipeline.tp);
  print_stages(j, *dispatch, chunks, predicted);
  for (std::uint32_t n = 0; nodes > 1 && n < nodes; ++n)
    print("node {}: {}\n", n, places->describe(node_id{n}));
  if (nodes > 1 && j.recovery.max_restarts > 0)
    print("recovery: up to {} losses; copies of the state take {:.1f} MiB of a node at most\n",
          j.recovery.max_restarts, bytes_of_copies(j, dispatch->shape, chunks, *places) / mebibyte);
  print("{}", *checkpoints);
  if (predicted)
    print_prediction(j, *predicted, steps);
  else
    print(
        "no prediction: a step has more tasks than the {} that check simulates; use\n"
        "rrfp-sim --steps 1\n\n",
        simulated_tasks_max);
  return exit_done;
}

}  // namespace

int check_command(const command_options& options) {
  const auto loaded = load(options);
  if (!loaded) return end_with(loaded.failure());
  const duration limit{options.decode_s};
  const auto end = clock::now() + std::chrono::duration_cast<clock::duration>(limit);
  const auto framework = make_framework();
  std::string checked_data, image_line;
  for (const auto& j : job::variants(*loaded)) {
    const auto opened = framework->open(j);
    if (!opened) return end_with(opened.failure());
    const auto setup = actors::make_session_setup(j, policies::registry(), opened->get());
    if (!setup) return end_with(setup.failure());
    // Runs of a comparison that train on the same data decode it once.
    const auto& model = *opened;
    const auto this_data = model
                               ? fmt::format("{} {} {} {}", model->fingerprint(), j.train.seed,
                                             j.train.steps, j.data.order == job::sample_order::file)
                               : std::string{};
    if (model && this_data != checked_data) {
      auto line = model->decode_images(limit, end);
      if (!line) return end_with(line.failure());
      checked_data = this_data;
      image_line = *std::move(line);
    }
    if (const int code = print_plan(j, *setup, options.local_nodes); code != exit_done) return code;
    if (model && !model->report().empty()) print("data: {}\n{}\n", model->report(), image_line);
  }
  return exit_done;
}

}  // namespace rrfp::apps
