/// Random pipelines with random orders of events: every run must end with every task launched once,
/// and every action must equal the naive model's. Each run has one seed; a failing run prints it,
/// and
///
///   RRFP_SEED=12345 build/PRESET/bin/test/schedule_random
///
/// repeats that run alone. RRFP_RUNS=1000 changes the number of runs, and `ctest -C soak -L soak`
/// runs a million.
#include <cstdio>
#include <cstdlib>
#include <string>

#include <catch2/catch.hpp>

#include <rrfp/core/sequence.hpp>

#include "pipeline_driver.hpp"
#include "slowdown.hpp"

namespace rrfp::testing {
namespace {

/// A sanitizer makes each of them ten to twenty times as long.
constexpr std::uint64_t runs_in_suite = test::slowdown == 1 ? 100'000 : 10'000;
constexpr std::uint64_t runs_in_soak = 1'000'000;

std::vector<std::uint64_t> random_bytes(std::uint32_t microbatches, random_source& random) {
  std::vector<std::uint64_t> bytes(microbatches);
  const auto largest = random.between(1, 100);
  for (auto& b : bytes) b = random.one_in(10) ? 0 : random.between(1, largest);
  return bytes;
}

pipeline_setup random_setup(random_source& random) {
  pipeline_setup setup;
  auto& shape = setup.shape;
  // Small pipelines are fast and find most errors; one run in four is large.
  const bool large = random.one_in(4);
  shape.stages = random.between(1, large ? 8 : 4);
  shape.microbatches = random.between(1, large ? 12 : 6);
  shape.layout = static_cast<placement>(random.below(3));
  shape.chunks = shape.layout == placement::linear ? 1
                 : shape.layout == placement::v    ? 2
                                                   : random.between(1, 3);
  setup.ranks = random.one_in(2) ? 1 : random.between(1, 4);
  setup.lookahead = random.below(3);
  const bool back_pressure = random.one_in(4);
  if (!back_pressure && random.one_in(2)) setup.limit.slots = random.between(1, shape.microbatches);
  if (!back_pressure && random.one_in(3)) {
    setup.slot_bytes = random_bytes(shape.microbatches, random);
    setup.limit.bytes = random.between(1, 150);
  }
  if (random.one_in(3)) setup.weight_pieces = random.between(2, 4);
  if (back_pressure)
    setup.limit.run_ahead = random.between(1, shape.microbatches * shape.chunks);
  else if (setup.limit.slots == 0 && setup.limit.bytes == 0 && random.one_in(2))
    setup.limit.activations = random.between(shape.chunks, shape.chunks * shape.microbatches);
  for (std::uint32_t s = 0; s < shape.stages; ++s)
    setup.hints.push_back(random_hint(shape, random));
  if (random.one_in(3)) setup.microbatches_before = random.between(1, 12);
  if (random.one_in(4)) setup.hints = on_every_stage(bf_hint(shape, random.one_in(2)));
  if (random.one_in(4)) {
    const auto sequences = random_sequences(setup.hints, random);
    if (auto valid = check_sequences(shape, sequences); !valid)
      throw rule_violation{valid.message()};
    setup.hints = sequence_hints(shape, sequences);
  }
  if (back_pressure) return setup;
  if (setup.limit.activations == 0 && random.one_in(3))
    setup.early_forwards = random.between(1, 8);
  else if (random.one_in(3))
    setup.forwards_in_order = random.below(1U << shape.stages);
  return setup;
}

/// Picks the next event. A bias makes rare orders common: a stage that hardly ever progresses,
/// messages before or after finishes, the newest message first.
class event_picker {
 public:
  explicit event_picker(random_source& random, std::uint32_t stages)
      : random_(random),
        bias_(static_cast<bias>(random.below(5))),
        slow_stage_(random.below(stages)),
        lazy_decisions_(random.one_in(2)) {}

  /// Performs one event; returns false if none is possible.
  bool step(pipeline_driver& driver) {
    const auto& setup = driver.setup();
    undecided_.resize(setup.shape.stages, true);
    possible_.clear();
    for (std::uint32_t s = 0; s < setup.shape.stages; ++s) {
      if (undecided_[s]) possible_.push_back({kind::decide, s, 0});
      for (std::uint32_t r = 0; r < setup.ranks; ++r)
        if (driver.can_finish(s, r)) possible_.push_back({kind::finish, s, r});
    }
    const auto messages = static_cast<std::uint32_t>(driver.messages().size());
    if (possible_.empty() && messages == 0) return false;
    const auto chosen = choose(driver, messages);
    perform(driver, chosen);
    return true;
  }

 private:
  enum class bias { none, messages_first, finishes_first, newest_message_first, slow_stage };
  enum class kind { decide, finish, deliver };
  struct next_event {
    kind what;
    std::uint32_t at;
    std::uint32_t rank;
  };

  next_event choose(const pipeline_driver& driver, std::uint32_t messages) {
    const auto others = static_cast<std::uint32_t>(possible_.size());
    const auto any_message = [&] { return next_event{kind::deliver, random_.below(messages), 0}; };
    // One choice in eight ignores the bias.
    if (!random_.one_in(8)) {
      switch (bias_) {
        case bias::none: break;
        case bias::messages_first:
          if (messages > 0) return any_message();
          break;
        case bias::finishes_first:
          if (others > 0) return possible_[random_.below(others)];
          break;
        case bias::newest_message_first:
          if (messages > 0) return {kind::deliver, messages - 1, 0};
          break;
        case bias::slow_stage:
          if (const auto quick = quick_one(driver)) return *quick;
          break;
      }
    }
    const auto pick = random_.below(others + messages);
    return pick < others ? possible_[pick] : next_event{kind::deliver, pick - others, 0};
  }

  std::optional<next_event> quick_one(const pipeline_driver& driver) {
    for (const auto& h : possible_)
      if (h.at != slow_stage_) return h;
    for (std::uint32_t i = 0; i < driver.messages().size(); ++i)
      if (driver.messages()[i].stage != slow_stage_) return next_event{kind::deliver, i, 0};
    return std::nullopt;
  }

  void perform(pipeline_driver& driver, const next_event& h) {
    auto stage = h.at;
    switch (h.what) {
      case kind::decide:
        driver.decide(stage);
        undecided_[stage] = false;
        return;
      case kind::finish: driver.finish(stage, h.rank); break;
      case kind::deliver: stage = driver.deliver(h.at); break;
    }
    if (lazy_decisions_)
      undecided_[stage] = true;
    else
      driver.decide(stage);
  }

  random_source& random_;
  const bias bias_;
  const std::uint32_t slow_stage_;
  const bool lazy_decisions_;
  std::vector<bool> undecided_;
  std::vector<next_event> possible_;
};

void run_step(pipeline_driver& driver, random_source& random, std::uint64_t step) {
  driver.begin_step(step);
  event_picker picker{random, driver.setup().shape.stages};
  while (picker.step(driver)) {
  }
}

/// Aborts a step half-way: running tasks may end, messages in flight are lost, and the next step
/// starts clean.
void run_half_and_abort(pipeline_driver& driver, random_source& random) {
  driver.begin_step(0);
  event_picker picker{random, driver.setup().shape.stages};
  for (auto events = random.below(200); events > 0 && picker.step(driver); --events) {
  }
  for (std::uint32_t s = 0; s < driver.setup().shape.stages; ++s) {
    driver.stage(s).abort();
    expect(driver.decide(s).empty(), "nothing is launched after abort");
    for (std::uint32_t r = 0; r < driver.setup().ranks; ++r)
      while (driver.can_finish(s, r)) driver.finish(s, r);
  }
}

void expect_ended(const pipeline_driver& driver) {
  expect(driver.complete(), "deadlock: no event is possible and the step is not complete");
  expect(driver.everything_launched_once(), "every task is launched exactly once");
}

/// The step ends for any hint.
void run_ready(random_source& random) {
  pipeline_driver driver{random_setup(random)};
  if (random.one_in(4)) run_half_and_abort(driver, random);
  const auto steps = random.between(1, 2);
  for (std::uint64_t step = 0; step < steps; ++step) {
    run_step(driver, random, step);
    expect_ended(driver);
  }
}

/// A sequence completes if and only if the checks predict it, and the tasks run in its order.
void run_in_order(random_source& random) {
  auto setup = random_setup(random);
  setup.mode = dispatch_mode::in_order;
  setup.limit.run_ahead = 0;
  setup.early_forwards = setup.forwards_in_order = 0;
  auto sequences = random_sequences(setup.hints, random);
  if (random.one_in(2)) {
    auto& order = sequences[random.below(sequences.size())];
    for (auto swaps = random.between(1, 3); swaps > 0; --swaps)
      std::swap(order[random.below(order.size())], order[random.below(order.size())]);
  }
  bool ends = check_sequences(setup.shape, sequences).ok();
  for (std::uint32_t s = 0; ends && s < setup.shape.stages; ++s)
    ends = check_slots(setup.shape, stage_id{s}, sequences[s], setup.limit, setup.slot_bytes).ok();
  setup.hints = sequence_hints(setup.shape, sequences);
  pipeline_driver driver{setup};
  run_step(driver, random, 0);
  expect(driver.complete() == ends, "check_sequences and check_slots predict whether it ends");
  for (std::uint32_t s = 0; s < setup.shape.stages; ++s)
    expect(std::equal(driver.launched(s).begin(), driver.launched(s).end(), sequences[s].begin()),
           "the tasks run in the order of the sequence");
}

std::string run(std::uint64_t seed) {
  random_source random{seed};
  try {
    if (random.one_in(4))
      run_in_order(random);
    else
      run_ready(random);
    return {};
  } catch (const rule_violation& e) {
    return e.what() + std::string("; reproduce with RRFP_SEED=") + std::to_string(seed);
  }
}

std::optional<std::uint64_t> number_in(const char* variable) {
  const char* const text = std::getenv(variable);
  return text ? std::optional<std::uint64_t>{std::strtoull(text, nullptr, 10)} : std::nullopt;
}

void run_many(std::uint64_t runs) {
  if (const auto seed = number_in("RRFP_SEED")) {
    REQUIRE(run(*seed) == "");
    return;
  }
  runs = number_in("RRFP_RUNS").value_or(runs);
  for (std::uint64_t seed = 0; seed < runs; ++seed)
    if (const auto failure = run(seed); !failure.empty()) FAIL(failure);
  std::printf("random runs: %llu, none failed\n", static_cast<unsigned long long>(runs));
  SUCCEED();
}

}  // namespace

TEST_CASE("Random pipelines end and keep every rule under random orders of events") {
  run_many(runs_in_suite);
}

TEST_CASE("A million random pipelines end and keep every rule", "[.soak]") {
  run_many(runs_in_soak);
}

}  // namespace rrfp::testing
