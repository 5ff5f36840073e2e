/// The values of valid jobs.
#include <catch2/catch.hpp>

#include <rrfp/job/schema.hpp>

#include "job_texts.hpp"

namespace rrfp::testing {
namespace {

TEST_CASE("An empty job has the defaults and is named after its file") {
  const auto j = good("");
  CHECK(j.name == "x");
  CHECK(j.source == "x.toml");
  job::job plain;
  plain.name = j.name;
  CHECK(j == plain);
}

TEST_CASE("Every section is read") {
  const auto j = good(R"(
name = "all of it"
pipeline = { stages = 2, chunks = 2, placement = "v", microbatches = 6 }
[dispatch]
mode = "in-order"
policy = "zb_v"
lookahead = 1
slots = 12
slot_bytes = "64 MiB"
admission = "small_large_small"
[model]
hidden = 64
tied_head = true
[train]
optimizer = "sgd"
lr = 1
[jitter]
seed = 7
compute = "lognormal"
compute_sigma = 0.25
link = "pareto"
link_mean_ms = 2
[cost]
forward_ms = [1.0, 2]
link_ms = 0.5
[device]
kind = "emulated"
time_scale = 0.5
message_bytes = "1 KiB"
[run]
hang_timeout_s = 0
progress = "lines"
spin_us = 200
)");
  CHECK(j.name == "all of it");
  CHECK(job::effective_shape(j) == pipeline_shape{2, 2, 6, placement::v});
  CHECK(j.dispatch.mode == dispatch_mode::in_order);
  CHECK(j.dispatch.policy == "zb_v");
  CHECK(j.dispatch.lookahead == 1);
  CHECK(j.dispatch.admit == admission::small_large_small);
  CHECK(job::effective_limit(j, stage_id{1}) == memory_limit{12, std::uint64_t{64} << 20, 0});
  CHECK(j.model.hidden == 64);
  CHECK(j.model.tied_head);
  CHECK(j.train.optimizer == job::optimizer_kind::sgd);
  CHECK(j.device.kind == job::device_kind::emulated);
  CHECK(j.device.time_scale == 0.5);
  CHECK(j.device.message_bytes == 1024);
  CHECK(j.run.spin_us == 200);
  CHECK(j.train.lr == 1.0);
  CHECK(j.jitter.seed == 7);
  CHECK(j.jitter.compute == simulate::compute_jitter::lognormal);
  CHECK(j.jitter.compute_sigma == 0.25);
  CHECK(j.jitter.link == simulate::link_jitter::pareto);
  CHECK(j.jitter.link_mean_ms == 2.0);
  CHECK(j.cost.forward_ms == std::vector{1.0, 2.0});
  CHECK(j.cost.link_ms == 0.5);
  CHECK(j.run.hang_timeout_s == 0.0);
  CHECK(j.run.progress == job::progress_kind::lines);
}

TEST_CASE("The default placement depends on the number of chunks") {
  CHECK(job::effective_shape(good("")).layout == placement::linear);
  CHECK(job::effective_shape(good("pipeline.chunks = 2")).layout == placement::interleaved);
  CHECK(job::effective_shape(good("pipeline = { chunks = 2, placement = \"v\" }")).layout ==
        placement::v);
  CHECK(job::effective_shape(good("pipeline.placement = \"interleaved\"")).layout ==
        placement::interleaved);
}

TEST_CASE("The default of slots depends on the mode") {
  const auto slots = [](const texts& overrides) {
    const auto j = good("pipeline = { stages = 3, microbatches = 20 }", overrides);
    return job::effective_limit(j, stage_id{2}).slots;
  };
  CHECK(slots({}) == 6);
  CHECK(slots({"pipeline.microbatches=5"}) == 6);  // a step may have more
  CHECK(slots({"dispatch.mode=in-order"}) == 0);
  CHECK(slots({"dispatch.slots=9"}) == 9);
  CHECK(slots({"dispatch.slots=none"}) == 0);
  CHECK(slots({"dispatch.slots=9", "dispatch.slots=auto"}) == 6);
}

TEST_CASE("Slots by chunk are a limit of activations") {
  const auto limit = job::effective_limit(
      good(
          "pipeline = { stages = 3, chunks = 2 }\ndispatch = { slots = 5, slot_unit = \"chunk\" }"),
      stage_id{0});
  CHECK(limit.slots == 0);
  CHECK(limit.activations == 10);
}

TEST_CASE("A number of bytes may have a unit") {
  const auto bytes = [](const std::string& text) {
    return good("dispatch.slot_bytes = " + text).dispatch.slot_bytes;
  };
  CHECK(bytes("0") == 0);
  CHECK(bytes("123") == 123);
  CHECK(bytes("\"5B\"") == 5);
  CHECK(bytes("\"5KiB\"") == 5120);
  CHECK(bytes("\"5 MiB\"") == 5 << 20);
  CHECK(bytes("\"1048576GiB\"") == std::uint64_t{1} << 50);
}

TEST_CASE("A level sets the paper's values, and other keys override it in any order") {
  const auto j2 = good("[jitter]\nlevel = \"J2\"").jitter;
  CHECK(j2.compute == simulate::compute_jitter::paper);
  CHECK(j2.probability == 0.2);
  CHECK(j2.floor_ms == 10);
  CHECK(j2.alpha == 1.0);
  const auto j0 = good("[jitter]\nseed = 9\nlevel = \"J0\"").jitter;
  CHECK(j0.compute == simulate::compute_jitter::none);
  CHECK(j0.seed == 9);
  CHECK(good("[jitter]\nalpha = 3\nlevel = \"J2\"").jitter.alpha == 3.0);
  CHECK(good("[jitter]\nlevel = \"J2\"\nalpha = 3").jitter.alpha == 3.0);
  const auto both = good("[jitter]\nlevel = \"J2\"\ncompute = \"lognormal+paper\"").jitter;
  CHECK(both.compute == simulate::compute_jitter::lognormal_and_paper);
  CHECK(both.alpha == 1.0);
  CHECK(good("[jitter]\nalpha = 3", {"jitter.level=J2"}).jitter.alpha == 1.0);
}

TEST_CASE("Overrides take precedence over the file, later ones over earlier ones") {
  const auto j =
      good("[pipeline]\nstages = 2\n[jitter]\nlevel = \"J1\"",
           {"pipeline.stages=3", "pipeline.stages=4", "dispatch.policy=bf", "dispatch.slots=none",
            "dispatch.slot_bytes=2KiB", "name=42", "cost.forward_ms=[1, 2, 3, 4]", "jitter.seed=5",
            "train.optimizer=\"sgd\"", "model.tied_head=true"});
  CHECK(j.pipeline.stages == 4);
  CHECK(j.dispatch.policy == "bf");
  CHECK(j.dispatch.slots == 0U);
  CHECK(j.dispatch.slot_bytes == 2048);
  CHECK(j.name == "42");
  CHECK(j.cost.forward_ms.size() == 4);
  CHECK(j.jitter.seed == 5);
  CHECK(j.jitter.probability == 0.1);
  CHECK(j.train.optimizer == job::optimizer_kind::sgd);
  CHECK(j.model.tied_head);
}

/// The forwards of the parts of a V of 2 stages.
std::vector<double> forwards(const std::string& costs, const texts& settings = {}) {
  const auto j = good("[pipeline]\nstages = 2\nplacement = \"v\"\nchunks = 2\n" + costs, settings);
  std::vector<double> all;
  for (const auto& t : job::times_of_parts(j)) all.push_back(t.forward_ms);
  return all;
}

TEST_CASE("A list of costs holds one value for all, or one per stage or virtual stage") {
  CHECK(forwards("[cost]\nforward_ms = 7") == std::vector<double>{7, 7, 7, 7});
  CHECK(forwards("[cost]\nforward_ms = [1, 2]") == std::vector<double>{1, 2, 2, 1});
  CHECK(forwards("[cost]\nforward_ms = [1, 2, 3, 4]") == std::vector<double>{1, 2, 3, 4});
  CHECK(forwards("[cost]\nforward_ms = [1, 2]\nspeed = [0.5, 4]") ==
        std::vector<double>{2, 0.5, 0.5, 2});
  CHECK(forwards("[cost]\nforward_ms = 6\nspeed = 2") == std::vector<double>{3, 3, 3, 3});
}

TEST_CASE("Costs of layers add up to those of the parts that hold them") {
  const std::string costs =
      "[model]\nlayers = 6\n[cost]\nforward_ms = [1, 2, 4, 8, 16, 32]\n"
      "backward_ms = [1, 1, 1, 1, 1, 1]\nweight_ms = [1, 1, 1, 1, 1, 1]\n";
  CHECK(forwards(costs) == std::vector<double>{3, 12, 16, 32});
  CHECK(forwards(costs, {"pipeline.cuts=[1, 1, 1, 3]"}) == std::vector<double>{1, 2, 4, 56});
  CHECK(forwards(costs, {"pipeline.cuts=cost"}) == std::vector<double>{7, 8, 16, 32});
  CHECK(forwards(costs, {"pipeline.cuts=cost", "cost.speed=[1, 8]"}) ==
        std::vector<double>{1, 14.0 / 8, 16.0 / 8, 32});
  CHECK(forwards(costs + "speed = [2, 1]\n", {"pipeline.cuts=layers"}) ==
        std::vector<double>{1.5, 12, 16, 16});
}

TEST_CASE("Layers are cut evenly, by cost and speed, or as given") {
  const auto cut = [](const std::string& cuts, const texts& settings = {}) {
    auto all = settings;
    all.insert(all.end(), {"pipeline.stages=3", "model.layers=7"});
    return job::layers_of_parts(good("[pipeline]\n" + cuts, all));
  };
  using counts = std::vector<std::uint32_t>;
  CHECK(cut("") == counts{3, 2, 2});
  CHECK(cut("cuts = \"layers\"") == counts{3, 2, 2});
  CHECK(cut("cuts = [1, 5, 1]") == counts{1, 5, 1});
  const texts costs{"cost.forward_ms=[9, 1, 1, 1, 1, 1, 1]",
                    "cost.backward_ms=[0, 0, 0, 0, 0, 0, 0]",
                    "cost.weight_ms=[0, 0, 0, 0, 0, 0, 0]"};
  CHECK(cut("cuts = \"cost\"", costs).front() == 1);
  auto slow = costs;
  slow.push_back("cost.speed=[1, 0.1, 1]");
  CHECK(cut("cuts = \"cost\"", slow) == counts{1, 1, 5});
  // The encoder's layers come first.
  CHECK(cut("", {"vision.layers=2"}) == counts{3, 3, 3});
}

TEST_CASE("Slots may be those of 1F1B, or the number of stages") {
  const auto limits = [](const std::string& slots) {
    const auto j = good("[pipeline]\nstages = 4\n[dispatch]\nslots = \"" + slots + "\"\n");
    std::vector<std::uint32_t> all;
    for (std::uint32_t s = 0; s < 4; ++s) all.push_back(effective_limit(j, stage_id{s}).slots);
    return all;
  };
  CHECK(limits("1f1b") == std::vector<std::uint32_t>{4, 3, 2, 1});
  CHECK(limits("p") == std::vector<std::uint32_t>{4, 4, 4, 4});
}

TEST_CASE("The measured levels set the jitter of tasks and the spread of messages") {
  const auto j = good("[jitter]\nlevel = \"measured\"\nseed = 3\n");
  CHECK(j.jitter.compute == simulate::compute_jitter::lognormal);
  CHECK(j.jitter.compute_sigma == simulate::measured_compute_sigma);
  CHECK(j.jitter.spread == simulate::link_spread::stalls);
  CHECK(j.jitter.seed == 3);
  CHECK(good("[jitter]\nlevel = \"measured-lognormal\"\n").jitter.spread ==
        simulate::link_spread::lognormal);
}

TEST_CASE("A profile sets the times of [cost]; keys of the job override it") {
  const scratch_folder folder;
  folder.write("p.toml", "[cost]\nforward_ms = 2\nlink_ms = 0.5\n");
  const auto path =
      folder.write("x.toml",
                   "[cost]\nlink_ms = 0.25\nprofile = \"p.toml\"\n[[compare]]\nname = \"a\"\n"
                   "[[compare]]\nname = \"b\"\ncost.profile = \"p.toml\"\ncost.forward_ms = 3\n");
  const auto j = job::load_job(path, policies::registry(), {}, job::job_use::simulate);
  if (!j) FAIL(j.message());
  CHECK(j->cost.forward_ms == std::vector{2.0});
  CHECK(j->cost.link_ms == 0.25);
  // A variant holds the times, not the path.
  std::filesystem::remove(folder.at("p.toml"));
  const auto b = job::variants(*j).at(1);
  CHECK(b.cost.forward_ms == std::vector{3.0});
  CHECK(b.cost.link_ms == 0.5);
}

TEST_CASE("Held-out data has one of the kinds of the data, and its other keys") {
  const auto held_out = [](const std::string& key) {
    return job::held_out_data(
        good("[data]\nshapes = 9\nshapes_seed = 4\nmicrobatch_size = 3\n[eval]\n" + key));
  };
  CHECK_FALSE(held_out(""));
  const texts of_kind{"/a"};
  CHECK(held_out("text = \"/a\"")->text == of_kind);
  CHECK(held_out("jsonl = \"/a\"")->jsonl == of_kind);
  CHECK(held_out("tokens = \"/a\"")->tokens == of_kind);
  CHECK(held_out("images = \"/a\"")->images == of_kind);
  const auto d = *held_out("shapes = 5");
  CHECK(d.shapes == 5);
  CHECK(d.shapes_seed == 5);  // not the samples that the job trains on
  CHECK(d.microbatch_size == 3);
  CHECK(d.order == job::sample_order::file);
}

}  // namespace
}  // namespace rrfp::testing
