/// Training with a pipeline equals a plain loop, to the last bit.
#include <atomic>
#include <filesystem>
#include <thread>

#include <rrfp/keyed_generator.hpp>
#include <rrfp/torch/parallel_operators.hpp>

#include "program.hpp"
#include "small_model.hpp"

#include <catch2/catch.hpp>

namespace rrfp::testing {

using Catch::Matchers::Contains;
using rrfp::test::scratch_folder;

TEST_CASE("steps and evaluations equal those of a plain loop for any split and order") {
  const auto plain = train_plainly(5, 6);
  for (const std::string how : {"", "[dispatch]\nmode = \"in-order\"\npolicy = \"one_f_one_b\"\n",
                                "[dispatch]\npolicy = \"zb_h1\"\n",
                                "[jitter]\ncompute = \"lognormal\"\ncompute_sigma = 0.5\n"}) {
    for (const std::uint32_t stages : {1, 2, 4}) {
      INFO(stages << " stages " << how);
      auto j = job_of(how);
      j.pipeline.stages = stages;
      auto p = pipeline::open(j, small_options()).value();
      CHECK(p->leads());
      for (std::uint64_t step = 0; step < 6; ++step) {
        CHECK(p->steps() == step);
        const auto r = p->step(batch_of(step)).value();
        CHECK(r.step == step + 1);
        CHECK(r.loss == plain.losses[step]);
        CHECK(r.count == 37);
        CHECK(r.lr == 0.01);
        CHECK(r.outputs.empty());
        if (step == 0) CHECK(r.losses == plain.first_losses);
        // An evaluation between steps does not change the training.
        if (step == 3) CHECK(p->eval(batch_of(7)).value().gradient_norm == 0);
      }
      const auto evaluated = p->eval(batch_of(100), {.return_outputs = true}).value();
      CHECK(evaluated.loss == plain.evaluated);
      CHECK(p->steps() == 6);
      const at::NoGradGuard no_grad;
      auto whole = layers_of(0, layers);
      for (std::size_t i = 0; i < plain.weights.size(); ++i)
        whole.parameters[i].second.copy_(plain.weights[i]);
      const auto inputs = at::tensor_split(batch_of(100).inputs, 5);
      REQUIRE(evaluated.outputs.size() == 5);
      for (std::size_t i = 0; i < 5; ++i)
        CHECK(at::equal(evaluated.outputs[i], whole.forward(inputs[i].clone())));
      const auto summary = p->finish().value();
      CHECK(summary.steps == 6);
      CHECK(summary.loss_last == plain.losses.back());
      CHECK(p->step(batch_of(0)).message() == "the training is over");
      CHECK(p->finish().message() == "the training is over");
    }
  }
}

TEST_CASE("dropout equals that of a plain loop, whatever the order") {
  // Two tensor-parallel ranks compute the same, and add up halves of it.
  const auto merged = [](const at::Tensor& x, const std::shared_ptr<compute::rank_group>& group) {
    if (!compute::is_parallel(group)) return x;
    return compute::reduce_from_group(compute::copy_to_group(x, group) * 0.5, group);
  };
  constexpr std::uint32_t parts = 4, microbatches = 5;
  const auto part_of = [&](const stage_place& at) {
    auto s = part_at(at);
    s.forward = [merged, inner = s.forward, group = at.group](const at::Tensor& x) {
      return at::dropout(merged(at::dropout(inner(x), 0.3, true), group), 0.3, true);
    };
    return s;
  };
  std::uint64_t call = 0;
  stage whole;
  std::vector<stage> plain;
  for (std::uint32_t i = 0; i < parts; ++i) {
    plain.push_back(part_of({i, 0, i, parts, nullptr}));
    whole.parameters.insert(whole.parameters.end(), plain[i].parameters.begin(),
                            plain[i].parameters.end());
  }
  whole.forward = [&](const at::Tensor& input) {
    auto x = input;
    for (std::uint32_t i = 0; i < parts; ++i) {
      const keyed_generator drawing{draw_key{9, call / microbatches + 1, call % microbatches, i}};
      x = plain[i].forward(x);
    }
    ++call;
    return x;
  };
  const auto expected = train_plainly(whole, microbatches, 3);
  for (const std::string how : {"", "[dispatch]\nmode = \"in-order\"\npolicy = \"one_f_one_b\"\n",
                                "[jitter]\ncompute = \"lognormal\"\ncompute_sigma = 0.5\n"}) {
    for (const auto& [recompute, tp] :
         {std::pair{false, 1U}, {true, 1U}, {false, 2U}, {true, 2U}}) {
      INFO(how << ", recompute " << recompute << ", tp " << tp);
      auto j = job_of(how);
      j.train.seed = 9;
      j.pipeline.tp = tp;
      j.pipeline.stages = parts;
      j.pipeline.recompute = recompute;
      auto options = small_options();
      options.make_stage = part_of;
      options.loss = [](const at::Tensor& output, const at::Tensor& target) {
        at::rand({3});  // has no effect on the numbers of the parts
        return square_loss(output, target);
      };
      at::manual_seed(4);
      auto p = pipeline::open(j, options).value();
      for (std::uint64_t step = 0; step < 3; ++step)
        CHECK(p->step(batch_of(step)).value().loss == expected.losses[step]);
      CHECK(p->finish().ok());
      // The program's own numbers are those without a pipeline.
      const auto mine = at::rand({1});
      at::manual_seed(4);
      CHECK(at::equal(mine, at::rand({1})));
    }
  }
}

TEST_CASE("user-defined microbatches may have different counts") {
  auto p = pipeline::open(job_of(), small_options()).value();
  std::vector<compute::microbatch> all;
  double sum = 0;
  const at::NoGradGuard no_grad;
  const auto whole = layers_of(0, layers);
  for (std::int64_t i = 0; i < 5; ++i) {
    auto b = batch_of(static_cast<std::uint64_t>(i), i + 1);
    sum += square_loss(whole.forward(b.inputs), b.targets).item<double>();
    compute::microbatch mb;
    mb.inputs = b.inputs;
    mb.targets = b.targets;
    mb.tokens = 10 * i;  // the first one has a count of 0
    all.push_back(mb);
  }
  const auto r = p->eval(all).value();
  CHECK(r.count == 100);
  CHECK(r.losses[4] ==
        Approx(square_loss(whole.forward(all[4].inputs), all[4].targets).item<double>() / 40));
  all.pop_back();
  CHECK(p->step(all, {.microbatches = {5}}).message() == "expected 5 microbatches, got 4");
  CHECK(p->step(all).value().losses.size() == 4);
}

TEST_CASE("replicas share the batch") {
  const auto plain = train_plainly(6, 4);
  auto j = job_of();
  j.pipeline.microbatches = 3;
  j.pipeline.replicas = 2;
  auto p = pipeline::open(j, small_options()).value();
  for (std::uint64_t step = 0; step < 4; ++step)
    CHECK(p->step(batch_of(step)).value().loss == Approx(plain.losses[step]).epsilon(1e-5));
  CHECK(p->finish().ok());
}

TEST_CASE("a saved training resumes to the same bits, also with other stages") {
  const auto plain = train_plainly(5, 6);
  const scratch_folder folder;
  auto j = job_of();
  j.checkpoint.dir = folder / "saved";
  std::atomic<int> saved = 0;
  std::vector<std::string> notes;
  auto options = small_options();
  options.on_checkpoint = [&](const actors::checkpoint_report& r) { saved += r.failure.empty(); };
  options.on_note = [&](const std::string& line) { notes.push_back(line); };
  {
    auto p = pipeline::open(j, options).value();
    for (std::uint64_t step = 0; step < 2; ++step) CHECK(p->step(batch_of(step)).ok());
    CHECK(p->save().ok());
    CHECK(p->save().ok());  // the program may have changed the state
    CHECK(p->step(batch_of(2)).ok());
    for (int i = 0; i < 2000 && saved < 2; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds{10});
  }  // destroyed without finish(): unsaved steps are lost
  CHECK(saved == 2);
  CHECK(notes.empty());
  for (const std::uint32_t stages : {1, 4}) {
    j.pipeline.stages = stages;
    auto p = pipeline::open(j, options).value();
    const auto first = p->steps();
    CHECK(first == (stages == 1 ? 2 : 4));
    CHECK_THAT(notes.back(), Contains("resumes after step " + std::to_string(first)));
    for (auto step = first; step < first + 2; ++step)
      CHECK(p->step(batch_of(step)).value().loss == plain.losses[step]);
    const auto summary = p->finish();  // saves
    CHECK(summary.value().first_step == first);
  }
  CHECK(std::filesystem::exists(folder / "saved/step-00000006/manifest.json"));
  j.train.seed = 5;
  CHECK_THAT(pipeline::open(j, options).message(), Contains("train.seed: expected 1, as in"));
  j.checkpoint.dir.clear();
  CHECK_THAT(pipeline::open(j, options).value()->save().message(), Contains("checkpoint.dir"));
}

TEST_CASE("every save() is written, however fast the steps and slow the disk") {
  const scratch_folder folder;
  auto j = job_of();
  j.checkpoint.dir = folder / "saved";
  j.train.steps = 3;  // fewer than the loop runs: the program decides
  {
    auto p = pipeline::open(j, small_options()).value();
    for (std::uint64_t step = 0; step < 7; ++step) {
      CHECK(p->step(batch_of(step)).ok());
      CHECK(p->save().ok());  // the previous save may still be in progress
    }
    CHECK(p->finish().value().checkpoints == 7);
  }
  CHECK(pipeline::open(j, small_options()).value()->steps() == 7);
}

TEST_CASE("a parameter that no microbatch uses stays as it is") {
  const auto unused = at::ones({3}).requires_grad_();
  auto options = small_options();
  options.make_stage = [&](const stage_place& at) {
    auto s = part_at(at);
    if (at.is_first()) s.parameters.emplace_back("unused", unused);
    return s;
  };
  auto j = job_of();
  j.train.optimizer = job::optimizer_kind::adamw;
  j.train.weight_decay = 0.5;
  auto p = pipeline::open(j, options).value();
  CHECK(p->step(batch_of(0)).ok());
  CHECK(p->finish().ok());
  // AdamW would decay it if it had a gradient of zero.
  CHECK(at::equal(unused, at::ones({3})));
}

TEST_CASE("the gradient of a parameter that only one replica uses counts for all") {
  // Column 0 numbers the rows; the first 20 are those of the first of two replicas.
  auto rows = batch_of(0, 40);
  rows.inputs.select(1, 0).copy_(at::arange(40));
  const auto train = [&](const std::string& division) {
    std::vector<at::Tensor> copies;
    auto options = small_options();
    options.make_stage = [&](const stage_place& at) {
      auto s = part_at(at);
      if (!at.is_first()) return s;
      copies.push_back(at::ones({width}).requires_grad_());
      s.parameters.emplace_back("seldom", copies.back());
      s.forward = [forward = s.forward, seldom = copies.back()](const at::Tensor& input) {
        const auto x = forward(input);
        return input[0][0].item<float>() < 20 ? x * seldom : x;
      };
      return s;
    };
    auto p = pipeline::open(job::parse_job("[pipeline]\nstages = 2\n" + division +
                                               "[train]\nsteps = 1\nweight_decay = 0.5\n"
                                               "[run]\nhang_timeout_s = 20\n",
                                           "test", policies::registry(), {}, job::job_use::embed)
                                .value(),
                            options)
                 .value();
    CHECK(p->step(rows).ok());
    CHECK(p->finish().ok());
    return copies;
  };
  const auto one = train("microbatches = 10\n");
  const auto two = train("microbatches = 5\nreplicas = 2\n");
  REQUIRE(one.size() == 1);
  REQUIRE(two.size() == 2);
  CHECK_FALSE(at::equal(one[0], at::ones({width})));
  for (const auto& copy : two) CHECK(at::equal(copy, one[0]));
}

TEST_CASE("a step says how much of the backward of each stage went to W") {
  for (const std::string policy : {"bfw", "bf"}) {
    auto j = job_of();
    j.dispatch.policy = policy;
    auto p = pipeline::open(j, small_options()).value();
    const auto shares = p->step(batch_of(0)).value().weight_shares;
    REQUIRE(shares.size() == 2);
    for (const auto share : shares) {
      CHECK((share > 0) == (policy == "bfw"));
      CHECK(share < 1);
    }
    CHECK(p->finish().ok());
  }
}

TEST_CASE("an exception of a hook is reported and does not affect the training") {
  auto options = small_options();
  std::vector<std::string> notes;
  options.on_note = [&](const std::string& line) { notes.push_back(line); };
  options.on_step = [](const actors::step_summary& s) {
    if (s.step == 2) throw std::runtime_error("the disk is full");
    if (s.step == 3) throw 3;
  };
  const auto plain = train_plainly(5, 4);
  auto p = pipeline::open(job_of(), options).value();
  const std::vector<std::string> failures{"", "on_step threw: the disk is full",
                                          "on_step threw an object that is not a std::exception",
                                          ""};
  for (std::uint64_t step = 0; step < 4; ++step) {
    const auto r = p->step(batch_of(step)).value();
    CHECK(r.loss == plain.losses[step]);
    CHECK(r.hook_failure == failures[step]);
  }
  CHECK(p->finish().value().steps == 4);
  CHECK(notes == std::vector<std::string>{failures[1], failures[2]});
}

TEST_CASE("steps and evaluations are counted separately, from 1") {
  auto options = small_options();
  std::vector<std::pair<bool, std::uint64_t>> passes;
  options.on_step = [&](const actors::step_summary& s) {
    passes.emplace_back(s.purpose == compute::step_purpose::training, s.step);
  };
  actors::trace_recorder trace;
  options.trace = &trace;
  auto p = pipeline::open(job_of(), options).value();
  CHECK(p->step(batch_of(0)).value().step == 1);
  CHECK(p->eval(batch_of(0)).value().step == 1);
  CHECK(p->step(batch_of(1)).value().step == 2);
  CHECK(p->eval(batch_of(1)).value().step == 2);
  CHECK(p->finish().value().steps == 2);
  CHECK(passes ==
        std::vector<std::pair<bool, std::uint64_t>>{{true, 1}, {false, 1}, {true, 2}, {false, 2}});
  const scratch_folder folder;
  REQUIRE(actors::write_chrome_json(folder / "trace.json", {{"run", &trace}}).ok());
  const auto text = rrfp::test::text_of(folder / "trace.json");
  for (const std::string number : {"1", "2"})
    CHECK_THAT(text,
               Contains("\"step\":" + number + ",") && Contains("\"evaluation\":" + number + ","));
  CHECK_THAT(text, !Contains("\"step\":0") && !Contains("\"evaluation\":0") &&
                       !Contains("4503599627370496"));
}

TEST_CASE("open does not change the random numbers of the program") {
  const auto draw = [](bool opens) {
    at::manual_seed(7);
    at::randn({3});  // an odd number: the generator keeps one more for the next call
    if (opens) {
      auto options = small_options();
      options.make_stage = [](const stage_place& at) {
        at::manual_seed(at.index);
        auto s = part_at(at);
        const at::NoGradGuard no_grad;
        s.parameters[0].second.add_(at::randn({width, width}), 0.01);
        return s;
      };
      CHECK(pipeline::open(job_of(), options).value()->step(batch_of(0)).ok());
    }
    return at::randn({5});
  };
  CHECK(at::equal(draw(true), draw(false)));
}

TEST_CASE("an interrupt ends the step, and the pipeline") {
  auto options = small_options();
  pipeline* running = nullptr;
  options.on_step = [&](const actors::step_summary& s) {
    if (s.step == 2) running->interrupt();
  };
  auto p = pipeline::open(job_of(), options).value();
  running = p.get();
  CHECK(p->step(batch_of(0)).ok());
  (void)p->step(batch_of(1));  // may still complete
  CHECK(p->step(batch_of(2)).message() == "interrupted");
  CHECK(p->finish().message() == "interrupted");
}

TEST_CASE("with a checkpoint folder an interrupt saves the running step, and finish() succeeds") {
  const scratch_folder folder;
  auto j = job_of();
  j.checkpoint.dir = folder / "saved";
  pipeline* running = nullptr;
  std::atomic<int> calls = 0;
  auto options = small_options();
  options.make_stage = [&](const stage_place& at) {
    auto s = part_at(at);
    if (at.is_first())
      s.forward = [&, inner = s.forward](const at::Tensor& x) {
        if (++calls == 7) running->interrupt();  // in the second step
        return inner(x);
      };
    return s;
  };
  auto p = pipeline::open(j, options).value();
  running = p.get();
  const auto plain = train_plainly(5, 3);
  CHECK(p->step(batch_of(0)).ok());
  CHECK(p->step(batch_of(1)).value().loss == plain.losses[1]);
  CHECK(p->step(batch_of(2)).message() == "interrupted");
  const auto summary = p->finish();
  INFO((summary ? "" : summary.message()));
  REQUIRE(summary.ok());
  CHECK(summary->steps == 2);
  CHECK(summary->checkpoints == 1);
  CHECK(summary->loss_last == plain.losses[1]);
  CHECK(p->finish().message() == "interrupted");
  p.reset();
  p = pipeline::open(j, small_options()).value();
  CHECK(p->steps() == 2);
  CHECK(p->step(batch_of(2)).value().loss == plain.losses[2]);
  // An interrupt between two steps has the same effect.
  p->interrupt();
  CHECK(p->step(batch_of(3)).message() == "interrupted");
  CHECK(p->finish().value().checkpoints == 1);
}

}  // namespace rrfp::testing
