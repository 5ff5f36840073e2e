/// Steps with different numbers of microbatches on different replicas: random configurations, with
/// one or two tensor-parallel ranks a stage, each beside its plain loop. RRFP_RUNS=500 changes
/// their number, RRFP_SEED=7 runs one.
#include <cstdlib>
#include <numeric>
#include <random>

#include <rrfp/job/plan.hpp>
#include <rrfp/study/blocking_sends.hpp>
#include <rrfp/torch/parallel_operators.hpp>

#include "small_model.hpp"

#include <catch2/catch.hpp>

namespace rrfp::testing {

using Catch::Matchers::Contains;

namespace {

using counts_of_step = std::vector<std::uint32_t>;  // by replica

struct configuration {
  std::uint32_t stages = 1, chunks = 1, replicas = 1, ranks = 1;
  std::string keys;     ///< of the job
  bool blocks = false;  ///< sends block
  std::vector<counts_of_step> steps;

  std::int64_t rows(std::size_t step) const { return 2 * total(step) + 3; }
  std::int64_t total(std::size_t step) const {
    return std::accumulate(steps[step].begin(), steps[step].end(), std::int64_t{0});
  }
};

void block_sends(pipeline_options& options, const job::job& j) {
  const auto dispatch = job::make_dispatch_plan(j, policies::registry()).value();
  options.wrap_transport = study::blocking_sends(dispatch.shape, dispatch.rule.make_policy);
}

configuration random_configuration(std::uint64_t seed) {
  std::mt19937_64 random{seed};
  const auto below = [&](std::uint64_t n) { return static_cast<std::uint32_t>(random() % n); };
  configuration c;
  std::vector<std::string> policies{"bf", "bfw", "bfw_plus", "fb", "f_priority", "b_priority"};
  switch (below(4)) {
    case 0:
      c.stages = 2;
      c.chunks = 2;
      policies.insert(policies.end(), {"interleaved_1f1b"});
      break;
    case 1:
      c.stages = c.chunks = 2;
      c.keys = "pipeline.placement = \"v\"\n";
      policies.insert(policies.end(), {"zb_v", "dualpipe_v"});
      break;
    default:
      c.stages = std::array{1U, 2U, 4U}[below(3)];
      policies.insert(policies.end(), {"one_f_one_b", "gpipe", "zb_h1", "zb_h2"});
  }
  c.replicas = 1 + below(3);
  c.ranks = 1 + below(2);
  const auto& policy = policies[below(policies.size())];
  const bool in_order = below(3) == 0;
  const auto slots = in_order || below(2) == 0 ? "\"auto\"" : std::to_string(1 + below(8));
  c.keys += "pipeline.tp = " + std::to_string(c.ranks) +
            "\npipeline.chunks = " + std::to_string(c.chunks) + "\n" + "dispatch.policy = \"" +
            policy + "\"\ndispatch.mode = \"" + (in_order ? "in-order" : "ready") +
            "\"\ndispatch.slots = " + slots +
            "\njitter.compute = \"lognormal\"\njitter.compute_sigma = 0.8\n" +
            "cost.forward_ms = 0.05\ncost.backward_ms = 0.05\ncost.weight_ms = 0.05\n";
  if (in_order && (policy == "one_f_one_b" || policy == "gpipe") && below(2) == 0) c.blocks = true;
  for (int step = 0; step < 3; ++step) {
    counts_of_step counts(c.replicas);
    // Some fixed schedules want multiples of the stages, or a least number.
    const bool is_multiple = policy == "interleaved_1f1b";
    const auto least = policy == "zb_h2"        ? 2 * c.stages - 1
                       : policy == "dualpipe_v" ? 2 * c.stages
                                                : 1;
    for (auto& n : counts) n = is_multiple ? 2 * (1 + below(10)) : least + below(41 - least);
    if (c.replicas > 1 && below(3) == 0) counts[below(c.replicas)] = 0;
    c.steps.push_back(counts);
  }
  return c;
}

std::string weight_name(std::int64_t layer, std::int64_t rank) {
  return "layers." + std::to_string(layer) + ".of_rank." + std::to_string(rank);
}

/// Layers [first, end), whose inputs are divided among `ranks`. Without a group all shares are
/// here.
stage divided_layers(std::int64_t first, std::int64_t end, std::int64_t ranks,
                     const std::shared_ptr<compute::rank_group>& group = nullptr) {
  const std::int64_t begin_rank = compute::is_parallel(group) ? group->rank() : 0;
  const auto end_rank = compute::is_parallel(group) ? begin_rank + 1 : ranks;
  const auto share = width / ranks;
  stage s;
  for (auto i = first; i < end; ++i)
    for (auto r = begin_rank; r < end_rank; ++r)
      s.parameters.emplace_back(
          weight_name(i, r),
          weight_of(i).detach().narrow(1, r * share, share).clone().requires_grad_());
  s.forward = [=, weights = s.parameters](const at::Tensor& input) {
    auto x = input;
    auto weight = weights.begin();
    for (auto i = first; i < end; ++i) {
      const auto entering = compute::copy_to_group(x, group);
      at::Tensor sum;
      for (auto r = begin_rank; r < end_rank; ++r, ++weight) {
        const auto mine = entering.narrow(1, r * share, share);
        // Every other layer has a deferred weight gradient.
        const auto y =
            i % 2 == 0 ? rrfp::linear(mine, weight->second) : at::linear(mine, weight->second);
        sum = sum.defined() ? sum + y : y;
      }
      x = x + at::tanh(compute::reduce_from_group(sum, group));
    }
    return x;
  };
  return s;
}

/// The losses of the steps and the weights of a loop over the microbatches, replica by replica.
plain_result train_plainly(const configuration& c) {
  at::set_num_threads(1);
  const auto model = divided_layers(0, layers, c.ranks);
  plain_result r;
  for (const auto& p : model.parameters) r.weights.push_back(p.second);
  std::vector<at::Tensor> momentum(r.weights.size());
  for (std::size_t step = 0; step < c.steps.size(); ++step) {
    const auto rows = c.rows(step);
    const auto b = batch_of(step, rows);
    const auto xs = at::tensor_split(b.inputs, c.total(step));
    const auto ys = at::tensor_split(b.targets, c.total(step));
    double sum = 0;
    std::size_t next = 0;
    std::vector<at::Tensor> gradients(r.weights.size());
    for (const auto count : c.steps[step]) {
      for (const auto end = next + count; next < end; ++next) {
        const auto l = square_loss(model.forward(xs[next].clone()), ys[next].clone());
        (l / static_cast<double>(rows)).backward();
        const auto terms = static_cast<double>(xs[next].size(0));
        sum += l.item<double>() / terms * terms;
      }
      for (std::size_t i = 0; i < r.weights.size(); ++i) {
        const auto g = r.weights[i].grad();
        if (!g.defined()) continue;
        gradients[i] = gradients[i].defined() ? gradients[i] + g : g.clone();
        r.weights[i].mutable_grad().reset();
      }
    }
    r.losses.push_back(sum / static_cast<double>(rows));
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < r.weights.size(); ++i) {
      momentum[i] = momentum[i].defined() ? momentum[i].mul(0.9).add(gradients[i]) : gradients[i];
      r.weights[i].add_(momentum[i], -0.01);
    }
  }
  return r;
}

std::vector<std::uint64_t> seeds() {
  const auto* const one = std::getenv("RRFP_SEED");
  if (one != nullptr) return {std::strtoull(one, nullptr, 10)};
  const auto* const runs = std::getenv("RRFP_RUNS");
  std::vector<std::uint64_t> all(runs != nullptr ? std::strtoull(runs, nullptr, 10) : 40);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace

TEST_CASE("steps of any number of microbatches on each replica have the bits of a plain loop") {
  for (const auto seed : seeds()) {
    const auto c = random_configuration(seed);
    INFO("RRFP_SEED=" << seed << ": stages " << c.stages << ", replicas " << c.replicas << "\n"
                      << c.keys);
    const auto text =
        "pipeline.stages = " + std::to_string(c.stages) +
        "\npipeline.microbatches = 8\npipeline.replicas = " + std::to_string(c.replicas) +
        "\ntrain.lr = 0.01\ntrain.lr_min = 0.01\ntrain.momentum = 0.9\n"
        "train.optimizer = \"sgd\"\ntrain.weight_decay = 0\ntrain.clip_norm = 0\n"
        "run.hang_timeout_s = 20\n" +
        c.keys;
    const auto parsed = job::parse_job(text, "test", policies::registry(), {}, job::job_use::embed);
    INFO((parsed ? "" : parsed.message()));
    REQUIRE(parsed.ok());
    auto options = small_options();
    options.make_stage = [ranks = c.ranks](const stage_place& at) {
      return divided_layers(layers * at.index / at.count, layers * (at.index + 1) / at.count, ranks,
                            at.group);
    };
    if (c.blocks) block_sends(options, *parsed);
    const auto opened = pipeline::open(*parsed, options);
    INFO((opened ? "" : opened.message()));
    REQUIRE(opened.ok());
    auto& p = **opened;
    const auto plain = train_plainly(c);
    for (std::size_t step = 0; step < c.steps.size(); ++step) {
      const auto done = p.step(batch_of(step, c.rows(step)), {.microbatches = c.steps[step]});
      INFO("step " << step << ": " << (done ? "" : done.message()));
      REQUIRE(done.ok());
      CHECK(done->losses.size() == static_cast<std::size_t>(c.total(step)));
      CHECK(done->loss == Approx(plain.losses[step]).epsilon(1e-12));
    }
    const auto state = p.state_dict().value();
    auto expected = plain.weights.begin();
    for (std::int64_t i = 0; i < layers; ++i)
      for (std::int64_t r = 0; r < c.ranks; ++r, ++expected) {
        const auto at = std::find_if(state.begin(), state.end(),
                                     [&](const auto& t) { return t.name == weight_name(i, r); });
        REQUIRE(at != state.end());
        CHECK(at::equal(at->value, *expected));
      }
    CHECK(p.finish().ok());
  }
}

TEST_CASE("evaluations may have another number of microbatches than steps") {
  const auto blocking = GENERATE(false, true);
  const auto j =
      job_of(blocking ? "[dispatch]\npolicy = \"one_f_one_b\"\nmode = \"in-order\"\n" : "");
  auto options = small_options();
  if (blocking) block_sends(options, j);
  auto p = pipeline::open(j, options).value();
  const auto whole = p->eval(batch_of(3), {.microbatches = {1}}).value();
  const auto cut = p->eval(batch_of(3), {.microbatches = {30}}).value();
  CHECK(whole.losses.size() == 1);
  CHECK(cut.losses.size() == 30);
  CHECK(whole.loss == Approx(cut.loss));
  CHECK(p->step(batch_of(0)).value().losses.size() == 5);
}

TEST_CASE("a number of microbatches that cannot be is refused in words, and the training goes on") {
  auto p = pipeline::open(job_of(), small_options()).value();
  const auto refused = [&](const std::vector<std::uint32_t>& counts) {
    return p->step(batch_of(0), {.microbatches = counts}).message();
  };
  CHECK(refused({3, 2}) == "expected the microbatches of 1 replicas, got 2 counts");
  CHECK(refused({0}) == "expected at least 1 microbatch, got 0");
  for (const auto n : {38U, 4'000'000'000U})
    CHECK(refused({n}) == "batch.inputs: expected at least " + std::to_string(n) +
                              " rows, one per microbatch, got 37");
  CHECK(p->step(std::vector<compute::microbatch>{}).message() ==
        "expected at least 1 microbatch, got 0");
  CHECK(p->step(batch_of(0)).ok());
}

TEST_CASE(
    "a schedule that is not defined for a number of microbatches ends the training in words") {
  auto j = job_of("[dispatch]\npolicy = \"zb_h2\"\n");
  auto p = pipeline::open(j, small_options()).value();
  CHECK(p->step(batch_of(0), {.microbatches = {9}}).ok());
  const auto refused = p->step(batch_of(1), {.microbatches = {2}}).failure();
  CHECK_THAT(refused.message, Contains("a step of 2 microbatches: ") && Contains("zb_h2"));
  CHECK(refused.kind == error_kind::bad_input);
}

}  // namespace rrfp::testing
