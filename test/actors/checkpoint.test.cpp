// A run that stops and resumes gives the same losses and weights as one that never stopped, to the
// last bit, also if the model is divided into other stages on the way.
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <thread>

#include <ATen/ATen.h>

#include <rrfp/actors/checkpoint_tensors.hpp>
#include <rrfp/actors/job/job_saves.hpp>
#include <rrfp/checkpoint/ring.hpp>

#include "program.hpp"
#include "small_session.hpp"

// Last: libtorch has a CHECK of its own.
#include <catch2/catch.hpp>

namespace rrfp::actors::test::checkpoints {

namespace {

using Catch::Matchers::Contains;
using rrfp::test::scratch_folder;

constexpr std::uint32_t microbatches = 6;
constexpr std::uint64_t steps = 8;

job::model_options model() {
  auto m = compute::test::small_model();
  m.tied_head = true;
  return m;
}

job::train_options trained_with(job::optimizer_kind optimizer) {
  auto t = compute::test::small_train();
  t.steps = steps;
  t.warmup_steps = 3;
  t.optimizer = optimizer;
  t.momentum = 0.9;
  return t;
}

/// How the work is divided.
struct cut {
  pipeline_shape shape;
  std::uint32_t ranks = 1;
  std::uint32_t replicas = 1;
};

cut linear(std::uint32_t stages, std::uint32_t ranks = 1, std::uint32_t replicas = 1) {
  return {{stages, 1, microbatches / replicas, placement::linear}, ranks, replicas};
}

struct leg {
  run_result result;
  std::map<std::uint64_t, double> losses;  ///< by step
  std::vector<checkpoint_report> saves;
};

class training {
 public:
  explicit training(job::train_options train = trained_with(job::optimizer_kind::adamw))
      : train_(train) {}

  std::string dir() const { return folder_ / "checkpoints"; }
  /// Called between a step and its save; after a save.
  std::function<void(std::uint64_t steps)> on_step;
  std::function<void(const checkpoint_report&)> on_checkpoint;

  /// Resumes from the newest checkpoint. Interrupted when `stop_after` steps are complete and the
  /// next one has begun.
  leg run(const cut& c, std::uint64_t every, std::uint64_t stop_after = steps,
          std::uint64_t weather = 0) const {
    choice_of_run how;
    how.shape = c.shape;
    how.weather = weather;
    auto setup = small_setup(how, model(), train_);
    setup.ranks = c.ranks;
    setup.replicas = c.replicas;
    auto parts = small_parts(c.shape, model(), train_);
    parts.data = std::make_shared<compute::test::uneven_source>(microbatches);
    train(setup, std::move(parts));
    checkpoint_setup saves;
    saves.dir = dir();
    saves.every = every;
    saves.head.shape = c.shape;
    saves.head.tp = c.ranks;
    saves.head.replicas = c.replicas;
    auto ring = checkpoint::ring::open(dir(), 3);
    REQUIRE(ring.ok());
    saves.ring = std::move(*ring);
    auto found = checkpoint::find_newest(dir(), checkpoint::verification::checksums);
    REQUIRE(found.ok());
    CHECK(found->skipped.empty());
    setup.resume = std::move(found->newest);
    setup.checkpoint = std::move(saves);

    leg l;
    session* running = nullptr;
    setup.on_step = [&](const step_summary& step) {
      l.losses[step.step] = step.loss;
      if (on_step) on_step(step.step);
      if (stop_after < steps && step.step == stop_after) running->interrupt();
    };
    setup.on_checkpoint = [&](const checkpoint_report& r) {
      l.saves.push_back(r);
      if (on_checkpoint) on_checkpoint(r);
    };
    auto opened = session::open(std::move(setup));
    INFO((opened.ok() ? "" : opened.message()));
    REQUIRE(opened.ok());
    running = opened->get();
    l.result = running->run();
    return l;
  }

 private:
  scratch_folder folder_;
  job::train_options train_;
};

void require_continues(const leg& straight, const std::vector<leg>& legs) {
  std::map<std::uint64_t, double> losses;
  for (const auto& l : legs)
    for (const auto& [step, loss] : l.losses) {
      CHECK(!losses.contains(step));  // no step ran twice
      losses[step] = loss;
    }
  CHECK(losses == straight.losses);
  REQUIRE(legs.back().result.how == ending::done);
  CHECK(legs.back().result.summary.weights_xxh64 == straight.result.summary.weights_xxh64);
}

}  // namespace

TEST_CASE("a resumed run gives the same bits, however the model is divided into stages") {
  const auto optimizer = GENERATE(job::optimizer_kind::adamw, job::optimizer_kind::sgd);
  const auto train = trained_with(optimizer);
  const auto straight = training{train}.run(linear(4), 0);
  REQUIRE(straight.result.how == ending::done);
  REQUIRE(straight.losses.size() == steps);
  REQUIRE(straight.saves.size() == 1);
  CHECK(straight.saves[0].step == steps);
  CHECK(straight.saves[0].failure.empty());
  CHECK(straight.saves[0].files == 4);
  CHECK(straight.saves[0].bytes > 10000);

  const cut turned{{2, 2, microbatches, placement::v}};
  const cut interleaved{{2, 2, microbatches, placement::interleaved}};
  const std::vector<std::vector<cut>> sequences_of_cuts{{linear(4), linear(4)},
                                                        {linear(4), linear(1), turned},
                                                        {interleaved, linear(3), linear(2)},
                                                        {linear(1), linear(4)}};
  for (std::size_t i = 0; i < sequences_of_cuts.size(); ++i) {
    INFO("sequence " << i);
    const training t{train};
    std::vector<leg> legs;
    const auto& cuts = sequences_of_cuts[i];
    for (std::size_t k = 0; k < cuts.size(); ++k) {
      const bool last = k + 1 == cuts.size();
      legs.push_back(t.run(cuts[k], 0, last ? steps : 2 * (k + 1), i));
      const auto& r = legs.back().result;
      CHECK(r.how == (last ? ending::done : ending::interrupted));
      REQUIRE(legs.back().saves.size() == 1);
      CHECK(legs.back().saves[0].step == r.summary.first_step + r.summary.steps);
    }
    require_continues(straight, legs);
  }
}

TEST_CASE("tensor-parallel ranks and replicas resume with the same bits on other stages") {
  for (const auto& [ranks, replicas] : {std::pair{2U, 1U}, std::pair{1U, 2U}, std::pair{2U, 2U}}) {
    INFO(ranks << " ranks, " << replicas << " replicas");
    const auto straight = training{}.run(linear(2, ranks, replicas), 0);
    // Only replica 0 saves: all replicas hold the same tensors.
    CHECK(straight.saves.at(0).files == 2 * ranks);
    const training t;
    std::vector<leg> legs{t.run(linear(4, ranks, replicas), 0, 3)};
    legs.push_back(t.run(linear(2, ranks, replicas), 0));
    require_continues(straight, legs);
  }
}

TEST_CASE("a run resumes with another number of ranks") {
  const auto straight = training{}.run(linear(2), 0);
  const training t;
  const auto first = t.run(linear(2), 0, 2);
  const auto second = t.run(linear(4, 2), 0, 4);
  const auto third = t.run(linear(1, 4), 0, 6);
  const auto last = t.run(linear(2), 0);
  CHECK(last.result.how == ending::done);
  // Sums over ranks round differently: close, not equal.
  for (const auto* l : {&first, &second, &third, &last})
    for (const auto& [step, loss] : l->losses)
      CHECK(loss == Approx(straight.losses.at(step)).epsilon(1e-4));
}

TEST_CASE("with checkpoint.every = 1 every step is saved, however short the steps are") {
  const training t;
  const auto l = t.run(linear(2), 1);
  REQUIRE(l.result.how == ending::done);
  REQUIRE(l.saves.size() == steps);
  for (std::uint64_t i = 0; i < steps; ++i) {
    CHECK(l.saves[i].step == i + 1);
    CHECK(l.saves[i].failure.empty());
  }
  CHECK(l.result.summary.checkpoints == steps);
  CHECK_FALSE(l.result.summary.last_checkpoint_failed);
  // The ring keeps three.
  for (std::uint64_t step = 1; step <= steps; ++step)
    CHECK(std::filesystem::exists(t.dir() + "/" + checkpoint::folder_name(step)) ==
          (step > steps - 3));
  // A completed run ends at once when it resumes.
  const auto again = t.run(linear(4), 1);
  CHECK(again.result.how == ending::done);
  CHECK(again.result.summary.steps == 0);
  CHECK(again.result.summary.first_step == steps);
  CHECK(again.result.summary.weights_xxh64 == l.result.summary.weights_xxh64);
  CHECK(again.saves.empty());
}

TEST_CASE("a failed save is reported, and the training continues") {
  const auto reference = training{}.run(linear(2), 0);
  training t;
  const auto away = t.dir() + ".away";
  // The folder is missing when step 4 is saved, and restored afterwards.
  t.on_step = [&](std::uint64_t done) {
    if (done != 4) return;
    std::filesystem::rename(t.dir(), away);
    std::ofstream{t.dir()} << "in the way";
  };
  t.on_checkpoint = [&](const checkpoint_report& r) {
    if (r.failure.empty()) return;
    std::filesystem::remove(t.dir());
    std::filesystem::rename(away, t.dir());
  };
  const auto l = t.run(linear(2), 4);
  CHECK(l.result.how == ending::done);
  CHECK(l.losses == reference.losses);
  REQUIRE(l.saves.size() == 2);
  CHECK_THAT(l.saves[0].failure, Contains("/.step-00000004.tmp: cannot create the folder: "));
  CHECK(l.saves[1].failure.empty());
  CHECK(l.result.summary.checkpoints == 1);
  CHECK_FALSE(l.result.summary.last_checkpoint_failed);
}

TEST_CASE("a checkpoint of another model is refused, and the error names the tensor") {
  const training t;
  t.run(linear(2), 0, 2);
  auto found = checkpoint::find_newest(t.dir(), checkpoint::verification::sizes);
  choice_of_run how;
  how.shape = linear(2).shape;
  auto wider = model();
  wider.hidden = 64;
  auto setup = small_setup(how, wider, trained_with(job::optimizer_kind::adamw));
  setup.resume = found->newest;
  const auto opened = session::open(std::move(setup));
  REQUIRE_FALSE(opened.ok());
  CHECK_THAT(opened.message(),
             Contains("step-00000003: stage 0: ") && Contains("[64, 32]") && Contains("[64, 64]"));
}

TEST_CASE("a checkpoint with a tensor that the model does not have is refused") {
  const training t;
  t.run(linear(2), 0, 2);
  const auto found = checkpoint::find_newest(t.dir(), checkpoint::verification::sizes);
  choice_of_run how;
  how.shape = linear(2).shape;
  auto shorter = model();
  shorter.layers -= 1;
  auto setup = small_setup(how, shorter, trained_with(job::optimizer_kind::adamw));
  setup.resume = found->newest;
  const auto opened = session::open(std::move(setup));
  REQUIRE_FALSE(opened.ok());
  CHECK_THAT(opened.message(),
             Contains("step-00000003: tensor '") &&
                 Contains("': expected in the model, which has no such parameter"));
}

TEST_CASE("a second interrupt does not wait for the step") {
  const training t;
  choice_of_run how;
  how.shape = linear(2).shape;
  auto setup = small_setup(how, model(), trained_with(job::optimizer_kind::adamw));
  setup.delays.compute = [](step_id step, const rank_address&, const task&) {
    return step.value() == 0 ? 0.0 : 60'000.0;
  };
  checkpoint_setup saves;
  saves.dir = t.dir();
  auto ring = checkpoint::ring::open(t.dir(), 3);
  REQUIRE(ring.ok());
  saves.ring = std::move(*ring);
  setup.checkpoint = std::move(saves);
  auto opened = session::open(std::move(setup));
  REQUIRE(opened.ok());
  std::atomic<bool> over = false;
  std::thread other{[&] {
    std::this_thread::sleep_for(std::chrono::milliseconds{500});
    (*opened)->interrupt();
    std::this_thread::sleep_for(std::chrono::milliseconds{500});
    CHECK_FALSE(over.load());
    (*opened)->interrupt();
  }};
  const auto begun = std::chrono::steady_clock::now();
  const auto r = (*opened)->run();
  over = true;
  other.join();
  CHECK(r.how == ending::interrupted);
  CHECK(r.summary.checkpoints == 0);
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds{20});
}

TEST_CASE("job_saves reports what the ranks have copied and written") {
  const scratch_folder folder;
  checkpoint_setup setup;
  setup.dir = folder / "ring";
  auto ring = checkpoint::ring::open(setup.dir, 1);
  REQUIRE(ring.ok());
  setup.ring = std::move(*ring);
  constexpr std::int64_t ms = 1'000'000;
  job_saves saves{setup, 2};

  REQUIRE(saves.begin(10, 0, "so far"));
  saves.record(snapshot_taken{9, 99 * ms}, 1 * ms);  // of another save
  saves.record(snapshot_taken{10, 3 * ms}, 4 * ms);
  saves.record(snapshot_written{10, "b", 5, 1, {}});
  saves.record(snapshot_taken{10, 2 * ms}, 5 * ms);
  saves.record(snapshot_written{9, "x", 5, 1, {}});
  saves.record(snapshot_written{10, "a", 6, 2, {}});
  const auto m = saves.manifest();
  CHECK(m.step == 10);
  CHECK(m.history == "so far");
  REQUIRE(m.files.size() == 2);
  CHECK(m.files[0].name == "a");
  const auto report = saves.end({}, 25 * ms);
  CHECK(report.files == 2);
  CHECK(report.bytes == 11);
  CHECK(report.copy_ms == 3);
  CHECK(report.background_ms == 20);
  CHECK(saves.saved() == 1);
  CHECK_FALSE(saves.last_failed());

  REQUIRE(saves.begin(20, 2 * ms, {}));
  saves.record(snapshot_taken{20, 1 * ms}, 9 * ms);  // one rank alone
  saves.record(snapshot_written{20, {}, 0, 0, "no room"});
  saves.record(snapshot_written{20, "b", 6, 2, {}});
  const auto failed = saves.end("no room", 10 * ms);
  CHECK(failed.failure == "no room");
  CHECK(failed.files == 1);
  CHECK(failed.background_ms == 8);
  CHECK(saves.saved() == 1);
  CHECK(saves.last_failed());
}

TEST_CASE("tensors of every type, and their parts, are read back from a rank's file") {
  const scratch_folder folder;
  std::vector<compute::named_buffer> all;
  const auto add = [&](std::string name, dtype type, std::vector<std::int64_t> sizes) -> auto& {
    auto value = make_host_buffer(type, std::move(sizes));
    for (std::size_t i = 0; auto& b : value.content()) b = static_cast<std::byte>(7 * i++);
    return all.emplace_back(compute::named_buffer{std::move(name), std::move(value)});
  };
  for (int code = 1; code <= 13; ++code)
    add("code " + std::to_string(code), static_cast<dtype>(code), {3, 5});
  add("scalar", dtype::int64, {});
  add("empty", dtype::float32, {0, 3});
  add("part", dtype::float32, {2, 3}).part = compute::even_shard({4, 3}, 0, 1, 1, 2);
  const auto written = write_rank(folder / "", stage_id{0}, rank_id{0}, 5, all);
  INFO((written.ok() ? "" : written.message()));
  REQUIRE(written.ok());
  checkpoint::found_checkpoint from{folder / "", {}};
  from.contents.files = {*written};
  const auto opened = open_tensors(from);
  REQUIRE(opened.ok());
  REQUIRE(opened->size() == all.size());
  for (const auto& t : *opened) {
    const auto original =
        std::find_if(all.begin(), all.end(), [&](const auto& o) { return o.name == t.name; });
    REQUIRE(original != all.end());
    CHECK(t.value.type == original->value.type);
    CHECK(t.value.sizes == original->value.sizes);
    CHECK(std::ranges::equal(t.value.content(), original->value.content()));
    CHECK(t.part == original->part);
  }
  const auto sum = checkpoint::verify(folder / "", checkpoint::verification::sizes);
  CHECK_FALSE(sum.ok());  // a folder without a manifest is not a checkpoint
  all = {{"complex", make_host_buffer(dtype::other, {2})}};
  CHECK_FALSE(write_rank(folder / "", stage_id{0}, rank_id{1}, 5, all).ok());
}

}  // namespace rrfp::actors::test::checkpoints
