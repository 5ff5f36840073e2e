// model.pretrained: `check` and `run` refuse an incomplete folder, and a resumed training refuses
// another model. The folders are exported from very short trainings.
#include <catch2/catch.hpp>

#include "program.hpp"
#include "refused.hpp"

namespace {

using namespace rrfp::test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

using settings = std::vector<std::string>;

const std::string task =
    "[pipeline]\nstages = 2\nmicrobatches = 2\n[data]\ntext = "
    "[\"/usr/share/common-licenses/GPL-3\"]\ntokenizer = \"bytes\"\nmicrobatch_size = "
    "1\nsequence_length = 16\n[train]\nsteps = 2\n[run]\nprogress = \"none\"\n";
const std::string sizes =
    "[model]\nfamily = \"llama\"\nlayers = 2\nhidden = 16\nheads = 2\nfeed_forward = "
    "32\nvocabulary = 258\ncontext = 32\n";

outcome node(const std::string& command, const std::string& job, const settings& changed) {
  std::vector<std::string> arguments{RRFP_NODE, command, job};
  for (const auto& s : changed) arguments.insert(arguments.end(), {"--set", s});
  return run_program(arguments);
}

void require_done(const outcome& o) {
  INFO(o.out << o.err);
  REQUIRE(o.code == 0);
}

struct job_folder {
  scratch_folder folder;
  const std::string from_nothing = job("from_nothing", sizes);

  std::string at(const std::string& name) const { return folder / name; }

  std::string job(const std::string& name, const std::string& model) const {
    const auto file = at(name + ".toml");
    std::ofstream{file} << model << task;
    return file;
  }
  std::string fine_tuning(const std::string& model) const {
    return job("fine_tuning", "[model]\npretrained = \"" + model + "\"\n");
  }

  /// The folder of a model in several files.
  std::string model(const std::string& name, int seed) const {
    const auto saved = at(name + ".saved"), made = at(name);
    require_done(
        node("run", from_nothing,
             {"train.steps=1", "train.seed=" + std::to_string(seed), "checkpoint.dir=" + saved}));
    require_done(
        run_program({RRFP_NODE, "export", saved, "--out", made, "--max-shard-bytes", "16KiB"}));
    return made;
  }
};

/// Both commands print the same single line.
void require_refused(const std::string& job, const settings& changed,
                     const std::vector<std::string>& expected) {
  for (const std::string command : {"run", "check"}) {
    const auto o = node(command, job, changed);
    INFO(command << "\n" << o.out);
    require_refused(o, expected);
  }
}

std::string first_shard(const std::string& model) {
  for (const auto& entry : fs::directory_iterator{model})
    if (entry.path().extension() == ".safetensors") return entry.path().string();
  FAIL("no shard");
  return {};
}

}  // namespace

TEST_CASE("check refuses the weights that a run would refuse") {
  const job_folder w;
  const auto model = w.model("model", 1);
  const auto job = w.fine_tuning(model);
  const auto whole = node("check", job, {});
  require_done(whole);
  const auto key = job + ":2: model.pretrained: ";

  const auto shard = first_shard(model), aside = w.at("aside");
  fs::rename(shard, aside);
  require_refused(job, {}, {key, shard, "No such file"});
  fs::rename(aside, shard);

  const auto config = model + "/config.json";
  const auto text = text_of(config);
  auto wider = text;
  const std::string width = "\"intermediate_size\": 32";
  REQUIRE(wider.find(width) != std::string::npos);
  wider.replace(wider.find(width), width.size(), "\"intermediate_size\": 48");
  std::ofstream{config} << wider;
  require_refused(job, {}, {key, "expected the shape [48, 16], got [32, 16]"});
  auto deeper = text;
  const std::string layers = "\"num_hidden_layers\": 2";
  REQUIRE(deeper.find(layers) != std::string::npos);
  deeper.replace(deeper.find(layers), layers.size(), "\"num_hidden_layers\": 3");
  std::ofstream{config} << deeper;
  require_refused(job, {}, {key, "lacks the tensor 'model.layers.2."});
  std::ofstream{config} << text;

  const auto index = model + "/model.safetensors.index.json";
  fs::rename(index, aside);
  require_refused(job, {}, {key, "found neither"});
  std::ofstream{model + "/pytorch_model.bin"} << "weights of another kind";
  require_refused(job, {}, {key, "found pytorch_model.bin, which rrfp does not read"});
  fs::rename(aside, index);
  require_done(node("check", job, {}));
}

TEST_CASE("a training resumes with its own model.pretrained, even from another path") {
  const job_folder w;
  const auto first = w.model("first", 1), second = w.model("second", 2);
  const auto job = w.fine_tuning(first);
  const auto saved = "checkpoint.dir=" + w.at("saved");
  require_done(node("run", job, {saved}));
  const settings more{saved, "train.steps=3"};
  const auto with = [&](const std::string& model) {
    auto changed = more;
    changed.push_back("model.pretrained=" + model);
    return changed;
  };
  require_refused(job, with(second),
                  {"--set model.pretrained=" + second + ": expected xxh64 ",
                   ", as in the checkpoint " + w.at("saved") + "/step-00000002, got xxh64 "});
  require_refused(w.from_nothing, more,
                  {"model.pretrained: expected xxh64 ", "step-00000002, got none"});
  const auto moved = w.at("moved");
  fs::copy(first, moved);
  require_done(node("run", job, with(moved)));

  const auto begun = "checkpoint.dir=" + w.at("from_nothing");
  require_done(node("run", w.from_nothing, {begun}));
  require_refused(job, {begun, "train.steps=3"},
                  {"model.pretrained: expected none, as in the checkpoint", "got xxh64 "});

  // Untrained weights come from the base, which must be the same model.
  const auto other =
      run_program({RRFP_NODE, "export", w.at("saved"), "--out", w.at("out"), "--base", second});
  CHECK(other.code == 2);
  CHECK_THAT(other.err, Contains("--base " + second +
                                 ": expected the weights of "
                                 "model.pretrained, xxh64 "));
  require_done(
      run_program({RRFP_NODE, "export", w.at("saved"), "--out", w.at("out"), "--base", moved}));
}
