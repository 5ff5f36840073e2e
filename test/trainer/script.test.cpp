/// Stages saved by Python as TorchScript.
#include <fstream>

#include "program.hpp"
#include "small_model.hpp"

#include <catch2/catch.hpp>

namespace rrfp::testing {

using Catch::Matchers::Contains;
using namespace rrfp::test;

TEST_CASE("TorchScript modules are stages, and are trained as in a plain loop") {
  const scratch_folder folder;
  const auto saved = run_program({RRFP_PYTHON, RRFP_SCRIPTS, folder / "."});
  INFO(saved.out << saved.err);
  REQUIRE(saved.code == 0);
  const auto file = [&](std::uint32_t n) { return folder / ("stage" + std::to_string(n) + ".pt"); };
  auto options = small_options();
  options.make_stage = [&](const stage_place& at) {
    return script_stage(file(at.index), "stage" + std::to_string(at.index) + ".");
  };
  auto j = job_of();
  j.train.momentum = 0;
  auto p = pipeline::open(j, options).value();

  at::set_num_threads(1);
  auto first = script_stage(file(0)).value(), second = script_stage(file(1)).value();
  for (std::uint64_t step = 0; step < 4; ++step) {
    const auto b = batch_of(step);
    double sum = 0;
    const auto xs = at::tensor_split(b.inputs, 5), ys = at::tensor_split(b.targets, 5);
    for (std::size_t i = 0; i < 5; ++i) {
      const auto l = square_loss(second.forward(first.forward(xs[i].clone())), ys[i].clone());
      (l / 37.0).backward();
      const auto count = static_cast<double>(xs[i].size(0));
      sum += l.item<double>() / count * count;
    }
    CHECK(p->step(b).value().loss == sum / 37.0);
    const at::NoGradGuard no_grad;
    for (auto* s : {&first, &second})
      for (auto& [name, w] : s->parameters) {
        w.add_(w.grad(), -0.01);
        w.mutable_grad().reset();
      }
  }
  CHECK(p->finish().ok());

  CHECK_THAT(script_stage(folder / "none.pt").message(),
             Contains(folder / "none.pt: expected a module saved by torch.jit.save: "));
  CHECK_THAT(script_stage(folder / "pair.pt").message(),
             Contains("pair.pt: expected a module with forward(Tensor) -> Tensor, got forward(") &&
                 Contains("(Tensor, Tensor)"));
  std::ofstream{folder / "text.pt"} << "no module";
  options.make_stage = [&](const stage_place&) { return script_stage(folder / "text.pt"); };
  CHECK_THAT(pipeline::open(job_of(), options).message(),
             Contains("stage 0 chunk 0: ") && Contains("text.pt: expected a module"));
}

}  // namespace rrfp::testing
