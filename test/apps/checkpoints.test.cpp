/// A training that was stopped in any way resumes to the same bits as an uninterrupted one.
#include <catch2/catch.hpp>

#include <sys/mount.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <random>

#include <rrfp/safetensors/collection.hpp>

#include "eventually.hpp"
#include "json_lines.hpp"
#include "program.hpp"

namespace {

using namespace rrfp::test;
using Catch::Matchers::Contains;
using nlohmann::json;
namespace fs = std::filesystem;

using settings = std::vector<std::string>;

const std::string job_text = R"([pipeline]
stages = 4
microbatches = 6
[model]
layers = 4
hidden = 32
heads = 4
context = 32
dropout = 0.1
tied_head = true
[data]
text = ["/usr/share/common-licenses/GPL-3"]
microbatch_size = 2
sequence_length = 32
[train]
steps = 12
lr = 1e-3
warmup_steps = 4
[cost]
forward_ms = 1.0
backward_ms = 1.0
weight_ms = 1.0
[run]
progress = "none"
)";

/// Steps that take about 20 ms, so that a test can act between two of them.
const settings slow{"jitter.compute=lognormal", "jitter.compute_sigma=0.5"};

/// The output of a run and the events of its JSON lines.
struct run_log {
  outcome o;
  std::map<std::uint64_t, double> losses;  ///< by step
  std::optional<std::uint64_t> resumed;
  std::uint64_t saved = 0;  ///< the last step that was reported as saved
  json summary;
};

run_log read_log(const std::string& file, outcome o) {
  run_log t;
  t.o = std::move(o);
  std::string text = text_of(file);
  std::istringstream in{text.substr(0, text.rfind('\n') + 1)};
  for (std::string line; std::getline(in, line);) {
    const auto j = json::parse(line);
    const auto event = j.at("event").get<std::string>();
    if (event == "step") t.losses[j.at("step").get<std::uint64_t>()] = j.at("loss").get<double>();
    if (event == "resume") t.resumed = j.at("step").get<std::uint64_t>();
    if (event == "checkpoint" && !j.contains("failure")) t.saved = j.at("step");
    if (event == "summary") t.summary = j;
  }
  return t;
}

class job_folder {
 public:
  job_folder() { std::ofstream{job()} << job_text; }

  std::string job() const { return folder_ / "job.toml"; }
  std::string at(const std::string& name) const { return folder_ / name; }
  std::string dir() const { return folder_ / "checkpoints"; }
  std::string step(std::uint64_t n) const {
    char name[32];
    std::snprintf(name, sizeof name, "/step-%08u", static_cast<unsigned>(n));
    return dir() + name;
  }

  /// `rrfp-node run` with its own log; without checkpoints unless a setting enables them.
  std::vector<std::string> command(const std::vector<settings>& all, const std::string& log,
                                   std::uint32_t nodes = 1) const {
    std::vector<std::string> arguments{RRFP_NODE, "run", job(), "--json", at(log)};
    if (nodes > 1) arguments.insert(arguments.end(), {"--local-nodes", std::to_string(nodes)});
    for (const auto& some : all)
      for (const auto& s : some) arguments.insert(arguments.end(), {"--set", s});
    return arguments;
  }
  settings saving(std::uint64_t every) const {
    return {"checkpoint.dir=" + dir(), "checkpoint.every=" + std::to_string(every)};
  }
  run_log run(const std::vector<settings>& all, std::uint32_t nodes = 1) const {
    auto o = run_program(command(all, "run.jsonl", nodes));
    INFO(o.out << o.err);
    CHECK(o.code == 0);
    return read_log(at("run.jsonl"), std::move(o));
  }

 private:
  scratch_folder folder_;
};

/// Trains until the checkpoint of that step exists, then kills the training.
void train_and_kill(const job_folder& w, const std::vector<settings>& all, std::uint64_t step) {
  program training{w.command(all, "killed.jsonl")};
  REQUIRE(eventually([&] { return fs::exists(w.step(step)); }));
  training.signal(SIGKILL);
  REQUIRE(training.wait().code == 128 + SIGKILL);
}

void require_resumes(const run_log& straight, const run_log& rest, std::uint64_t from) {
  INFO(rest.o.out << rest.o.err);
  REQUIRE(rest.resumed == from);
  CHECK(rest.losses.size() == straight.losses.size() - from);
  for (const auto& [step, loss] : rest.losses) {
    CHECK(step > from);
    CHECK(loss == straight.losses.at(step));
  }
  CHECK(rest.summary.at("weights_xxh64") == straight.summary.at("weights_xxh64"));
  CHECK(rest.summary.at("first_step") == from);
}

void flip_bit(const std::string& file) {
  std::fstream f{file, std::ios::in | std::ios::out | std::ios::binary};
  const auto middle = static_cast<std::streamoff>(fs::file_size(file) / 2);
  f.seekg(middle);
  const auto c = static_cast<char>(f.get() ^ 1);
  f.seekp(middle);
  f.put(c);
}

bool has_save_under_way(const std::string& dir) {
  std::error_code ignored;
  for (fs::directory_iterator at{dir, ignored}; !ignored && at != fs::directory_iterator{};
       at.increment(ignored))
    if (at->path().filename().string().starts_with(".step-")) return true;
  return false;
}

/// Kills a training `kills` times at random moments, mostly during saves. A step that was reported
/// as saved is never lost, and the result is that of an uninterrupted training.
void kill_repeatedly(int kills) {
  std::random_device entropy;
  const auto seed = entropy();
  INFO("seed " << seed);
  std::mt19937 random{seed};
  const settings longer{"train.steps=40"};
  const auto straight = job_folder{}.run({longer});

  auto w = std::make_unique<job_folder>();
  std::uint64_t saved = 0;
  int within_saves = 0;
  for (int killed = 0;;) {
    const auto log = w->at("leg.jsonl");
    fs::remove(log);  // the next training has not begun when its program starts
    program training{w->command({longer, w->saving(1)}, "leg.jsonl")};
    if (killed < kills) {
      eventually([&] { return text_of(log).find("\"step\"") != std::string::npos; },
                 std::chrono::seconds{20});
      std::this_thread::sleep_for(std::chrono::microseconds{random() % 20000});
      if (killed % 4 != 0)
        eventually([&] { return has_save_under_way(w->dir()); }, std::chrono::seconds{1});
      std::this_thread::sleep_for(std::chrono::microseconds{random() % 6000});
      training.signal(SIGKILL);
    }
    const auto t = read_log(w->at("leg.jsonl"), training.wait());
    INFO("after " << killed << " kills: " << t.o.out << t.o.err);
    CHECK_THAT(t.o.err, !Contains("skipped"));
    CHECK(t.resumed.value_or(0) >= saved);
    for (const auto& [step, loss] : t.losses) CHECK(loss == straight.losses.at(step));
    saved = std::max({saved, t.saved, t.resumed.value_or(0)});
    if (t.o.code == 128 + SIGKILL) {
      ++killed;
      within_saves += has_save_under_way(w->dir());
      continue;
    }
    REQUIRE(t.o.code == 0);
    CHECK(t.summary.at("weights_xxh64") == straight.summary.at("weights_xxh64"));
    CHECK_FALSE(has_save_under_way(w->dir()));
    if (killed == kills) break;
    // It finished before it was killed often enough: start again from the first step.
    w = std::make_unique<job_folder>();
    saved = 0;
  }
  CHECK(within_saves >= kills / 4);
}

}  // namespace

TEST_CASE(
    "a killed run resumes from its last checkpoint, with the same number of stages or another, and "
    "other cuts") {
  const auto straight = job_folder{}.run({});
  REQUIRE(straight.losses.size() == 12);
  for (const settings& then :
       {settings{}, settings{"pipeline.stages=2"}, settings{"pipeline.stages=1"},
        settings{"pipeline.stages=3", "pipeline.cuts=[1, 2, 1]"},
        settings{"pipeline.stages=2", "pipeline.chunks=2", "dispatch.policy=dualpipe_v",
                 "pipeline.placement=v"}}) {
    const job_folder w;
    train_and_kill(w, {w.saving(6), slow}, 6);
    const auto rest = w.run({w.saving(6), then});
    require_resumes(straight, rest, 6);
    CHECK(fs::exists(w.step(12)));
  }
}

TEST_CASE(
    "tensor-parallel runs resume with other stages to the same bits, with other ranks to close "
    "losses") {
  const settings two{"pipeline.tp=2"};
  const auto straight = job_folder{}.run({two});
  const job_folder w;
  train_and_kill(w, {w.saving(6), slow, two}, 6);
  fs::copy(w.dir(), w.at("copy"), fs::copy_options::recursive);
  require_resumes(straight, w.run({w.saving(6), two, {"pipeline.stages=2"}}), 6);

  const auto other = w.run(
      {w.saving(6), {"checkpoint.dir=" + w.at("copy"), "pipeline.tp=4", "pipeline.stages=1"}});
  CHECK(other.resumed == 6);
  CHECK(other.losses.at(7) == Approx(straight.losses.at(7)).epsilon(1e-5));
  CHECK(other.losses.at(12) == Approx(straight.losses.at(12)).epsilon(1e-3));
  CHECK_THAT(other.o.err, Contains("pipeline.tp was 2 in the checkpoint ") && Contains("is 4"));
}

TEST_CASE("killed at random moments of saving, a training always resumes to the same bits") {
  kill_repeatedly(10);
}

TEST_CASE("killed at random moments of saving, two hundred times", "[.soak]") {
  kill_repeatedly(200);
}

TEST_CASE("SIGINT lets the step finish and saves it, and the run resumes from there") {
  const auto straight = job_folder{}.run({});
  const job_folder w;
  program training{w.command({w.saving(0), slow}, "first.jsonl")};
  REQUIRE(eventually(
      [&] { return text_of(w.at("first.jsonl")).find("\"step\":4,") != std::string::npos; }));
  training.signal(SIGINT);
  const auto first = read_log(w.at("first.jsonl"), training.wait());
  INFO(first.o.out << first.o.err);
  CHECK(first.o.code == 130);
  const auto done = first.losses.size();
  CHECK(first.saved == done);
  CHECK_THAT(first.o.out, Contains("checkpoint: step " + std::to_string(done) + " saved, 4 files"));
  CHECK_THAT(first.o.err, Contains("interrupt again to end at once") &&
                              Contains("interrupted after " + std::to_string(done) + " steps"));
  require_resumes(straight, w.run({w.saving(0)}), done);
}

TEST_CASE("a run that survives losses continues the JSON lines of before when it resumes") {
  const auto straight = job_folder{}.run({});
  const job_folder w;
  const settings survives{"recovery.max_restarts=1"};
  train_and_kill(w, {w.saving(6), slow, survives}, 6);
  std::ofstream{w.at("killed.jsonl"), std::ios::app} << "{\"event\":\"st";
  fs::copy(w.at("killed.jsonl"), w.at("run.jsonl"));
  const auto all = w.run({w.saving(6), survives});
  CHECK(all.resumed == 6);
  CHECK(all.losses == straight.losses);
}

TEST_CASE("a finished run has nothing left to do, and further steps resume from its end") {
  const job_folder w;
  const auto all = w.run({w.saving(5)});
  for (const std::uint64_t step : {5U, 10U, 12U}) CHECK(fs::exists(w.step(step)));
  const auto again = w.run({w.saving(5)});
  CHECK(again.losses.empty());
  CHECK(again.resumed == 12);
  CHECK(again.summary.at("weights_xxh64") == all.summary.at("weights_xxh64"));
  CHECK(again.summary.at("checkpoints") == 0);
  const auto more = w.run({w.saving(5), {"train.steps=14"}});
  CHECK(more.losses.size() == 2);
  CHECK_THAT(more.o.err, Contains("train.steps was 12 in the checkpoint"));
}

TEST_CASE("an altered or torn checkpoint is named, and the previous one is used") {
  const auto straight = job_folder{}.run({});
  const job_folder w;
  train_and_kill(w, {w.saving(2), slow}, 6);
  const auto file = w.step(6) + "/stage-002-rank-00.safetensors";
  flip_bit(file);
  fs::remove(w.step(4) + "/manifest.json");
  const auto check =
      run_program({RRFP_NODE, "check", w.job(), "--set", "checkpoint.dir=" + w.dir()});
  CHECK_THAT(check.out, Contains("skipped: " + file) && Contains("resumes after step 2"));
  const auto rest = w.run({w.saving(2)});
  CHECK_THAT(rest.o.err, Contains("rrfp-node: skipped: " + file + ": altered: ") &&
                             Contains("skipped: " + w.step(4) + ": not a checkpoint"));
  require_resumes(straight, rest, 2);
  // The resumed run has replaced the bad checkpoints.
  CHECK(w.run({w.saving(2)}).resumed == 12);
}

TEST_CASE("generated pictures resume like any other data") {
  const job_folder w;
  std::ofstream{w.job()}
      << "[pipeline]\nstages = 2\nmicrobatches = 3\n[model]\nlayers = 2\n"
         "hidden = 32\nheads = 4\ncontext = 512\nvocabulary = 258\n[vision]\n"
         "layers = 1\nhidden = 16\nheads = 2\n[data]\nshapes = 40\n"
         "sequence_length = 512\n[train]\nlr_min = 3e-4\nsteps = 4\n[run]\nprogress = \"none\"\n";
  const auto straight = w.run({});
  w.run({w.saving(0), {"train.steps=2"}});
  const auto rest = w.run({w.saving(0), {"pipeline.stages=1"}});
  require_resumes(straight, rest, 2);
  const auto o = run_program(w.command({w.saving(0), {"data.shapes=41", "train.steps=5"}}, "x"));
  CHECK(o.code == 2);
  CHECK_THAT(o.err, Contains("data.shapes=41: expected 40, as in the checkpoint"));
}

TEST_CASE("a changed key that must not change is named") {
  const job_folder w;
  w.run({w.saving(0), {"train.steps=2"}});
  const auto refused = [&](const settings& changed, const std::string& why) {
    for (const std::string command : {"run", "check"}) {
      std::vector<std::string> arguments{RRFP_NODE, command, w.job()};
      for (const auto& some : {w.saving(0), changed})
        for (const auto& s : some) arguments.insert(arguments.end(), {"--set", s});
      const auto o = run_program(arguments);
      INFO(o.out << o.err);
      CHECK(o.code == 2);
      CHECK_THAT(o.err, Contains(why));
      CHECK(std::count(o.err.begin(), o.err.end(), '\n') == 1);
    }
  };
  const auto as_in = ", as in the checkpoint " + w.step(2) + ", got ";
  refused({"model.hidden=64"}, "--set model.hidden=64: expected 32" + as_in + "64");
  refused({"model.dropout=0.2"}, "--set model.dropout=0.2: expected 0.1" + as_in + "0.2");
  refused({"train.seed=2"}, "--set train.seed=2: expected 1" + as_in + "2");
  refused({"train.optimizer=sgd"}, "expected \"adamw\"" + as_in + "\"sgd\"");
  refused({"data.sequence_length=16"}, "expected 32" + as_in + "16");
  refused({"pipeline.microbatches=5"}, "expected pipeline.microbatches * pipeline.replicas = 6");
  refused({"pipeline.replicas=2"},
          "pipeline.replicas=2: expected pipeline.microbatches * pipeline.replicas = 6, as in the "
          "checkpoint " +
              w.step(2) + ", got 6 * 2");
  refused({"data.text=/usr/share/common-licenses/GPL-2"}, "expected xxh64 ");
  refused({"train.steps=1"}, "expected at least the 2 steps of the checkpoint " + w.step(2));
  // A changed learning rate is allowed and reported, and so is another order of the sums.
  const auto o = run_program(w.command(
      {w.saving(0), {"train.steps=3", "train.lr=0.002", "dispatch.admission=small_large_small"}},
      "x"));
  CHECK(o.code == 0);
  const auto then = " in the checkpoint " + w.step(2) + ", and is ";
  CHECK_THAT(o.err, Contains("train.lr was 0.001" + then + "0.002"));
  CHECK_THAT(o.err, Contains("dispatch.admission was \"loaded\"" + then + "\"small_large_small\""));
}

TEST_CASE("checkpoint.resume decides whether a run must, may or must not resume") {
  const job_folder w;
  const auto must = run_program(w.command({w.saving(0), {"checkpoint.resume=must"}}, "x"));
  CHECK(must.code == 2);
  CHECK_THAT(must.err, Contains("checkpoint.resume=must: \"must\" expects a checkpoint in " +
                                w.dir() + ", found none"));
  const settings two{"train.steps=2"};
  const auto first = w.run({w.saving(0), two});
  CHECK_FALSE(first.resumed);
  CHECK(w.run({w.saving(0), two, {"checkpoint.resume=must"}}).resumed == 2);
  const auto anew = w.run({w.saving(0), two, {"checkpoint.resume=never"}});
  CHECK_FALSE(anew.resumed);
  CHECK(anew.losses == first.losses);
  CHECK_THAT(anew.o.err, Contains("earlier checkpoints are set aside in " + w.dir() + "/earlier-"));
}

TEST_CASE("jobs that cannot have checkpoints are refused") {
  const job_folder w;
  std::ofstream{w.at("file")} << "x";
  const auto refused = [&](const settings& bad, const std::string& why) {
    const auto o = run_program(w.command({bad}, "x"));
    CHECK(o.code == 2);
    CHECK_THAT(o.err, Contains(why));
  };
  refused({"checkpoint.dir=" + w.dir(), "device.kind=emulated"},
          "expected none with device.kind = \"emulated\"");
  refused({"checkpoint.dir=" + w.at("file")}, "expected a folder, got the file");
  refused({"checkpoint.resume=must"}, "expects checkpoint.dir, got none");
  refused({"checkpoint.dir=/proc/none"}, "/proc/none: cannot create the folder");
}

TEST_CASE("a folder belongs to one run at a time") {
  const job_folder w;
  const settings endless{"train.steps=100000"};
  program training{w.command({w.saving(1), slow, endless}, "first.jsonl")};
  REQUIRE(eventually([&] { return fs::exists(w.step(1)); }));
  const auto o = run_program(w.command({w.saving(1), endless}, "x"));
  CHECK(o.code == 2);
  CHECK_THAT(o.err, Contains(w.dir() + ": another run is writing its checkpoints here"));
}

TEST_CASE("a full disk is reported, the training continues, and the previous checkpoint stays") {
  const auto straight = job_folder{}.run({});
  const job_folder w;
  w.run({w.saving(0), {"train.steps=2"}});
  // A limit of 16 KiB: no file of a rank fits.
  auto limited = w.command({w.saving(4)}, "run.jsonl");
  limited.insert(limited.begin(),
                 {"/bin/sh", "-c", "trap '' XFSZ; ulimit -f 32; exec \"$@\"", "limited"});
  const auto t = read_log(w.at("run.jsonl"), run_program(limited));
  INFO(t.o.out << t.o.err);
  CHECK(t.o.code == 1);
  CHECK(t.resumed == 2);
  CHECK(t.losses.size() == 10);
  CHECK(t.losses.at(12) == straight.losses.at(12));
  CHECK(t.summary.at("weights_xxh64") == straight.summary.at("weights_xxh64"));
  CHECK(t.summary.at("last_checkpoint_failed") == true);
  for (const std::string step : {"4", "8", "12"})
    CHECK_THAT(t.o.err, Contains("checkpoint: step " + step + " not saved: " + w.dir()));
  CHECK_THAT(t.o.err, Contains("cannot write: File too large"));
  CHECK_FALSE(has_save_under_way(w.dir()));
  require_resumes(straight, w.run({w.saving(0)}), 2);
}

TEST_CASE("a disk with room for two checkpoints keeps two good ones") {
  const job_folder w;
  fs::create_directory(w.dir());
  if (::mount("tmpfs", w.dir().c_str(), "tmpfs", 0, "size=2m") != 0) {
    WARN("skipped: no tmpfs can be mounted here");
    return;
  }
  const std::shared_ptr<void> mounted{nullptr,
                                      [&](void*) { ::umount2(w.dir().c_str(), MNT_DETACH); }};
  const auto o = run_program(w.command({w.saving(2)}, "run.jsonl"));
  INFO(o.out << o.err);
  CHECK(o.code == 1);
  CHECK_THAT(o.out, Contains("checkpoint: step 2 saved") && Contains("checkpoint: step 4 saved"));
  CHECK_THAT(o.err, Contains("step 6 not saved: ") && Contains("No space left on device"));
  CHECK(w.run({{"checkpoint.dir=" + w.dir(), "checkpoint.every=0", "train.steps=4"}}).resumed == 4);
}

TEST_CASE("each run of a comparison has its own checkpoints") {
  const job_folder w;
  std::ofstream{w.job(), std::ios::app} << "[[compare]]\nname = \"in order\"\n"
                                           "dispatch.mode = \"in-order\"\n"
                                           "dispatch.policy = \"one_f_one_b\"\n"
                                           "[[compare]]\nname = \"a/b\"\n";
  const auto first = w.run({w.saving(6)});
  CHECK_THAT(first.o.out, Contains("equal to the last bit"));
  CHECK(fs::exists(w.dir() + "/in order/step-00000012/manifest.json"));
  CHECK(fs::exists(w.dir() + "/a%2Fb/step-00000006/manifest.json"));
  fs::remove_all(w.dir() + "/in order/step-00000012");
  fs::remove_all(w.dir() + "/a%2Fb/step-00000012");
  const auto rest = w.run({w.saving(6)});
  CHECK(rest.resumed == 6);
  CHECK_THAT(rest.o.out, Contains("equal to the last bit"));
  CHECK(rest.summary.at("weights_xxh64") == first.summary.at("weights_xxh64"));
}

TEST_CASE("several nodes save into one folder, and other numbers of nodes resume from it") {
  const settings two{"pipeline.tp=2"};
  const auto straight = job_folder{}.run({two});
  const job_folder w;
  const auto begun = [&] {
    program training{w.command({w.saving(0), slow, two}, "first.jsonl", 3)};
    REQUIRE(eventually(
        [&] { return text_of(w.at("first.jsonl")).find("\"step\":3,") != std::string::npos; }));
    training.signal(SIGINT);
    return read_log(w.at("first.jsonl"), training.wait());
  }();
  INFO(begun.o.out << begun.o.err);
  CHECK(begun.o.code == 130);
  CHECK(begun.saved == begun.losses.size());
  CHECK_THAT(begun.o.out, Contains(" saved, 8 files"));
  fs::copy(w.dir(), w.at("copy"), fs::copy_options::recursive);
  require_resumes(straight, w.run({w.saving(0), two}), begun.saved);
  const settings copy{"checkpoint.dir=" + w.at("copy")};
  require_resumes(straight, w.run({copy, two, {"pipeline.stages=2"}}, 4), begun.saved);
  // Only one node reports.
  const auto o = run_program(w.command({copy, {"train.seed=5"}}, "x", 2));
  CHECK(o.code == 2);
  CHECK(std::count(o.err.begin(), o.err.end(), '\n') == 1);
}

TEST_CASE("an exported model does not depend on how many ranks and stages wrote it") {
  namespace st = rrfp::safetensors;
  const job_folder w;
  w.run({w.saving(0), {"train.steps=4"}});
  const auto exported = [&](const std::string& from, const std::string& to,
                            const settings& more = {}) {
    std::vector<std::string> arguments{RRFP_NODE, "export", from, "--out", w.at(to)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_program(arguments);
  };
  const auto one = exported(w.step(4), "one");
  INFO(one.out << one.err);
  REQUIRE(one.code == 0);
  CHECK_THAT(one.out, Contains("in 1 file of "));
  // A step with learning rate 0, written by other ranks.
  w.run({w.saving(0), {"train.steps=5", "train.lr=0", "pipeline.tp=4", "pipeline.stages=2"}});
  const auto many = exported(w.dir(), "many", {"--max-shard-bytes", "64KiB"});
  INFO(many.out << many.err);
  REQUIRE(many.code == 0);

  const auto a = st::collection::open(w.at("one"));
  const auto b = st::collection::open(w.at("many"));
  REQUIRE(a.ok());
  REQUIRE(b.ok());
  CHECK(b->files().size() > 2);
  CHECK(a->tensors().size() == b->tensors().size());
  CHECK(a->tensors().size() > 4 * 10);
  for (const auto& [name, t] : a->tensors()) {
    INFO(name);
    const auto* const other = b->find(name);
    REQUIRE(other != nullptr);
    CHECK(t.info->shape == other->info->shape);
    CHECK(std::ranges::equal(t.bytes(), other->bytes()));
    CHECK(name.find("optimizer") == std::string::npos);
  }

  const auto again = exported(w.dir(), "many");
  CHECK(again.code == 2);
  CHECK_THAT(again.err, Contains("expected a folder without config.json"));
  CHECK(exported(w.at("none"), "x").code == 2);
  flip_bit(w.step(5) + "/stage-001-rank-02.safetensors");
  const auto older = exported(w.dir(), "older");
  CHECK(older.code == 0);
  CHECK_THAT(older.err, Contains("skipped: "));
  CHECK_THAT(older.out, Contains("step-00000004"));
  CHECK(exported(w.step(5), "bad").code == 2);
}
