// An example of your own training loop around an rrfp pipeline. The model learns to sort.
//
// Built outside of rrfp's tree, against the installed package (CMakeLists.txt beside this file):
//   embed_trainer job.toml              the pipeline of the job, in this process; in several with
//                                       the variables of torchrun or Slurm
//   embed_trainer job.toml --plain      the same model and batches in an ordinary loop
// Both print the loss of every step and, at the end, of a held-out batch. The losses are equal to
// the last bit.
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <rrfp/job/job.hpp>
#include <rrfp/pipeline.hpp>
#include <rrfp/policies/registry.hpp>

namespace {

constexpr std::int64_t layers = 8, width = 64, numbers = 8, rows = 32;

/// Consecutive layers of a residual network. Each layer draws its weights from its own generator,
/// so the weights do not depend on how the model is cut.
struct BlocksImpl : torch::nn::Module {
  BlocksImpl(std::int64_t first, std::int64_t end) : is_first(first == 0), is_last(end == layers) {
    if (is_first) in = seeded(layers, "in", numbers, width);
    for (auto i = first; i < end; ++i)
      hidden.push_back(seeded(i, "layer" + std::to_string(i), width, width));
    if (is_last) out = seeded(layers + 1, "out", width, numbers);
  }

  torch::Tensor forward(torch::Tensor x) {
    if (is_first) x = rrfp::linear(x, in->weight, in->bias);
    for (auto& layer : hidden) x = x + torch::gelu(rrfp::linear(x, layer->weight, layer->bias));
    return is_last ? rrfp::linear(x, out->weight, out->bias) : x;
  }

  torch::nn::Linear seeded(std::int64_t number, const std::string& name, std::int64_t from,
                           std::int64_t to) {
    torch::manual_seed(static_cast<std::uint64_t>(number));
    return register_module(name, torch::nn::Linear(from, to));
  }

  bool is_first, is_last;
  torch::nn::Linear in{nullptr}, out{nullptr};
  std::vector<torch::nn::Linear> hidden;
};
TORCH_MODULE(Blocks);

/// Rows of random numbers to sort; a function of `step`.
rrfp::batch batch_of(std::uint64_t step) {
  torch::manual_seed(1000 + step);
  const auto x = torch::rand({rows, numbers});
  return {x, std::get<0>(x.sort(1))};
}

torch::Tensor loss(const torch::Tensor& output, const torch::Tensor& target) {
  return torch::mse_loss(output, target, torch::Reduction::Sum);
}

int fail(const rrfp::error& why) {
  std::fprintf(stderr, "embed_trainer: %s\n", why.message.c_str());
  return rrfp::exit_code_of(why.kind);
}

int train(const rrfp::job::job& job) {
  rrfp::pipeline_options options;
  options.make_stage = [](const rrfp::stage_place& at) {
    return rrfp::stage_of(Blocks(layers * at.index / at.count, layers * (at.index + 1) / at.count));
  };
  options.loss = loss;
  auto opened = rrfp::pipeline::open(job, options);
  if (!opened) return fail(opened.failure());
  auto& pipeline = **opened;

  while (pipeline.steps() < job.train.steps) {
    const auto step = pipeline.step(batch_of(pipeline.steps()));
    if (!step) {
      const bool is_loss = step.failure().kind == rrfp::error_kind::node_lost;
      if (is_loss && pipeline.recover()) continue;  // goes on after pipeline.steps()
      return fail(step.failure());
    }
    if (pipeline.leads()) std::printf("step %" PRIu64 " loss %.17g\n", step->step, step->loss);
  }
  const auto held_out = pipeline.eval(batch_of(1u << 20), {.return_outputs = true});
  if (!held_out) return fail(held_out.failure());
  const auto summary = pipeline.finish();
  if (!summary) return fail(summary.failure());
  if (pipeline.leads())
    std::printf("held out loss %.17g\nweights %016" PRIx64 "\n", held_out->loss,
                summary->weights_xxh64);
  return 0;
}

/// The reference: one microbatch after another, without a pipeline.
int train_plainly(const rrfp::job::job& job) {
  torch::set_num_threads(1);  // as in a stage
  Blocks model(0, layers);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(job.train.lr)
                                                         .betas({job.train.beta1, job.train.beta2})
                                                         .eps(job.train.epsilon)
                                                         .weight_decay(job.train.weight_decay));
  const auto pass = [&](const rrfp::batch& batch, bool learn) {
    double sum = 0;
    const auto xs = batch.inputs.tensor_split(job.pipeline.microbatches);
    const auto ys = batch.targets.tensor_split(job.pipeline.microbatches);
    for (std::size_t i = 0; i < xs.size(); ++i) {
      const auto l = loss(model->forward(xs[i].clone()), ys[i].clone());
      if (learn) (l / static_cast<double>(rows)).backward();
      // The mean of each microbatch, weighted by its rows, as the pipeline computes it.
      const auto count = static_cast<double>(xs[i].size(0));
      sum += l.item<double>() / count * count;
    }
    return sum / static_cast<double>(rows);
  };
  for (std::uint64_t step = 0; step < job.train.steps; ++step) {
    optimizer.zero_grad();
    const auto value = pass(batch_of(step), true);
    optimizer.step();
    std::printf("step %" PRIu64 " loss %.17g\n", step + 1, value);
  }
  const torch::NoGradGuard no_grad;
  std::printf("held out loss %.17g\n", pass(batch_of(1u << 20), false));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return fail({"usage: embed_trainer JOB.toml [--plain]"});
  const auto job =
      rrfp::job::load_job(argv[1], rrfp::policies::registry(), {}, rrfp::job::job_use::embed);
  if (!job) return fail(job.failure());
  return argc > 2 && std::strcmp(argv[2], "--plain") == 0 ? train_plainly(*job) : train(*job);
}
