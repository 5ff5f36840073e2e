/// Errors that a user can make in a job, and the message for each.
#include <catch2/catch.hpp>

#include <rrfp/policies/registry.hpp>

#include "job_texts.hpp"

namespace rrfp::testing {
namespace {

struct bad_job {
  std::string text;
  std::string refusal;
};

void check(const std::vector<bad_job>& table) {
  for (const auto& bad : table) {
    CAPTURE(bad.text);
    CHECK(refusal(bad.text) == bad.refusal);
  }
}

TEST_CASE("A value out of range is refused with the limit that it exceeds") {
  check({
      {"[pipeline]\nstages = 0", "x.toml:2: pipeline.stages: expected an integer >= 1, got 0"},
      {"[pipeline]\nstages = -3", "x.toml:2: pipeline.stages: expected an integer >= 1, got -3"},
      {"[pipeline]\n\nchunks = 65", "x.toml:3: pipeline.chunks: expected an integer <= 64, got 65"},
      {"pipeline.microbatches = 0",
       "x.toml:1: pipeline.microbatches: expected an integer >= 1, got 0"},
      {"pipeline = { microbatches = 4294967297 }",
       "x.toml:1: pipeline.microbatches: expected an integer <= 65536, got 4294967297"},
      {"[train]\nseed = -1", "x.toml:2: train.seed: expected an integer >= 0, got -1"},
      {"[train]\nsteps = 0", "x.toml:2: train.steps: expected an integer >= 1, got 0"},
      {"[train]\nlr = -1e-3", "x.toml:2: train.lr: expected a number >= 0, got -0.001"},
      {"[train]\nlr = nan", "x.toml:2: train.lr: expected a number in [0, 1000], got nan"},
      {"[train]\nlr = inf", "x.toml:2: train.lr: expected a number <= 1000, got inf"},
      {"[train]\nepsilon = 0", "x.toml:2: train.epsilon: expected a number > 0, got 0"},
      {"[train]\nbeta1 = 1.0", "x.toml:2: train.beta1: expected a number < 1, got 1.0"},
      {"[model]\ndropout = 1", "x.toml:2: model.dropout: expected a number < 1, got 1"},
      {"[model]\nheads = 0", "x.toml:2: model.heads: expected an integer >= 1, got 0"},
      {"[jitter]\nprobability = 1.5",
       "x.toml:2: jitter.probability: expected a number <= 1, got 1.5"},
      {"[jitter]\nfloor_ms = -5", "x.toml:2: jitter.floor_ms: expected a number >= 0, got -5"},
      {"[jitter]\nlink_alpha = 1", "x.toml:2: jitter.link_alpha: expected a number > 1, got 1"},
      {"[cost]\nforward_ms = -1.0", "x.toml:2: cost.forward_ms: expected a number >= 0, got -1.0"},
      {"[cost]\nforward_ms = [1, nan]",
       "x.toml:2: cost.forward_ms: entry 1: expected a number in [0, 1000000], got nan"},
      {"[cost]\nforward_ms = []",
       "x.toml:2: cost.forward_ms: expected a number or an array of at least one, got []"},
      {"[run]\nhang_timeout_s = -1",
       "x.toml:2: run.hang_timeout_s: expected a number >= 0, got -1"},
      {"[dispatch]\nslot_bytes = -1",
       "x.toml:2: dispatch.slot_bytes: expected an integer >= 0, got -1"},
      {"[dispatch]\nslot_bytes = \"64MB\"",
       "x.toml:2: dispatch.slot_bytes: expected a number of bytes like \"64MiB\" (B, KiB, MiB or "
       "GiB), got \"64MB\""},
      {"[dispatch]\nslot_bytes = \"9000000000GiB\"",
       "x.toml:2: dispatch.slot_bytes: expected at most 1125899906842624 bytes, got "
       "\"9000000000GiB\""},
      {"[dispatch]\nslots = 0", "x.toml:2: dispatch.slots: expected an integer >= 1, got 0"},
      {"name = \"\"",
       "x.toml:1: name: expected a string that is not empty and has no control characters, got a "
       "string \"\""},
  });
}

TEST_CASE("A value of another type is refused with both types") {
  check({
      {"[pipeline]\nstages = \"four\"",
       "x.toml:2: pipeline.stages: expected an integer >= 1, got a string \"four\""},
      {"[pipeline]\nstages = 2.0",
       "x.toml:2: pipeline.stages: expected an integer >= 1, got a float 2.0"},
      {"[pipeline]\nstages = [2]",
       "x.toml:2: pipeline.stages: expected an integer >= 1, got an array [2]"},
      {"[pipeline]\nstages.x = 2",
       "x.toml:2: pipeline.stages: expected an integer >= 1, got a table"},
      {"[train]\nlr = \"small\"",
       "x.toml:2: train.lr: expected a number in [0, 1000], got a string \"small\""},
      {"[train]\nlr = 2020-01-01",
       "x.toml:2: train.lr: expected a number in [0, 1000], got a date"},
      {"[model]\ntied_head = 1",
       "x.toml:2: model.tied_head: expected true or false, got an integer 1"},
      {"name = 3", "x.toml:1: name: expected a string, got an integer 3"},
      {"[dispatch]\npolicy = true",
       "x.toml:2: dispatch.policy: expected a string, got a boolean true"},
      {"[dispatch]\nslots = \"many\"",
       "x.toml:2: dispatch.slots: expected \"auto\", \"none\", \"1f1b\", \"p\" or an integer >= 1, "
       "got a "
       "string "
       "\"many\""},
      {"[dispatch]\nslot_bytes = 1.5",
       "x.toml:2: dispatch.slot_bytes: expected bytes as an integer or a string like \"64MiB\", "
       "got a float 1.5"},
      {"[data]\ntext = 3",
       "x.toml:2: data.text: expected a string or an array of strings, got an integer 3"},
      {"[data]\ntext = [\"a\", 3]",
       "x.toml:2: data.text: entry 1: expected a string, got an integer 3"},
      {"pipeline = 3", "x.toml:1: pipeline: expected a table, got an integer 3"},
      {"train = 2020-01-01", "x.toml:1: train: expected a table, got a date"},
      {"trainer = 12:00:00", "x.toml:1: trainer: unknown key, did you mean train?"},
      {"[[pipeline]]\nstages = 1", "x.toml:1: pipeline: expected a table, got an array [a table]"},
      {"compare = 3", "x.toml:1: compare: expected [[compare]] tables, got an integer 3"},
      {"[compare]\nname = \"a\"", "x.toml:1: compare: expected [[compare]] tables, got a table"},
  });
}

TEST_CASE("An unknown word is refused with the allowed words") {
  check({
      {"[dispatch]\nmode = \"eager\"",
       "x.toml:2: dispatch.mode: expected \"in-order\" or \"ready\", got \"eager\""},
      {"[pipeline]\nplacement = \"u\"",
       "x.toml:2: pipeline.placement: expected \"auto\", \"linear\", \"interleaved\" or \"v\", got "
       "\"u\""},
      {"[jitter]\ncompute = 1",
       "x.toml:2: jitter.compute: expected \"none\", \"lognormal\", \"paper\" or "
       "\"lognormal+paper\", got an integer 1"},
      {"[jitter]\nlevel = \"J4\"",
       "x.toml:2: jitter.level: expected \"J0\", \"J1\", \"J2\", \"J3\", \"measured\" or "
       "\"measured-lognormal\", got \"J4\""},
      {"[train]\noptimizer = \"adam\"",
       "x.toml:2: train.optimizer: expected \"adamw\" or \"sgd\", got \"adam\""},
  });
}

TEST_CASE("A long value is truncated between two characters") {
  std::string umlauts;
  for (int i = 0; i < 100; ++i) umlauts += "ü";
  CHECK(refusal("[dispatch]\nmode = \"" + umlauts + "\"") ==
        "x.toml:2: dispatch.mode: expected \"in-order\" or \"ready\", got \"" +
            umlauts.substr(0, 78) + "...");
}

TEST_CASE("An unknown name is refused with the closest known name") {
  check({
      {"[pipeline]\nstagse = 4", "x.toml:2: pipeline.stagse: unknown key, did you mean stages?"},
      {"[pipeline]\nlr = 4", "x.toml:2: pipeline.lr: unknown key, did you mean train.lr?"},
      {"[pipeline]\nwarp_size = 4",
       "x.toml:2: pipeline.warp_size: unknown key; the section has stages, chunks, placement, "
       "cuts, "
       "microbatches, tp, replicas, shares, recompute, nodes"},
      {"\n[pipelin]\nstages = 4", "x.toml:2: pipelin: unknown section, did you mean pipeline?"},
      {"[quota]",
       "x.toml:1: quota: unknown section; a job has pipeline, dispatch, model, vision, data, "
       "eval, train, "
       "jitter, cost, device, transport, checkpoint, recovery, "
       "run"},
      {"stages = 4", "x.toml:1: stages: unknown key, did you mean pipeline.stages?"},
      {"pipelines = 4", "x.toml:1: pipelines: unknown key, did you mean pipeline?"},
      {"\"pipeline.stages\" = 4",
       "x.toml:1: \"pipeline.stages\": unknown key; write section and key without quotes"},
      {"pipeline.\"a\\nb\" = 4",
       "x.toml:1: pipeline.\"a\\u000Ab\": unknown key; the section has stages, chunks, placement, "
       "cuts, "
       "microbatches, tp, replicas, shares, recompute, nodes"},
  });
}

TEST_CASE("The first error of the file is the one reported") {
  check({{"[train]\nlr = -1\n[pipeline]\nstages = 0\n",
          "x.toml:2: train.lr: expected a number >= 0, got -1"},
         {"[pipeline]\nstages = 0\n[data]\ntext = 1\n",
          "x.toml:2: pipeline.stages: expected an integer >= 1, got 0"}});
}

TEST_CASE("Text that is not TOML is refused with line and column") {
  for (const auto& [text, place] : std::vector<std::pair<std::string, std::string>>{
           {"[pipeline]\nstages = ", "x.toml:2:10: "},
           {"[pipeline\nstages = 1", "x.toml:1:10: "},
           {"[pipeline]\nstages = 99999999999999999999", "x.toml:2:30: "},
           {"[pipeline]\nstages = 1\nstages = 2", "x.toml:3:"},
           {"[train]\nlr = 1\n[train]\nlr = 2", "x.toml:3:"}}) {
    CAPTURE(text);
    const auto line = refusal(text);
    CHECK(line.substr(0, place.size()) == place);
    CHECK(line.find('\n') == std::string::npos);
    CHECK(line.size() > place.size());
  }
}

TEST_CASE("The number of tensor-parallel ranks must divide the sizes that it splits") {
  const auto train = [](const std::string& text) {
    return refusal(text, {"data.text=."}, job::job_use::train);
  };
  CHECK(train("[pipeline]\ntp = 3") ==
        "x.toml:2: model.heads: expected a multiple of pipeline.tp = 3, got 4 (the default)");
  CHECK(train("[pipeline]\ntp = 2\n[model]\nvocabulary = 257") ==
        "x.toml:4: model.vocabulary: expected a multiple of pipeline.tp = 2, got 257");
}

TEST_CASE("pipeline.nodes has one entry per stage or one per rank") {
  CHECK(refusal("[pipeline]\nstages = 2\nnodes = [0, 1, 1]") ==
        "x.toml:3: pipeline.nodes: expected 2 entries (one per stage and replica), got 3");
  CHECK(refusal("[pipeline]\nstages = 2\ntp = 2\nnodes = [0, 1, 1]") ==
        "x.toml:4: pipeline.nodes: expected 2 entries (one per stage and replica) or 4 (one per "
        "rank), got 3");
  CHECK(refusal("[pipeline]\nnodes = [-1]").starts_with("x.toml:2: pipeline.nodes: entry 0:"));
}

TEST_CASE("Unsupported devices and collectives are refused, not ignored") {
  check({
      {"[device]\nkind = \"cuda\"\ngpus = [-1]",
       "x.toml:3: device.gpus: entry 0: expected an integer >= 0, got -1"},
      {"[device]\nkind = \"cuda\"\ncollectives = \"gloo\"",
       "x.toml:3: device.collectives: expected \"auto\", \"nccl\" or \"host\", got \"gloo\""},
      {"[device]\nkind = \"cuda\"\ndeterministic = 1",
       "x.toml:3: device.deterministic: expected true or false, got an integer 1"},
      {"[device]\nkind = \"emulated\"\ntime_scale = 0",
       "x.toml:3: device.time_scale: expected a number >= 0.001, got 0"},
      {"[device]\nkind = \"tpu\"",
       "x.toml:2: device.kind: expected \"cpu\", \"cuda\" or \"emulated\", got \"tpu\""},
  });
}

TEST_CASE("Values that do not fit each other are refused with both keys") {
  check({
      {"[pipeline]\nchunks = 2\nplacement = \"linear\"",
       "x.toml:3: pipeline.placement: \"linear\" expects pipeline.chunks = 1, got 2"},
      {"[pipeline]\nplacement = \"v\"",
       "x.toml:2: pipeline.placement: \"v\" expects pipeline.chunks = 2, got 1 (the default)"},
      {"[pipeline]\nstages = 1024\nmicrobatches = 4097",
       "x.toml:3: pipeline.microbatches: expected stages * chunks * microbatches <= 4194304, got "
       "4195328"},
      {"[train]\nlr_min = 0.5",
       "x.toml:2: train.lr_min: expected at most train.lr = 0.0003 (the default), got 0.5"},
      {"[jitter]\nlink = \"pareto\"",
       "x.toml:2: jitter.link_mean_ms: expected a number > 0 with jitter.link, got 0 (the "
       "default)"},
      {"[pipeline]\nstages = 4\n[cost]\nweight_ms = [1, 2, 3]",
       "x.toml:4: cost.weight_ms: expected one value or 4 (one per stage), got 3"},
      {"[pipeline]\nstages = 3\n[cost]\nweight_ms = [1, 2]",
       "x.toml:4: cost.weight_ms: expected one value or 3 (one per stage) or 4 (one per layer), "
       "got "
       "2"},
      {"[pipeline]\nstages = 2\nchunks = 2\n[cost]\nbackward_ms = [1, 2, 3]",
       "x.toml:5: cost.backward_ms: expected one value or 2 (one per stage) or 4 (one per "
       "virtual stage), got 3"},
  });
}

TEST_CASE("Going on without a lost node needs replicas, and is not for programs") {
  const std::string reroute = "[recovery]\nwithout_replacement = \"reroute\"\n";
  check({
      {"[recovery]\nwithout_replacement = \"none\"",
       "x.toml:2: recovery.without_replacement: expected \"wait\" or \"reroute\", got \"none\""},
      {reroute,
       "x.toml:2: recovery.without_replacement: \"reroute\" expects pipeline.replicas of at least "
       "2, got 1"},
      {reroute + "[pipeline]\nreplicas = 2",
       "x.toml:2: recovery.without_replacement: \"reroute\" expects recovery.max_restarts of at "
       "least 1, got 0"},
      {reroute + "max_restarts = 1\n[pipeline]\nreplicas = 2", "accepted"},
  });
  check({
      {"[recovery]\nspares = 1",
       "x.toml:2: recovery.spares: spare nodes expect recovery.max_restarts of at least 1, got 0"},
      {"[recovery]\nspares = 1\nmax_restarts = 1", "accepted"},
  });
}

TEST_CASE("Measured shares need replicas") {
  const std::string shares = "[pipeline]\nshares = \"measured\"\n";
  check({
      {shares,
       "x.toml:2: pipeline.shares: \"measured\" expects pipeline.replicas of at least 2, got 1"},
      {shares + "replicas = 2", "accepted"},
  });
}

TEST_CASE("A model that does not fit the pipeline is refused only for training") {
  const auto train = [](const std::string& text) {
    return refusal("data.text = \".\"\n" + text, {}, job::job_use::train);
  };
  const std::vector<bad_job> table = {
      {"[pipeline]\nstages = 8",
       "x.toml:3: model.layers: expected at least pipeline.stages * pipeline.chunks = 8, got 4 "
       "(the default)"},
      {"[pipeline]\nstages = 2\nchunks = 3\n[model]\nlayers = 5",
       "x.toml:6: model.layers: expected at least pipeline.stages * pipeline.chunks = 6, got 5"},
      {"[model]\nhidden = 130",
       "x.toml:3: model.hidden: expected a multiple of model.heads = 4 (the default), got 130"},
      {"[model]\nheads = 3",
       "x.toml:3: model.hidden: expected a multiple of model.heads = 3, got 128 (the default)"},
      {"[model]\ncontext = 64",
       "x.toml:3: data.sequence_length: expected at most model.context = 64, got 128 (the "
       "default)"},
      {"data.sequence_length = 129",
       "x.toml:2: data.sequence_length: expected at most model.context = 128 (the default), got "
       "129"},
  };
  for (const auto& bad : table) {
    CAPTURE(bad.text);
    CHECK(train(bad.text) == bad.refusal);
    CHECK(refusal(bad.text) == "accepted");
  }
}

TEST_CASE("A cut that does not fit the layers and parts is refused") {
  const auto with = [](const std::string& cuts, const texts& settings = {}) {
    return refusal("[pipeline]\nstages = 2\ncuts = " + cuts + "\n[model]\nlayers = 6\n", settings);
  };
  CHECK(with("[2, 4]") == "accepted");
  CHECK(with("\"layers\"") == "accepted");
  CHECK(with("[2, 3]") == "x.toml:3: pipeline.cuts: expected all 6 layers, got 5");
  CHECK(with("[2, 3, 1]") ==
        "x.toml:3: pipeline.cuts: expected 2 numbers (stages * chunks), got 3");
  CHECK(with("[6, 0]") == "x.toml:3: pipeline.cuts: entry 1: expected an integer >= 1, got 0");
  for (const auto* bad : {"[]", "3", "\"evenly\"", "true", "1.5"})
    CHECK_THAT(with(bad),
               Catch::Contains("x.toml:3: pipeline.cuts: expected \"auto\", "
                               "\"layers\", \"cost\" or an array of integers >= 1, got "));
  CHECK(with("\"cost\"") ==
        "x.toml:3: pipeline.cuts: \"cost\" expects cost.forward_ms with 6 values (one per layer), "
        "such as the profile of a run with as many stages as layers, got 1");
  const texts some{"cost.forward_ms=[1, 2, 3, 4, 5, 6]"};
  CHECK(with("\"cost\"", some) == "x.toml: cost.backward_ms: expected 6 (one per layer), got 1");
  CHECK(with("\"cost\"", {"pipeline.stages=9"}) ==
        "x.toml:3: pipeline.cuts: \"cost\" expects at most as many parts as layers, 6, got 9");
  CHECK(refusal("[cost]\nspeed = [1, 2, 3]\n", {"pipeline.stages=2"}) ==
        "x.toml:2: cost.speed: expected one value or 2 (one per stage), got 3");
  // A program divides its own model.
  const auto embedded = [](const std::string& text) {
    return refusal(text, {}, job::job_use::embed);
  };
  CHECK(embedded("[pipeline]\ncuts = \"layers\"\n") ==
        "x.toml:2: pipeline.cuts: expected \"auto\" for the modules of a program");
  CHECK(embedded("[cost]\nforward_ms = [1, 2, 3, 4]\nbackward_ms = [1, 2, 3, 4]\n"
                 "weight_ms = [1, 2, 3, 4]\n[pipeline]\nstages = 2\n") ==
        "x.toml:2: cost.forward_ms: expected one value, or one per stage or virtual stage, for the "
        "modules of a program, got 4");
  CHECK(refusal("[cost]\nspeed = 0\n") == "x.toml:2: cost.speed: expected a number > 0, got 0");
}

TEST_CASE("A policy that is unknown or does not support the shape is refused") {
  std::string known;
  for (const auto& p : policies::registry().known()) known += std::string{p.name} + ", ";
  CHECK(refusal("[dispatch]\npolicy = \"fastest\"") ==
        "x.toml:2: dispatch.policy: expected one of " + known +
            "table:FILE.csv, lib:FILE.so, got \"fastest\"");
  const pipeline_shape two_chunks{2, 2, 8, placement::interleaved};
  const auto unfit = policies::registry().make("one_f_one_b", two_chunks);
  REQUIRE_FALSE(unfit);
  CHECK(refusal("[pipeline]\nstages = 2\nchunks = 2\n[dispatch]\npolicy = \"one_f_one_b\"") ==
        "x.toml:5: dispatch.policy: " + unfit.message());
}

TEST_CASE("An in-order sequence that exceeds the memory limit is refused") {
  const std::string job =
      "[pipeline]\nstages = 4\n[dispatch]\nmode = \"in-order\"\npolicy = \"one_f_one_b\"\n";
  CHECK(refusal(job) == "accepted");
  CHECK(refusal(job + "slots = 4") == "accepted");
  CHECK(refusal(job + "slots = 3") ==
        "x.toml:6: dispatch.slots: F3 of stage 0 exceeds the memory limit: the sequence needs more "
        "than 3 slots");
  CHECK(refusal(job + "slots = 3", {"dispatch.mode=ready"}) == "accepted");
  CHECK(refusal(job, {"dispatch.policy=bf"}) == "accepted");
}

TEST_CASE("Slots by chunk are refused with bytes") {
  CHECK(refusal("[dispatch]\nslot_unit = \"chunk\"\nslot_bytes = 100") ==
        "x.toml:3: dispatch.slot_bytes: expected 0 with dispatch.slot_unit = \"chunk\", got 100");
}

TEST_CASE("Early forwards are refused in order and with slots by chunk") {
  const std::string job = "[pipeline]\nstages = 4\n[dispatch]\nearly_forwards = 5\n";
  CHECK(refusal(job) == "accepted");
  CHECK(refusal(job + "mode = \"in-order\"") ==
        "x.toml:4: dispatch.early_forwards: expected 0 in mode in-order, got 5");
  CHECK(refusal(job + "slot_unit = \"chunk\"") ==
        "x.toml:4: dispatch.early_forwards: expected 0 with dispatch.slot_unit = \"chunk\", got 5");
}

TEST_CASE("An override is refused with its own text") {
  const auto with = [](const std::string& o) { return refusal("[pipeline]\nstages = 2", {o}); };
  CHECK(with("pipeline.stages=0") == "--set pipeline.stages=0: expected an integer >= 1, got 0");
  CHECK(with("pipeline.stages=four") ==
        "--set pipeline.stages=four: expected an integer >= 1, got a string \"four\"");
  CHECK(with("pipeline.stages=") ==
        "--set pipeline.stages=: expected an integer >= 1, got a string \"\"");
  CHECK(with("pipeline.stages=1\ntrain.lr=2") ==
        "--set \"pipeline.stages=1\\u000Atrain.lr=2\": expected an integer >= 1, got a string "
        "\"1\\u000Atrain.lr=2\"");
  CHECK(with("pipeline.stages") == "--set pipeline.stages: expected section.key=value");
  CHECK(with("=3") == "--set =3: expected section.key=value");
  CHECK(with("pipeline.stagse=3") == "--set pipeline.stagse=3: unknown key, did you mean stages?");
  CHECK(with("pipelin.stages=3") ==
        "--set pipelin.stages=3: unknown section, did you mean pipeline?");
  CHECK(with("pipeline={stages=3}") ==
        "--set pipeline={stages=3}: expected section.key, got a section");
  CHECK(with("stages=3") == "--set stages=3: unknown key, did you mean pipeline.stages?");
  CHECK(with("device.kind=cuda") == "accepted");
  CHECK(with("pipeline.placement=v") ==
        "--set pipeline.placement=v: \"v\" expects pipeline.chunks = 2, got 1 (the default)");
  CHECK(refusal("[model]\nhidden = 130", {"data.text=.", "model.heads=4"}, job::job_use::train) ==
        "x.toml:2: model.hidden: expected a multiple of model.heads = 4, got 130");
}

/// A folder in the Hugging Face format: a decoder, with or without a vision encoder.
std::string pretrained_folder(const scratch_folder& folder, bool has_vision) {
  const std::string decoder =
      R"({"model_type": "llama", "vocab_size": 320, "max_position_embeddings": 128,
          "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
          "num_attention_heads": 4})";
  folder.write("config.json",
               !has_vision
                   ? decoder
                   : R"({"model_type": "llava", "image_token_index": 300, "text_config": )" +
                         decoder +
                         R"(, "vision_config": {"model_type": "vit", "num_hidden_layers": 2,
                              "hidden_size": 16, "num_attention_heads": 2,
                              "intermediate_size": 32, "patch_size": 8, "image_size": 32}})");
  return folder.at("");
}

TEST_CASE("A pretrained model is trained on tokens, or on bytes if the job sets that") {
  const scratch_folder folder;
  const auto file = folder.write("lines.jsonl", "{\"text\": \"a\"}\n");
  const auto refused = [&](const std::string& data, bool has_vision = false) {
    return refusal(
        "[model]\npretrained = \"" + pretrained_folder(folder, has_vision) + "\"\n[data]\n" + data,
        {}, job::job_use::train);
  };
  const auto named = [&](const std::string& key) {
    return "x.toml:4: data." + key +
           ": expected data.tokens, made by scripts/tokenize with the tokenizer of "
           "model.pretrained, got data." +
           key +
           ", whose bytes would be the tokens; set data.tokenizer = \"bytes\" to train on bytes";
  };
  const auto path = " = \"" + file + "\"\n";
  CHECK(refused("text" + path) == named("text"));
  CHECK(refused("jsonl" + path) == named("jsonl"));
  CHECK(refused("images" + path, true) == named("images"));
  CHECK(refused("shapes = 4\n", true) == named("shapes"));
  CHECK(refused("tokens" + path) == "accepted");

  const std::string bytes = "tokenizer = \"bytes\"\n";
  CHECK(refused("text" + path + bytes) == "accepted");
  CHECK(refused("jsonl" + path + bytes) == "accepted");
  CHECK(refused("images" + path + bytes, true) == "accepted");
  CHECK(refused("shapes = 4\n" + bytes, true) == "accepted");
  CHECK(refused("tokens" + path + bytes) ==
        "x.toml:5: data.tokenizer: expected \"auto\" with data.tokens, which already holds tokens, "
        "got \"bytes\"");
  CHECK(refused("text" + path + "tokenizer = \"words\"\n") ==
        "x.toml:5: data.tokenizer: expected \"auto\" or \"bytes\", got \"words\"");

  // A model that starts from random weights may use any tokens.
  CHECK(refusal("[data]\ntext" + path, {}, job::job_use::train) == "accepted");
  CHECK(refusal("[data]\ntext" + path + bytes, {}, job::job_use::train) == "accepted");
}

TEST_CASE("Image settings that differ from those of a pretrained model are refused with the file") {
  const scratch_folder folder;
  const auto job = "[model]\npretrained = \"" + pretrained_folder(folder, true) +
                   "\"\n[data]\ntokenizer = \"bytes\"\nshapes = 4\n";
  const auto refused = [&](const std::string& more) {
    return refusal(job + more, {}, job::job_use::train);
  };
  CHECK(refused("") == "accepted");
  const auto config = folder.write("preprocessor_config.json",
                                   R"({"do_resize": true, "size": {"height": 32, "width": 32}})");
  CHECK_THAT(
      refused(""),
      Catch::StartsWith("x.toml:2: model.pretrained: " + config +
                        ": do_resize: expected false, got true; rrfp keeps the aspect ratio"));
  CHECK(refused("blind = true\n") == "accepted");  // no images are used
  folder.write("preprocessor_config.json",
               R"({"do_resize": false, "image_mean": 0.25, "image_std": 0.5})");
  CHECK(refused("") == "x.toml:2: model.pretrained: " + config +
                           ": image_mean: expected data.image_mean = [0.5], got 0.25");
  CHECK(refused("image_mean = 0.25\n") == "accepted");
}

}  // namespace
}  // namespace rrfp::testing
