// A training loop of one's own around an rrfp pipeline: learns to sort.
//
// Built outside of rrfp's tree, against the installed package (CMakeLists.txt beside this file):
//   embed_trainer job.toml              the pipeline that the job describes, in this process or,
//   with
//                                       torchrun's or Slurm's variables, in several
//   embed_trainer job.toml --plain      the same model and batches in an ordinary loop
// Both print the loss of every step, and in the end that of a batch that was not learnt from: they
// are equal to the last bit.
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <rrfp/pipeline.hpp>

namespace {

constexpr std::int64_t layers = 8, width = 64, numbers = 8, rows = 32;

/// Some consecutive layers of a residual network. Each layer draws its weights from a generator of
/// its own, so that the model does not depend on how it is cut.
struct BlocksImpl : torch::nn::Module {
  BlocksImpl(std::int64_t first, std::int64_t end)
      : takes_rows(first == 0), gives_rows(end == layers) {
    if (takes_rows) in = seeded(layers, "in", numbers, width);
    for (auto i = first; i < end; ++i)
      hidden.push_back(seeded(i, "layer" + std::to_string(i), width, width));
    if (gives_rows) out = seeded(layers + 1, "out", width, numbers);
  }

  torch::Tensor forward(torch::Tensor x) {
    if (takes_rows) x = rrfp::linear(x, in->weight, in->bias);
    for (auto& layer : hidden) x = x + torch::gelu(rrfp::linear(x, layer->weight, layer->bias));
    return gives_rows ? rrfp::linear(x, out->weight, out->bias) : x;
  }

  torch::nn::Linear seeded(std::int64_t number, const std::string& name, std::int64_t from,
                           std::int64_t to) {
    torch::manual_seed(static_cast<std::uint64_t>(number));
    return register_module(name, torch::nn::Linear(from, to));
  }

  bool takes_rows, gives_rows;
  torch::nn::Linear in{nullptr}, out{nullptr};
  std::vector<torch::nn::Linear> hidden;
};
TORCH_MODULE(Blocks);

/// Rows of random numbers, to be sorted; of step `step` always the same.
rrfp::batch batch_of(std::uint64_t step) {
  torch::manual_seed(1000 + step);
  const auto x = torch::rand({rows, numbers});
  return {x, std::get<0>(x.sort(1))};
}

torch::Tensor loss(const torch::Tensor& output, const torch::Tensor& target) {
  return torch::mse_loss(output, target, torch::Reduction::Sum);
}

int fail(const std::string& why) {
  std::fprintf(stderr, "embed_trainer: %s\n", why.c_str());
  return 2;
}

int train(const rrfp::job::job& job) {
  rrfp::pipeline_options options;
  options.make_stage = [](const rrfp::stage_place& at) {
    return rrfp::stage_of(Blocks(layers * at.index / at.count, layers * (at.index + 1) / at.count));
  };
  options.loss = loss;
  auto opened = rrfp::pipeline::open(job, options);
  if (!opened) return fail(opened.message());
  auto& pipeline = **opened;

  while (pipeline.steps() < job.train.steps) {
    const auto step = pipeline.step(batch_of(pipeline.steps()));
    if (!step) return fail(step.message());
    if (pipeline.leads()) std::printf("step %" PRIu64 " loss %.17g\n", step->step, step->loss);
  }
  const auto held_out = pipeline.eval(batch_of(1u << 20), {.return_outputs = true});
  if (!held_out) return fail(held_out.message());
  const auto summary = pipeline.finish();
  if (!summary) return fail(summary.message());
  if (pipeline.leads())
    std::printf("held out loss %.17g\nweights %016" PRIx64 "\n", held_out->loss,
                summary->weights_xxh64);
  return 0;
}

/// What it has to be equal to: microbatch after microbatch, no pipeline.
int train_plainly(const rrfp::job::job& job) {
  torch::set_num_threads(1);  // as a stage has
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
      const auto l = loss(model->forward(xs[i]), ys[i]);
      if (learn) (l / static_cast<double>(rows)).backward();
      // A mean each, weighed by its rows, as the pipeline does.
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
  if (argc < 2) return fail("usage: embed_trainer JOB.toml [--plain]");
  const auto job = rrfp::job::load_job(argv[1], {}, rrfp::job::job_use::embed);
  if (!job) return fail(job.message());
  return argc > 2 && std::strcmp(argv[2], "--plain") == 0 ? train_plainly(*job) : train(*job);
}
