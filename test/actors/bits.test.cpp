// The main guarantee: losses and weights do not depend on the order of the tasks, to the last bit,
// and equal those of an ordinary training loop without a pipeline.
#include <algorithm>
#include <random>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <xxhash.h>

#include <rrfp/core/transcript.hpp>
#include <rrfp/study/blocking_sends.hpp>
#include <rrfp/torch/stage_compute.hpp>

#include "plain_loop.hpp"
#include "replay.hpp"
#include "small_session.hpp"

// Last: libtorch has a CHECK of its own.
#include "run_session.hpp"

namespace {

using namespace rrfp;
using namespace rrfp::actors;
using namespace rrfp::actors::test;

constexpr std::uint32_t microbatches = 6;
constexpr std::uint64_t steps = 3;

job::model_options model_of(bool tied) {
  auto m = compute::test::small_model();
  m.tied_head = tied;
  return m;
}

job::train_options train_of() {
  auto t = compute::test::small_train();
  t.steps = steps;
  t.lr_min = t.lr;  // the plain loop has no learning rate schedule
  return t;
}

/// The hash that a session would report for weights trained elsewhere.
std::uint64_t hash_of(const std::map<std::string, at::Tensor>& weights,
                      const job::model_options& m) {
  std::vector<std::unique_ptr<compute::stage_module>> chunks;
  chunks.push_back(std::move(*compute::make_model_chunk(m, compute::test::nth_part(m, 0, 1), 1)));
  for (const auto& p : chunks[0]->parameters()) {
    p.value.detach().copy_(weights.at(p.name));
  }
  auto one = compute::stage_compute::make(
      {{1, 1, microbatches, placement::linear}, stage_id{0}, train_of()}, std::move(chunks),
      std::make_shared<compute::test::uneven_source>(microbatches));
  return compute::hash_of_model((*one)->hashes());
}

struct reference {
  std::vector<double> losses;
  std::uint64_t weights = 0;
};

reference plain_reference(const job::model_options& m) {
  const compute::test::uneven_source data{microbatches};
  compute::prepare_compute_thread();
  const auto plain = compute::test::train_plainly(m, train_of(), microbatches, data, steps);
  reference r;
  for (std::uint64_t step = 0; step < steps; ++step) {
    double sum = 0;
    std::int64_t tokens = 0;
    for (std::uint32_t mb = 0; mb < microbatches; ++mb) {
      const auto count = data.load(step_id{step}, microbatch_id{mb}).tokens;
      sum += plain.losses[step * microbatches + mb] * static_cast<double>(count);
      tokens += count;
    }
    r.losses.push_back(sum / static_cast<double>(tokens));
  }
  r.weights = hash_of(plain.weights, m);
  return r;
}

run_result run(const choice_of_run& c, const job::model_options& m, bool record = false) {
  auto setup = small_setup(c, m, train_of());
  setup.record_transcripts = record;
  return run_session(std::move(setup));
}

void require_same(const run_result& r, const reference& expected) {
  REQUIRE(r.how == ending::done);
  CHECK(r.summary.steps == steps);
  std::uint64_t hash = 0;
  for (const auto loss : expected.losses) hash = XXH64(&loss, sizeof loss, hash);
  CHECK(r.summary.losses_xxh64 == hash);
  CHECK(r.summary.weights_xxh64 == expected.weights);
}

pipeline_shape linear(std::uint32_t stages) { return {stages, 1, microbatches, placement::linear}; }

}  // namespace

TEST_CASE("every order of a linear pipeline gives the same bits as a plain loop") {
  const bool tied = GENERATE(false, true);
  const auto m = model_of(tied);
  const auto expected = plain_reference(m);
  struct how {
    dispatch_mode mode;
    const char* policy;
  };
  for (const auto& [mode, policy] :
       {how{dispatch_mode::in_order, "one_f_one_b"}, how{dispatch_mode::in_order, "gpipe"},
        how{dispatch_mode::in_order, "zb_h1"}, how{dispatch_mode::in_order, "bf"},
        how{dispatch_mode::ready, "bf"}, how{dispatch_mode::ready, "bfw"},
        how{dispatch_mode::ready, "fb"}, how{dispatch_mode::ready, "b_priority"},
        how{dispatch_mode::ready, "f_priority"}, how{dispatch_mode::ready, "zb_h1"}}) {
    for (const std::uint32_t stages : {1U, 2U, 4U}) {
      for (const std::uint64_t weather : {0U, 1U}) {
        INFO(fmt::format("{} {} at {} stages, weather {}, tied {}", name(mode), policy, stages,
                         weather, tied));
        require_same(run({linear(stages), mode, policy, weather}, m), expected);
      }
    }
  }
}

TEST_CASE("replicas may share the microbatches of each step in another way") {
  const std::vector<microbatch_counts> counts{{{2, 4}}, {{6, 0}}, {{1, 5}}};
  const auto ranks = GENERATE(1u, 2u);
  const auto run_with = [&](const choice_of_run& c) {
    auto setup = small_setup(c, model_of(false), train_of());
    setup.ranks = ranks;
    setup.replicas = 2;
    setup.on_request = true;
    const auto opened = *session::open(std::move(setup));
    for (const auto& of_step : counts) opened->demand(job_demand::train, of_step);
    opened->demand(job_demand::finish);
    const auto r = opened->run();
    INFO(r.message);
    REQUIRE(r.how == ending::done);
    return std::pair{r.summary.losses_xxh64, r.summary.weights_xxh64};
  };
  const auto expected = run_with({linear(1), dispatch_mode::in_order, "gpipe"});
  for (const auto stages : {2U, 4U})
    for (const auto* policy : {"bfw", "bfw_plus", "zb_h1"})
      for (const auto weather : {1U, 2U})
        CHECK(run_with({linear(stages), dispatch_mode::ready, policy, weather, weather}) ==
              expected);
  const pipeline_shape v{2, 2, microbatches, placement::v};
  CHECK(run_with({v, dispatch_mode::in_order, "zb_v", 1}) == expected);
}

TEST_CASE("replicas may run microbatches of others: the bits are those of their own") {
  static constexpr std::uint32_t replicas = 3;
  const auto ranks = GENERATE(1u, 2u);
  const bool tied = GENERATE(false, true);
  const auto run_with = [&](const choice_of_run& c, std::uint64_t seed) {
    auto setup = small_setup(c, model_of(tied), train_of());
    setup.ranks = ranks;
    setup.replicas = replicas;
    if (seed != 0)
      setup.shares = [seed](step_id step, const microbatch_counts& counts) {
        std::mt19937_64 random{seed * 1000 + step.value()};
        microbatch_shares made{counts, std::vector<std::uint32_t>(replicas), {}};
        for (std::uint32_t left = counts.total(); left > 0; --left)
          ++made.shares[random() % (1 + random() % replicas)];
        for (std::uint32_t r = 0; r < replicas; ++r) made.order.emplace_back(r);
        std::ranges::shuffle(made.order, random);
        return made;
      };
    const auto opened = *session::open(std::move(setup));
    const auto r = opened->run();
    INFO(r.message);
    REQUIRE(r.how == ending::done);
    return std::pair{r.summary.losses_xxh64, r.summary.weights_xxh64};
  };
  const auto expected = run_with({linear(1), dispatch_mode::in_order, "gpipe"}, 0);
  std::uint64_t seed = 0;
  for (const auto stages : {1U, 2U, 4U})
    for (const auto& [mode, policy] :
         {std::pair{dispatch_mode::ready, "bfw"}, std::pair{dispatch_mode::ready, "bfw_plus"},
          std::pair{dispatch_mode::ready, "fb"}, std::pair{dispatch_mode::in_order, "one_f_one_b"},
          std::pair{dispatch_mode::in_order, "zb_h1"}}) {
      const auto weather = static_cast<std::uint32_t>(1 + ++seed % 2);
      INFO(fmt::format("{} {} at {} stages, seed {}", name(mode), policy, stages, seed));
      const auto slots = mode == dispatch_mode::ready ? weather : 0;
      CHECK(run_with({linear(stages), mode, policy, weather, slots}, seed) == expected);
    }
  const pipeline_shape v{2, 2, microbatches, placement::v};
  CHECK(run_with({v, dispatch_mode::in_order, "zb_v", 1}, ++seed) == expected);
}

TEST_CASE("ranks with delays of their own give the same bits") {
  const auto run_ranks = [](std::uint64_t weather) {
    auto setup = small_setup({linear(3)}, model_of(false), train_of());
    setup.ranks = 2;
    if (weather != 0) {
      setup.delays.compute = [=](step_id step, const rank_address& at, const task& t) {
        return scattered_ms(weather, step.value(), at.stage.value() * 2 + at.rank.value(),
                            t.mb.value());
      };
      setup.delays.link = [=](step_id step, virtual_stage_id to, const rank_address& at,
                              const task& t) {
        return 3 * scattered_ms(weather + 1, step.value(), to.value() * 2 + at.rank.value(),
                                t.mb.value() * 2 + (t.kind == task_kind::forward));
      };
    }
    const auto r = (*session::open(std::move(setup)))->run();
    INFO(r.message);
    REQUIRE(r.how == ending::done);
    return r.summary;
  };
  const auto expected = run_ranks(0);
  for (const std::uint64_t weather : {0U, 1U, 2U}) {
    INFO("weather " << weather);
    const auto got = run_ranks(weather);
    CHECK(got.losses_xxh64 == expected.losses_xxh64);
    CHECK(got.weights_xxh64 == expected.weights_xxh64);
  }
}

TEST_CASE("chunks, few slots and lookahead give the same bits as a plain loop") {
  const auto m = model_of(true);
  const auto expected = plain_reference(m);
  const pipeline_shape interleaved{2, 2, microbatches, placement::interleaved};
  const pipeline_shape turned{2, 2, microbatches, placement::v};
  for (const std::uint64_t weather : {0U, 3U}) {
    INFO("weather " << weather);
    require_same(run({interleaved, dispatch_mode::in_order, "interleaved_1f1b", weather}, m),
                 expected);
    require_same(run({interleaved, dispatch_mode::ready, "bfw", weather}, m), expected);
    require_same(run({turned, dispatch_mode::in_order, "zb_v", weather}, m), expected);
    require_same(run({turned, dispatch_mode::in_order, "dualpipe_v", weather}, m), expected);
    require_same(run({turned, dispatch_mode::ready, "dualpipe_v", weather}, m), expected);
    require_same(run({turned, dispatch_mode::ready, "bf", weather, 1}, m), expected);
    require_same(run({linear(4), dispatch_mode::ready, "bfw", weather, 1}, m), expected);
    require_same(run({linear(4), dispatch_mode::ready, "bfw", weather, 2, 1}, m), expected);
    require_same(run({linear(4), dispatch_mode::ready, "f_priority", weather, 0, 2}, m), expected);
    require_same(run({linear(3), dispatch_mode::ready, "bfw", weather}, m), expected);
    require_same(run({linear(3), dispatch_mode::ready, "bfw", weather, 0, 1, 200}, m), expected);
  }
}

TEST_CASE("forwards that run early and again give the same bits as a plain loop") {
  const auto m = model_of(true);
  const auto shape = GENERATE(linear(3), pipeline_shape{2, 2, microbatches, placement::v});
  auto setup = small_setup({shape, dispatch_mode::ready, "bfw_plus", 4, 1}, m, train_of());
  setup.rule.early_forwards = 2;
  setup.record_transcripts = true;
  const auto r = (*session::open(std::move(setup)))->run();
  require_same(r, plain_reference(m));
  const auto count = [&](const char* pass) {
    return std::count_if(r.transcripts[0].begin(), r.transcripts[0].end(),
                         [&](const auto& l) { return l.find(pass) != std::string::npos; });
  };
  CHECK(count(" early ") > 0);
  CHECK(count(" early ") == count(" again "));
  for (const auto& s : r.summary.stages) CHECK(s.memory.slots_peak == 1);
}

TEST_CASE("every policy gives the same bits as a plain loop, as a hint and in order") {
  const auto m = model_of(GENERATE(false, true));
  const auto shape = GENERATE(linear(3), pipeline_shape{2, 2, microbatches, placement::v});
  const auto expected = plain_reference(m);
  for (const auto& policy : policies::registry().known()) {
    if (!policies::registry().make(policy.name, shape)) continue;
    INFO(policy.name);
    const std::string name{policy.name};
    require_same(run({shape, dispatch_mode::ready, name, 4}, m), expected);
    if (policy.fixed) require_same(run({shape, dispatch_mode::in_order, name, 4}, m), expected);
  }
}

TEST_CASE("another learning rate gives other bits") {
  const auto m = model_of(false);
  const auto expected = plain_reference(m);
  auto setup = small_setup({linear(2)}, m, train_of());
  setup.train.lr = setup.train.lr_min *= 1.001;
  const auto r = (*session::open(std::move(setup)))->run();
  CHECK(r.summary.weights_xxh64 != expected.weights);
}

TEST_CASE("dispatch slots limit what a stage holds in a real run") {
  const auto r = run({linear(3), dispatch_mode::ready, "f_priority", 4, 2}, model_of(false));
  REQUIRE(r.how == ending::done);
  CHECK(r.summary.peak_slots() == 2);
  CHECK(run({linear(3), dispatch_mode::ready, "f_priority", 4, 0}, model_of(false))
            .summary.peak_slots() > 2);
}

TEST_CASE("a recorded run replayed through a fresh core gives the same actions") {
  const choice_of_run c{linear(3), dispatch_mode::ready, "bfw", 5, 3, 1};
  auto setup = small_setup(c, model_of(true), train_of());
  const auto make_policy = setup.rule.make_policy;
  setup.record_transcripts = true;
  const auto r = (*session::open(std::move(setup)))->run();
  REQUIRE(r.how == ending::done);
  for (std::uint32_t s = 0; s < 3; ++s) {
    auto lines = r.transcripts[s];
    REQUIRE(lines.size() > 100);
    const stage_config config{c.shape, stage_id{s}, 1, c.lookahead, c.mode, {c.slots}};
    const auto same = simulate::replay(config, make_policy, lines);
    INFO((same.ok() ? "" : same.message()));
    CHECK(same.ok());
    const auto launch = std::find_if(lines.begin(), lines.end(),
                                     [](const auto& line) { return line.rfind("launch", 0) == 0; });
    *launch += "0";
    CHECK_FALSE(simulate::replay(config, make_policy, lines).ok());
  }
}

TEST_CASE("blocking sends give the same bits as other sends") {
  const pipeline_shape shape{4, 1, 6, placement::linear};
  const auto train = compute::test::small_train();
  const auto setup = [&](bool blocking) {
    auto s = small_setup({shape, dispatch_mode::in_order, "one_f_one_b"},
                         compute::test::small_model(), train);
    if (blocking) study::block_sends(s);
    return s;
  };
  const auto run_of = [&](bool blocking) {
    const auto opened = session::open(setup(blocking));
    REQUIRE(opened.ok());
    return (*opened)->run();
  };
  const auto a = run_of(false);
  const auto b = run_of(true);
  REQUIRE(a.how == ending::done);
  REQUIRE(b.how == ending::done);
  CHECK(a.summary.losses_xxh64 == b.summary.losses_xxh64);
  CHECK(a.summary.weights_xxh64 == b.summary.weights_xxh64);
}
