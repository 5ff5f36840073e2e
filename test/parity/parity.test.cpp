/// Parity with transformers: logits, losses, gradients and a short training of small random models,
/// loaded from files that transformers wrote, with 1 and 2 ranks and 1, 2 and 4 stages.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <rrfp/hugging_face/config.hpp>
#include <rrfp/job/model_rules.hpp>
#include <rrfp/safetensors/collection.hpp>
#include <rrfp/torch/model.hpp>
#include <rrfp/torch/pretrained.hpp>

#include "../support/program.hpp"
#include "loaded_microbatch.hpp"
#include "pipeline.hpp"
#include "ranks.hpp"

#include <catch2/catch.hpp>

namespace rrfp::compute::test {

namespace {

constexpr std::uint32_t microbatches = 4;

/// The output folder of reference.py, created once; none without transformers.
const std::optional<std::string>& reference() {
  static const rrfp::test::scratch_folder scratch;
  static const auto made = []() -> std::optional<std::string> {
    const auto out = scratch / "reference";
    const auto run = rrfp::test::run_program({RRFP_PYTHON, RRFP_REFERENCE, out});
    if (run.code == 77) {
      WARN("skipped: " << run.out);
      return std::nullopt;
    }
    INFO(run.err);
    REQUIRE(run.code == 0);
    fmt::print("{}", run.out);
    return out;
  }();
  return made;
}

at::Tensor tensor_of(const safetensors::collection& files, const std::string& name) {
  const auto* found = files.find(name);
  REQUIRE(found != nullptr);
  const auto type = found->info->type == dtype::float32   ? at::kFloat
                    : found->info->type == dtype::float64 ? at::kDouble
                                                          : at::kLong;
  return at::from_blob(const_cast<std::byte*>(found->bytes().data()), found->info->shape, type)
      .clone();
}

/// The microbatches of the reference, the same in every step.
class recorded_source final : public batch_source {
 public:
  explicit recorded_source(const safetensors::collection& files) {
    for (std::uint32_t mb = 0; mb < microbatches; ++mb) {
      const auto prefix = "data." + std::to_string(mb) + ".";
      microbatch batch;
      batch.inputs = tensor_of(files, prefix + "inputs");
      batch.targets = tensor_of(files, prefix + "targets");
      const auto lengths = tensor_of(files, prefix + "lengths");
      for (std::int64_t i = 0; i < lengths.numel(); ++i)
        batch.lengths.push_back(lengths[i].item<std::int64_t>());
      for (int i = 0; files.find(prefix + "image." + std::to_string(i)) != nullptr; ++i)
        batch.images.push_back(tensor_of(files, prefix + "image." + std::to_string(i)));
      batch.tokens = batch.targets.ne(ignored_target).sum().item<std::int64_t>();
      tokens_ += batch.tokens;
      batches_.push_back(std::move(batch));
    }
  }

  microbatch load(step_id, microbatch_id mb) const override { return batches_[mb.value()]; }
  std::int64_t step_tokens(step_id) const override { return tokens_; }

 private:
  std::vector<microbatch> batches_;
  std::int64_t tokens_ = 0;
};

/// A model that transformers wrote, and the results of transformers.
struct subject {
  explicit subject(const std::string& folder)
      : model(hugging_face::read_config(folder).value()),
        weights(safetensors::collection::open(folder).value()),
        expected(safetensors::collection::open(folder + "/reference.safetensors").value()),
        data(std::make_shared<recorded_source>(expected)) {}

  job::model_options model;
  safetensors::collection weights, expected;
  std::shared_ptr<const recorded_source> data;
};

std::vector<std::unique_ptr<stage_module>> chunks_of(const subject& s, std::uint32_t stages,
                                                     const shared_group& group) {
  std::vector<std::unique_ptr<stage_module>> chunks;
  const auto cut = job::even_cut(job::all_layers_of(s.model), stages);
  for (std::uint32_t vs = 0; vs < stages; ++vs) {
    const auto layers = layers_of(cut, virtual_stage_id{vs});
    chunks.push_back(make_model_chunk(s.model, layers, 1, group).value());
    load_pretrained(*chunks.back(), s.weights).value();
  }
  return chunks;
}

/// [rows, vocabulary] of every microbatch, through all stages.
std::vector<at::Tensor> logits_of(const subject& s, std::uint32_t stages, std::uint32_t ranks) {
  const auto of_ranks = on_ranks(ranks, [&](const shared_group& group) {
    const at::NoGradGuard no_grad;
    const auto chunks = chunks_of(s, stages, group);
    std::vector<at::Tensor> all;
    for (std::uint32_t mb = 0; mb < microbatches; ++mb) {
      loaded_microbatch view(s.data->load(step_id{0}, microbatch_id{mb}));
      forward_input in;
      in.input = view.whole().inputs;
      in.batch = &view;
      for (const auto& chunk : chunks) in.input = chunk->forward(in);
      all.push_back(in.input);
    }
    return all;
  });
  std::vector<at::Tensor> joined;
  for (std::uint32_t mb = 0; mb < microbatches; ++mb) {
    std::vector<at::Tensor> parts;
    for (const auto& r : of_ranks) parts.push_back(r[mb]);
    joined.push_back(at::cat(parts, -1));
  }
  return joined;
}

struct trained {
  std::vector<double> losses;               // of every microbatch of the first step
  std::vector<double> steps;                // of every step
  std::map<std::string, at::Tensor> moved;  // decrease of each parameter
};

std::map<std::string, at::Tensor> by_name(const std::vector<std::vector<named_tensor>>& of_ranks) {
  std::map<std::string, at::Tensor> all;
  for (const auto& t : assemble(of_ranks)) all.emplace(t.name, t.value.clone());
  return all;
}

trained train(const subject& s, std::uint32_t stages, std::uint32_t ranks,
              const job::train_options& how, std::uint64_t steps) {
  struct of_rank {
    std::vector<double> losses, steps;
    std::vector<named_tensor> before, after;
  };
  const auto weights_of = [](const pipeline& p) {
    std::vector<named_tensor> all;
    for (auto& t : p.snapshot())
      if (!t.name.starts_with("optimizer.")) all.push_back(std::move(t));
    return all;
  };
  const auto results = on_ranks(ranks, [&](const shared_group& group) {
    pipeline_options options;
    options.group = group;
    options.prepare = [&](stage_module& chunk) { load_pretrained(chunk, s.weights).value(); };
    pipeline p(s.model, how, {stages, 1, microbatches, placement::linear}, s.data, options);
    of_rank r;
    r.before = weights_of(p);
    const auto tokens = static_cast<double>(s.data->step_tokens(step_id{0}));
    for (std::uint64_t step = 0; step < steps; ++step) {
      p.run_tasks(step_id{step});
      const auto losses = p.losses();
      double sum = 0;
      for (std::uint32_t mb = 0; mb < microbatches; ++mb)
        sum +=
            losses[mb] * static_cast<double>(s.data->load(step_id{step}, microbatch_id{mb}).tokens);
      r.steps.push_back(sum / tokens);
      if (step == 0) r.losses = losses;
      p.finish(how.lr);
    }
    r.after = weights_of(p);
    return r;
  });
  trained t;
  t.losses = results[0].losses;
  t.steps = results[0].steps;
  std::vector<std::vector<named_tensor>> before, after;
  for (const auto& r : results) {
    before.push_back(r.before);
    after.push_back(r.after);
  }
  t.moved = by_name(before);
  for (const auto& [name, value] : by_name(after)) t.moved[name] -= value;
  return t;
}

/// The reference's gradient of a parameter, in the form of the parameter.
std::map<std::string, at::Tensor> gradients_of(const subject& s) {
  std::map<std::string, at::Tensor> all;
  for (const auto& chunk : chunks_of(s, 1, nullptr)) {
    for (const auto& p : chunk->parameters()) {
      if (p.tied == tie::copy) continue;
      auto g = tensor_of(s.expected, "gradient." + p.name);
      if (p.stored.transposed) g = g.t();
      all.emplace(p.name, g.reshape(p.value.sizes()));
    }
  }
  return all;
}

double norm_of(const std::map<std::string, at::Tensor>& gradients) {
  double squared = 0;
  for (const auto& [name, g] : gradients) squared += g.square().sum().item<double>();
  return std::sqrt(squared);
}

double relative(const at::Tensor& got, const at::Tensor& expected) {
  return ((got - expected).norm() / expected.norm()).item<double>();
}

/// A plain SGD step with lr 1: the decrease of a parameter is its gradient.
job::train_options gradient_step() {
  job::train_options t;
  t.optimizer = job::optimizer_kind::sgd;
  t.lr = 1;
  t.momentum = 0;
  t.weight_decay = 0;
  t.clip_norm = 0;
  return t;
}

job::train_options adamw() {
  job::train_options t;
  t.lr = 1e-3;
  t.beta1 = 0.9;
  t.beta2 = 0.95;
  t.epsilon = 1e-8;
  t.weight_decay = 0.1;
  t.clip_norm = 0;
  return t;
}

}  // namespace

TEST_CASE("the results equal those of transformers") {
  if (!reference()) return;
  fmt::print("{:<18} {:>2} {:>6}  {:>9}  {:>9}  {:>9}  {:>9}\n", "model", "tp", "stages", "logits",
             "loss", "gradient", "20 steps");
  for (const auto* name : {"gpt2", "llama", "llama-scaled-bias", "qwen3", "llava"}) {
    const subject s(*reference() + "/" + name);
    const auto losses = tensor_of(s.expected, "losses"),
               history = tensor_of(s.expected, "training");
    const auto gradients = gradients_of(s);
    for (const std::uint32_t ranks : {1, 2}) {
      for (const std::uint32_t stages : {1, 2, 4}) {
        INFO(name << ", tp " << ranks << ", " << stages << " stages");
        double of_logits = 0, of_loss = 0, of_gradient = 0, of_training = 0;
        const auto logits = logits_of(s, stages, ranks);
        for (std::uint32_t mb = 0; mb < microbatches; ++mb)
          of_logits =
              std::max(of_logits,
                       relative(logits[mb], tensor_of(s.expected, "logits." + std::to_string(mb))));
        CHECK(of_logits < 1e-5);

        const auto one = train(s, stages, ranks, gradient_step(), 1);
        for (std::uint32_t mb = 0; mb < microbatches; ++mb) {
          const auto expected = losses[mb].item<double>();
          of_loss = std::max(of_loss, std::abs(one.losses[mb] - expected) / expected);
        }
        CHECK(of_loss < 1e-6);

        REQUIRE(one.moved.size() == gradients.size());
        for (const auto& [parameter, gradient] : one.moved) {
          INFO(parameter);
          const auto& expected = gradients.at(parameter);
          // A key bias without rotary positions has gradient 0 except for rounding.
          const auto size = std::max(expected.norm().item<double>(), 1e-4 * norm_of(gradients));
          const auto off = (gradient - expected).norm().item<double>() / size;
          CHECK(off < 1e-4);
          of_gradient = std::max(of_gradient, off);
        }

        const auto many = train(s, stages, ranks, adamw(), 20);
        for (std::int64_t step = 0; step < 20; ++step)
          of_training = std::max(of_training, std::abs(many.steps[static_cast<std::size_t>(step)] -
                                                       history[step].item<double>()));
        CHECK(of_training < 1e-4);
        CHECK(many.steps.back() < many.steps.front() - 0.1);  // training reduces the loss
        fmt::print("{:<18} {:>2} {:>6}  {:9.1e}  {:9.1e}  {:9.1e}  {:9.1e}\n", name, ranks, stages,
                   of_logits, of_loss, of_gradient, of_training);
      }
    }
  }
}

TEST_CASE("a job trains a model that transformers wrote, and refuses broken files") {
  if (!reference()) return;
  const rrfp::test::scratch_folder folder;
  const auto job = folder / "job.toml", out = folder / "out.jsonl";
  std::ofstream{job} << "[model]\npretrained = \"" << *reference() << "/qwen3\"\n"
                     << "[data]\ntext = [\"/usr/share/common-licenses/GPL-3\"]\n"
                     << "tokenizer = \"bytes\"\nmicrobatch_size = 2\nsequence_length = 48\n"
                     << "[pipeline]\nmicrobatches = 4\n[train]\nsteps = 3\n";
  const auto run = [&](std::vector<std::string> settings) {
    std::vector<std::string> arguments{RRFP_NODE, "run", job, "--json", out};
    for (const auto& s : settings) arguments.insert(arguments.end(), {"--set", s});
    return rrfp::test::run_program(arguments);
  };
  const auto last_line = [&] {
    const auto text = rrfp::test::text_of(out);
    const auto at = text.find("\"weights_xxh64\"");
    return text.substr(at, 40);
  };
  REQUIRE(run({}).code == 0);
  const auto weights = last_line();
  REQUIRE(run({"pipeline.stages=3"}).code == 0);
  CHECK(last_line() == weights);

  const auto refused = [&](const std::string& model, const std::string& why) {
    const auto o = run({"model.pretrained=" + model, "pipeline.stages=2"});
    CHECK(o.code == 2);
    CHECK_THAT(o.err, Catch::Contains(why));
    CHECK(std::count(o.err.begin(), o.err.end(), '\n') == 1);
  };
  const auto copy = [&](const std::string& name) {
    const auto to = folder / name;
    std::filesystem::copy(*reference() + "/qwen3", to);
    return to;
  };
  refused("/nonexistent", "cannot be read: No such file or directory");
  const auto torn = copy("torn");
  std::filesystem::resize_file(torn + "/model.safetensors", 9000);
  refused(torn, "reach beyond");
  // The weights of another model: the same family, other names and sizes.
  const auto other = copy("other");
  std::filesystem::copy(*reference() + "/llama/model.safetensors", other + "/model.safetensors",
                        std::filesystem::copy_options::overwrite_existing);
  refused(other,
          "'model.layers.0.self_attn.q_proj.weight': expected the shape [48, 32], got [32, 32]");
  // A tensor that only the second node needs is reported before any node starts, in one line.
  const auto lacks = copy("lacks");
  auto index = rrfp::test::text_of(lacks + "/model.safetensors");
  const auto at = index.find("model.layers.3.mlp.up_proj");
  REQUIRE(at != std::string::npos);
  index.replace(at, 5, "nodel");
  std::ofstream{lacks + "/model.safetensors", std::ios::binary} << index;
  const auto o =
      rrfp::test::run_program({RRFP_NODE, "run", job, "--set", "model.pretrained=" + lacks, "--set",
                               "pipeline.stages=2", "--local-nodes", "2"});
  INFO(o.out << o.err);
  CHECK(o.code == 2);
  CHECK_THAT(o.err, Catch::Contains("model.pretrained=" + lacks + ": ") &&
                        Catch::Contains("lacks the tensor 'model.layers.3.mlp.up_proj.weight'"));
  CHECK(std::count(o.err.begin(), o.err.end(), '\n') == 1);

  std::ofstream{other + "/config.json"} << "{\"model_type\": \"bert\"}";
  refused(other, "model_type: expected");
}

TEST_CASE("a vision transformer by itself equals that of transformers") {
  if (!reference()) return;
  const subject s(*reference() + "/llava");
  int compared = 0;
  for (const std::uint32_t ranks : {1, 2}) {
    const auto of_ranks = on_ranks(ranks, [&](const shared_group& group) {
      const at::NoGradGuard no_grad;
      // Two layers of the encoder, then two of the decoder: a stage each.
      const auto chunks = chunks_of(s, 4, group);
      std::vector<at::Tensor> hidden;
      for (std::uint32_t mb = 0; mb < microbatches; ++mb) {
        loaded_microbatch view(s.data->load(step_id{0}, microbatch_id{mb}));
        forward_input in;
        in.input = view.whole().inputs;
        in.batch = &view;
        for (std::size_t stage = 0; stage < 2; ++stage) in.input = chunks[stage]->forward(in);
        hidden.push_back(in.input);
      }
      return hidden;
    });
    for (std::uint32_t mb = 0; mb < microbatches; ++mb) {
      const auto name = "vit." + std::to_string(mb);
      if (s.expected.find(name) == nullptr) continue;
      for (const auto& hidden : of_ranks)
        CHECK(relative(hidden[mb], tensor_of(s.expected, name)) < 1e-5);
      ++compared;
    }
  }
  CHECK(compared == 6);
}

TEST_CASE("transformers loads a model that rrfp initialised") {
  if (!reference()) return;
  const rrfp::test::scratch_folder folder;
  const auto saved = folder / "saved";
  const auto run = [](const std::vector<std::string>& command) {
    const auto o = rrfp::test::run_program(command);
    INFO(o.out << o.err);
    CHECK(o.code == 0);
  };
  const auto job = folder / "job.toml";
  std::ofstream{job} << "[pipeline]\nstages = 2\nmicrobatches = 2\n[model]\nfamily = \"llama\"\n"
                     << "vocabulary = 320\nlayers = 2\nhidden = 32\nheads = 4\ncontext = 512\n"
                     << "[vision]\nlayers = 2\nhidden = 16\nheads = 2\npatch = 4\nimage_size = 16\n"
                     << "image_token = 300\n[data]\nshapes = 64\nsequence_length = 512\n"
                     << "microbatch_size = 1\n[train]\nsteps = 2\n[checkpoint]\ndir = \"" << saved
                     << "\"\n[run]\nprogress = \"none\"\n";
  run({RRFP_NODE, "run", job});
  const auto out = folder / "model";
  run({RRFP_NODE, "export", saved, "--out", out});
  const auto data = *reference() + "/llava/reference.safetensors";
  run({RRFP_PYTHON, RRFP_REFERENCE, "--load", out, data, folder / "logits"});
  std::filesystem::copy(data, out + "/reference.safetensors");
  const subject s(out);
  const auto expected = safetensors::collection::open(folder / "logits").value();
  const auto ours = logits_of(s, 1, 1);
  for (std::uint32_t mb = 0; mb < microbatches; ++mb)
    CHECK(relative(ours[mb], tensor_of(expected, "logits." + std::to_string(mb))) < 1e-5);
}

TEST_CASE("transformers loads a model that rrfp trained") {
  if (!reference()) return;
  namespace fs = std::filesystem;
  const rrfp::test::scratch_folder folder;
  const auto run = [](const std::vector<std::string>& command) {
    const auto o = rrfp::test::run_program(command);
    INFO(o.out << o.err);
    REQUIRE(o.code == 0);
    return o;
  };
  for (const std::string name : {"gpt2", "llama", "llama-scaled-bias", "qwen3", "llava"}) {
    INFO(name);
    const auto base = *reference() + "/" + name;
    const auto sees = name == "llava";
    const auto job = folder / (name + ".toml");
    std::ofstream{job} << "[pipeline]\nstages = 2\nmicrobatches = 3\ntp = 2\n"
                       << "[model]\npretrained = \"" << base
                       << "\"\n[data]\ntokenizer = \"bytes\"\n"
                       << (sees ? "shapes = 64\nsequence_length = 512\n"
                                : "text = [\"/usr/share/common-licenses/GPL-3\"]\n"
                                  "sequence_length = 32\n")
                       << "microbatch_size = 1\n"
                       << "[train]\nsteps = 3\nlr = 1e-2\n[run]\nprogress = \"none\"\n";
    const auto exported = [&](const std::string& what, const std::vector<std::string>& settings,
                              const std::vector<std::string>& how) {
      const auto saved = folder / (name + "." + what + ".saved"), to = folder / (name + "." + what);
      std::vector<std::string> train{RRFP_NODE, "run", job, "--set", "checkpoint.dir=" + saved};
      for (const auto& s : settings) train.insert(train.end(), {"--set", s});
      run(train);
      std::vector<std::string> write{RRFP_NODE, "export", saved, "--out", to, "--base", base};
      write.insert(write.end(), how.begin(), how.end());
      run(write);
      return to;
    };
    const auto tensors_of = [](const std::string& of) {
      return safetensors::collection::open(of).value();
    };

    // Without training the files are the same, bit for bit.
    const auto same = tensors_of(exported("same", {"train.lr=0"}, {}));
    const auto begun = tensors_of(base);
    REQUIRE(same.tensors().size() == begun.tensors().size());
    for (const auto& [tensor, t] : begun.tensors()) {
      INFO(tensor);
      const auto* const other = same.find(tensor);
      REQUIRE(other != nullptr);
      CHECK(other->info->shape == t.info->shape);
      CHECK(std::ranges::equal(other->bytes(), t.bytes()));
    }

    const auto tuned = exported("tuned", {}, {"--max-shard-bytes", "32KiB"});
    const auto logits = folder / (name + ".logits");
    run({RRFP_PYTHON, RRFP_REFERENCE, "--load", tuned, base + "/reference.safetensors", logits});
    fs::copy(base + "/reference.safetensors", tuned + "/reference.safetensors");
    const subject s(tuned);
    CHECK(s.weights.files().size() > 1);
    const auto expected = safetensors::collection::open(logits).value();
    const auto ours = logits_of(s, 2, 1);
    for (std::uint32_t mb = 0; mb < microbatches; ++mb) {
      const auto number = "logits." + std::to_string(mb);
      CHECK(relative(ours[mb], tensor_of(expected, number)) < 1e-5);
      CHECK(relative(ours[mb], tensor_of(s.expected, number)) > 1e-2);
    }
    run({RRFP_NODE, "check", job, "--set",
         "model.pretrained=" + exported("half", {}, {"--dtype", "bfloat16"})});
  }
}

}  // namespace rrfp::compute::test
