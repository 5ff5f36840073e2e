/// Parts whose forward changes buffers: batch norm over the pipeline equals a plain loop.
#include <functional>
#include <memory>

#include <rrfp/job/job.hpp>
#include <rrfp/study/options.hpp>

#include "program.hpp"
#include "small_model.hpp"

#include <catch2/catch.hpp>

namespace rrfp::testing {
namespace {

using Catch::Matchers::Contains;
using rrfp::test::scratch_folder;

/// The layers of a part, then batch norm without weights.
stage normed(const stage_place& at) {
  auto s = part_at(at);
  const auto name = "norm." + std::to_string(at.index);
  const auto mean = at::zeros({width}), variance = at::ones({width});
  s.buffers = {{name + ".running_mean", mean}, {name + ".running_var", variance}};
  s.forwards_in_order = true;
  const auto training = std::make_shared<bool>(true);
  s.set_training = [training](bool now) { *training = now; };
  s.forward = [inner = s.forward, mean, variance, training](const at::Tensor& x) {
    return at::batch_norm(inner(x), {}, {}, mean, variance, *training, 0.1, 1e-5, false);
  };
  return s;
}

/// All parts in one, with their buffers.
stage whole_of(std::uint32_t parts) {
  stage whole;
  std::vector<stage> all;
  for (std::uint32_t i = 0; i < parts; ++i) {
    all.push_back(normed({i, 0, i, parts, nullptr}));
    for (const auto& p : all.back().parameters) whole.parameters.push_back(p);
    for (const auto& b : all.back().buffers) whole.buffers.push_back(b);
  }
  whole.forward = [all](const at::Tensor& input) {
    auto x = input;
    for (const auto& part : all) {
      part.set_training(at::GradMode::is_enabled());
      x = part.forward(x);
    }
    return x;
  };
  return whole;
}

/// Records the buffers of the parts that it makes.
pipeline_options normed_options(std::vector<at::Tensor>& buffers) {
  auto o = small_options();
  buffers.clear();
  o.make_stage = [&buffers](const stage_place& at) {
    auto s = normed(at);
    for (const auto& b : s.buffers) buffers.push_back(b.second);
    return s;
  };
  return o;
}

bool equal(const std::vector<at::Tensor>& buffers, const stage& whole) {
  if (buffers.size() != whole.buffers.size()) return false;
  for (std::size_t i = 0; i < buffers.size(); ++i)
    if (!at::equal(buffers[i], whole.buffers[i].second)) return false;
  return true;
}

}  // namespace

TEST_CASE("batch norm equals that of a plain loop with every policy") {
  for (const std::uint32_t stages : {1, 2, 4}) {
    const auto whole = whole_of(stages);
    const auto plain = train_plainly(whole, 5, 3);
    for (const auto& policy : policies::registry().known()) {
      INFO(stages << " stages, " << policy.name);
      auto j = job_of("[jitter]\ncompute = \"lognormal\"\ncompute_sigma = 0.5\n");
      j.pipeline.stages = stages;
      j.dispatch.policy = policy.name;
      if (!job::check_job(j, policies::registry(), job::job_use::embed)) continue;
      std::vector<at::Tensor> buffers;
      auto p = pipeline::open(j, normed_options(buffers)).value();
      for (std::uint64_t step = 0; step < 3; ++step)
        CHECK(p->step(batch_of(step)).value().loss == plain.losses[step]);
      CHECK(p->eval(batch_of(100)).value().loss == plain.evaluated);
      CHECK(p->finish().ok());
      CHECK(equal(buffers, whole));
    }
  }
}

TEST_CASE("checkpoints have the buffers") {
  const scratch_folder folder;
  const auto whole = whole_of(2);
  const auto plain = train_plainly(whole, 5, 6);
  auto j = job_of();
  j.checkpoint.dir = folder / "saved";
  std::vector<at::Tensor> buffers;
  for (const std::uint64_t begin : {0, 3}) {
    auto p = pipeline::open(j, normed_options(buffers)).value();
    CHECK(p->steps() == begin);
    for (auto step = begin; step < begin + 3; ++step)
      CHECK(p->step(batch_of(step)).value().loss == plain.losses[step]);
    CHECK(p->finish().ok());
  }
  CHECK(equal(buffers, whole));

  // A checkpoint of the model without batch norm.
  j.checkpoint.dir = folder / "plain";
  CHECK(pipeline::open(j, small_options()).value()->finish().ok());
  REQUIRE(pipeline::open(j, small_options()).value()->step(batch_of(0)).ok());
  {
    auto p = pipeline::open(j, small_options()).value();
    CHECK(p->step(batch_of(0)).ok());
    CHECK(p->finish().ok());
  }
  CHECK_THAT(pipeline::open(j, normed_options(buffers)).message(),
             Contains("the checkpoint lacks 'norm.0.running_mean'"));
}

TEST_CASE("what would make buffers depend on the order is refused") {
  std::vector<at::Tensor> buffers;
  auto j = job_of();
  j.pipeline.recompute = true;
  CHECK_THAT(pipeline::open(j, normed_options(buffers)).message(),
             Contains("stage 0: its forward changes buffers") &&
                 Contains("expected pipeline.recompute = false"));
  j.pipeline.recompute = false;
  j.pipeline.replicas = 2;
  CHECK_THAT(pipeline::open(j, normed_options(buffers)).message(),
             Contains("expected pipeline.replicas = 1"));
  const auto ahead = job_of("[dispatch]\nrun_ahead = 4\n", study::schema());
  CHECK_THAT(pipeline::open(ahead, normed_options(buffers)).message(),
             Contains("expected no run-ahead"));

  const std::vector<std::function<void(at::Tensor&)>> changes{
      [](at::Tensor& seen) { seen.add_(1); },
      [](at::Tensor& seen) { seen.data().add_(1); },
      [](at::Tensor& seen) { seen.set_data(at::ones({})); },
  };
  for (const auto& change : changes) {
    auto undeclared = small_options();
    undeclared.make_stage = [change](const stage_place& at) {
      auto s = part_at(at);
      auto seen = at::zeros({});
      s.buffers = {{"seen." + std::to_string(at.index), seen}};
      s.forward = [inner = s.forward, seen, change](const at::Tensor& x) mutable {
        change(seen);
        return inner(x);
      };
      return s;
    };
    CHECK_THAT(pipeline::open(job_of(), undeclared).value()->step(batch_of(0)).message(),
               Contains("F0 of step 1: forward changes the buffer 'seen.0': expected "
                        "stage::forwards_in_order = true"));
  }
}

}  // namespace rrfp::testing
