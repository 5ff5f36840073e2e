/// Pairing: task times, delays and images depend only on workload, weather and seed, not on the
/// run.
#include <catch2/catch.hpp>

#include <set>

#include <rrfp/job/plan.hpp>
#include <rrfp/study/pipeline_cost.hpp>

#include "support.hpp"

namespace rrfp::experiment {

using namespace testing;

namespace {

simulate::stage_costs costs_of(const cell& c, replica_id replica = replica_id{0}) {
  auto made = job::expected_costs(c.job, replica);
  REQUIRE(made.ok());
  return *made;
}

/// The weather with this name, and the seed of the cell.
void set_weather(cell& c, const char* name) {
  const auto seed = c.job.jitter.seed;
  c.job.jitter = *simulate::conditions_of(name);
  c.job.jitter.seed = seed;
}

/// The duration of every task and message by loaded microbatch, in a run of this cell.
std::vector<simulate::nanoseconds> durations_of(const cell& c, step_id step = step_id{0},
                                                replica_id replica = replica_id{0}) {
  const auto costs = costs_of(c, replica);
  const auto shape = job::effective_shape(c.job);
  const auto order = costs.order_of(step);
  std::vector<std::uint32_t> admitted(shape.microbatches);
  for (std::uint32_t at = 0; at < shape.microbatches; ++at) admitted[order[at]] = at;
  std::vector<simulate::nanoseconds> all;
  for (std::uint32_t loaded = 0; loaded < shape.microbatches; ++loaded)
    for (std::uint32_t s = 0; s < shape.stages; ++s) {
      const auto of = [&](task_kind kind) {
        return task{kind, microbatch_id{admitted[loaded]}, chunk_id{0}};
      };
      for (const auto kind :
           {task_kind::forward, task_kind::backward, task_kind::weight, task_kind::backward_weight})
        all.push_back(costs.compute(step, stage_id{s}, of(kind)));
      if (s > 0) all.push_back(costs.link(step, virtual_stage_id{s}, of(task_kind::forward)));
      if (s + 1 < shape.stages)
        all.push_back(costs.link(step, virtual_stage_id{s}, of(task_kind::backward)));
    }
  return all;
}

}  // namespace

TEST_CASE("every mode, policy, limit and admission gets the same tasks, messages and images") {
  for (const auto* preset : {"measured", "measured-lognormal", "J3"}) {
    auto c = jittered_cell();
    set_weather(c, preset);
    c.job.jitter.pause_ms = 100;
    c.job.jitter.slow_link_factor = 3;
    const auto base = durations_of(c);
    for (const auto mode : {dispatch_mode::in_order, dispatch_mode::ready})
      for (const auto admit : {admission::loaded, admission::small_large_small}) {
        auto other = c;
        other.hint = hint_quality::stale;
        auto& d = other.job.dispatch;
        d.mode = mode;
        d.policy = "bfw";
        study::options_of(other.job).dispatch.messages = study::messages_kind::blocking;
        d.slots = 3;
        d.slot_bytes = 1000;
        d.admit = admit;
        CHECK(durations_of(other) == base);
      }
  }
}

TEST_CASE("another seed, step or replica gets other disturbances") {
  const auto c = jittered_cell();
  const auto base = durations_of(c);
  auto other = c;
  other.job.jitter.seed = 8;
  CHECK(durations_of(other) != base);
  CHECK(durations_of(c, step_id{1}) != base);
  CHECK(durations_of(c, step_id{0}, replica_id{1}) != base);
}

TEST_CASE("splitting backward changes no work under any weather") {
  for (const auto* preset : {"none", "measured", "J3"}) {
    auto c = jittered_cell();
    set_weather(c, preset);
    const auto costs = costs_of(c);
    const auto at = [&](task_kind kind, std::uint32_t mb) {
      return costs.compute(step_id{0}, stage_id{1}, {kind, microbatch_id{mb}, chunk_id{0}});
    };
    for (std::uint32_t mb = 0; mb < 8; ++mb)
      CHECK(std::abs(at(task_kind::backward_weight, mb) - at(task_kind::backward, mb) -
                     at(task_kind::weight, mb)) <= 1);
  }
}

TEST_CASE("admission sorts by undisturbed times") {
  auto c = jittered_cell();
  c.job.dispatch.admit = admission::small_large_small;
  c.job.pipeline.microbatches = 32;
  const auto images = [&](std::uint32_t mb) {
    return study::images_of(study::options_of(c.job).images, c.job.jitter.seed, step_id{0}, mb, 1)
        .front();
  };
  const auto order = costs_of(c).order_of(step_id{0});
  for (std::size_t i = 2; i < order.size(); ++i)
    CHECK(images(order[i - 1]) >= std::min(images(order[i - 2]), images(order[i])));
  CHECK(images(order.front()) < images(order[order.size() / 2]));
  CHECK(images(order.back()) < images(order[order.size() / 2]));
}

TEST_CASE("the paper's e follows the durations of the stage") {
  // F and BW of 20 ms: e is 20, above the floor of 5, and each delay alpha * 20 * (0.5 + U).
  auto c = plain_cell();
  c.job.cost.forward_ms = {20};
  c.job.cost.backward_ms = c.job.cost.weight_ms = {10};
  set_weather(c, "J1");
  c.job.jitter.probability = 1;
  const auto costs = costs_of(c);
  for (std::uint32_t mb = 0; mb < 8; ++mb) {
    const auto ms = double(costs.compute(step_id{0}, stage_id{2},
                                         {task_kind::forward, microbatch_id{mb}, chunk_id{0}})) /
                    1e6;
    CHECK(ms >= 20 + 0.5 * 20 * 0.5);
    CHECK(ms <= 20 + 0.5 * 20 * 1.5);
  }
}

TEST_CASE("shapes are told before blocking messages of a model with images alone") {
  const auto link = [](cell c) {
    return costs_of(c).link(step_id{0}, virtual_stage_id{1},
                            {task_kind::forward, microbatch_id{0}, chunk_id{0}});
  };
  for (const auto* preset : {"gpt3-large", "qwen3-1.7b-vit-h"}) {
    auto c = plain_cell();
    study::options_of(c.job).cost.preset = preset;
    const auto message = link(c);
    study::options_of(c.job).cost.shape_messages = true;
    CHECK(link(c) == message);
    block(c);
    const bool has_images = study::options_of(c.job).cost.preset != "gpt3-large";
    CHECK(link(c) == message + (has_images ? 10'000 : 0));
    study::options_of(c.job).cost.shape_messages = false;
    CHECK(link(c) == message);
  }
}

TEST_CASE("sequence_tokens shortens the samples of a model with images alone") {
  const auto forward = [](const char* preset, std::uint32_t tokens) {
    auto c = plain_cell();
    study::options_of(c.job).cost.preset = preset;
    study::options_of(c.job).cost.sequence_tokens = tokens;
    return costs_of(c).compute(step_id{0}, stage_id{3},
                               {task_kind::forward, microbatch_id{0}, chunk_id{0}});
  };
  CHECK(10 * forward("qwen3-1.7b-vit-h", 512) < 6 * forward("qwen3-1.7b-vit-h", 0));
  CHECK(forward("gpt3-large", 512) == forward("gpt3-large", 0));
}

/// The time of F of microbatch `mb` on `stage`.
simulate::nanoseconds forward(const cell& c, std::uint32_t stage, std::uint32_t mb) {
  return costs_of(c).compute(step_id{0}, stage_id{stage},
                             {task_kind::forward, microbatch_id{mb}, chunk_id{0}});
}

TEST_CASE("a stage of half the speed takes twice the time for tasks, and the same for messages") {
  for (const auto* preset : {"", "gpt3-large"}) {
    auto c = plain_cell();
    study::options_of(c.job).cost.preset = preset;
    c.job.pipeline.cuts.kind = job::cut_kind::layers;
    const auto even = costs_of(c);
    c.job.cost.speed = {1, 1, 0.5, 1};
    const auto uneven = costs_of(c);
    for (std::uint32_t s = 0; s < 4; ++s)
      for (const auto kind : {task_kind::forward, task_kind::backward, task_kind::weight,
                              task_kind::backward_weight}) {
        const auto of = [&](const simulate::stage_costs& costs) {
          return costs.compute(step_id{0}, stage_id{s}, {kind, microbatch_id{1}, chunk_id{0}});
        };
        CHECK(std::abs(of(uneven) - (s == 2 ? 2 : 1) * of(even)) <= 2);
      }
    const task message{task_kind::forward, microbatch_id{1}, chunk_id{0}};
    CHECK(uneven.link(step_id{0}, virtual_stage_id{3}, message) ==
          even.link(step_id{0}, virtual_stage_id{3}, message));
  }
}

TEST_CASE("texts and experts make the microbatches differ, the same ones with equal seeds") {
  const auto differ = [](const cell& c) {
    std::set<simulate::nanoseconds> times;
    for (std::uint32_t mb = 0; mb < 8; ++mb) times.insert(forward(c, 1, mb));
    CHECK(forward(c, 1, 5) == forward(c, 1, 5));
    return times.size();
  };
  auto c = plain_cell();
  study::options_of(c.job).cost.preset = "mixtral-8x7b";
  study::options_of(c.job).experts.spread = study::expert_spread::even;
  CHECK(differ(c) == 1);
  study::options_of(c.job).texts.spread = study::text_spread::uniform;
  CHECK(differ(c) == 8);
  study::options_of(c.job).texts.spread = study::text_spread::padded;
  c.job.pipeline.tp = 2;
  study::options_of(c.job).experts = {};
  CHECK(differ(c) == 8);
  auto other = c;
  other.job.jitter.seed += 1;
  CHECK(forward(other, 1, 0) != forward(c, 1, 0));
}

TEST_CASE("[cost] gives times by stage, and no bytes") {
  auto c = plain_cell();
  c.job.cost.forward_ms = {1, 2, 3, 4};
  c.job.cost.link_ms = 0.5;
  const auto costs = costs_of(c);
  const auto ns = [&](task_kind kind) {
    return costs.compute(step_id{0}, stage_id{2}, {kind, microbatch_id{0}, chunk_id{0}});
  };
  CHECK(ns(task_kind::forward) == 3'000'000);
  CHECK(ns(task_kind::weight) == 1'000'000);
  CHECK(costs.link(step_id{0}, virtual_stage_id{1},
                   {task_kind::backward, microbatch_id{0}, chunk_id{0}}) == 500'000);
  CHECK_FALSE(costs.has_bytes());
  CHECK(study::workload_of(c.job).value() == nullptr);
}

}  // namespace rrfp::experiment
