/// The keys of [jitter].
#include "schema_parts.hpp"

namespace rrfp::job {

namespace {

void apply_level(simulate::conditions& jitter, std::string_view name) {
  const auto level = simulate::conditions_of(name);
  RRFP_CHECK(level, "the schema must allow only known jitter levels");
  jitter.compute = level->compute;
  if (name.starts_with("measured")) {
    jitter.compute_sigma = level->compute_sigma;
    jitter.spread = level->spread;
    return;
  }
  jitter.probability = level->probability;
  jitter.floor_ms = level->floor_ms;
  jitter.alpha = level->alpha;
}

}  // namespace

void add_weather_keys(std::vector<key>& table) {
  section_keys<simulate::conditions> keys{table, "jitter", &job::jitter};
  using o = simulate::conditions;
  using simulate::compute_jitter;
  using simulate::link_jitter;
  using simulate::link_spread;
  keys.integer("seed", &o::seed, {}, "",
               "Seed of all delays. Equal seeds give equal delays in every mode.");
  keys.preset("level", {"J0", "J1", "J2", "J3", "measured", "measured-lognormal"},
              "The paper's conditions, as values of other keys, which the job may override. "
              "`J0`: no delays. `J1`, `J2`, `J3`: `compute` = `paper` with `probability` 0.1, "
              "0.2, 0.3, `floor_ms` 5, 10, 15 and `alpha` 0.5, 1.0, 1.5. `measured`, "
              "`measured-lognormal`: `compute` = `lognormal` with `compute_sigma` 0.237, and "
              "`spread` = `stalls` or `lognormal`.",
              apply_level);
  keys.choice(
      "compute", &o::compute,
      {name(compute_jitter::none), name(compute_jitter::lognormal), name(compute_jitter::paper),
       name(compute_jitter::lognormal_and_paper)},
      "Distribution of the delay of a task. `lognormal`: the task takes its expected time "
      "multiplied by a log-normal factor of mean 1. `paper`: with `probability`, a task F, B or BW "
      "takes `alpha` * max(`floor_ms`, average time of F and BW on the stage) * U longer, with U "
      "uniform in [0.5, 1.5). `lognormal+paper`: both.");
  keys.number("compute_sigma", &o::compute_sigma, {0, 10}, "",
              "lognormal: standard deviation of the logarithm.");
  keys.number("probability", &o::probability, {0, 1}, "",
              "paper: share of tasks that are delayed.");
  keys.number("floor_ms", &o::floor_ms, {0, ms_max}, "ms",
              "paper: minimum of the task time that scales the delay.");
  keys.number("alpha", &o::alpha, {0, 1e3}, "", "paper: factor on the delay.");
  keys.choice("link", &o::link,
              {name(link_jitter::none), name(link_jitter::constant), name(link_jitter::exponential),
               name(link_jitter::lognormal), name(link_jitter::pareto)},
              "Distribution of the extra time of a message.");
  keys.number("link_mean_ms", &o::link_mean_ms, {0, ms_max}, "ms", "Mean extra time of a message.");
  keys.number("link_sigma", &o::link_sigma, {0, 10}, "",
              "lognormal: standard deviation of the logarithm.");
  keys.number("link_alpha", &o::link_alpha, {1, 1e3, true, false}, "",
              "pareto: tail index; smaller values have heavier tails.");
  keys.choice("spread", &o::spread,
              {name(link_spread::none), name(link_spread::lognormal), name(link_spread::stalls)},
              "Distribution of the factor on a message's own time. `lognormal`: with median 1 and "
              "standard deviation 2.478 of the logarithm. `stalls`: 1, but 3/8 of the messages "
              "take 50 times as long, or more.");
  keys.integer("straggler_stage", &o::straggler_stage, {0, 1023}, "",
               "Stage whose tasks are slow.");
  keys.number("straggler_factor", &o::straggler_factor, {0, 1e6, true, false}, "",
              "Factor on the durations of that stage's tasks; 1: no straggler.");
  keys.choice("ranks", &o::ranks,
              {name(simulate::rank_delays::together), name(simulate::rank_delays::apart)},
              "Delays of the tensor-parallel ranks of a stage. `together`: all ranks end a "
              "task when the slowest one does, and their messages share one delay. `apart`: "
              "each rank and each message has its own delay.");
  section_keys<delay_options> given{table, "jitter", &job::delays};
  given.optional_text(
      "delays", &delay_options::file, path_rule::files, "a file, or nothing",
      "CSV file with columns step,stage,chunk,mb,kind,ms: extra time per task and "
      "message, added to all other times; a task or message that is not listed gets "
      "none. Kinds: tasks F, B, W and BW (default: B + W), and messages act and "
      "grad to the given stage and chunk. Steps count from 1; after the last one "
      "the file repeats.");
}

}  // namespace rrfp::job
