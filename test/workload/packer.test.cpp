// Steps of microbatches with about equal work.
#include <rrfp/workload/packer.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>

#include <catch2/catch.hpp>

#include <rrfp/simulate/keyed_random.hpp>
#include <rrfp/study/presets.hpp>
#include <rrfp/workload/work_model.hpp>

namespace {

using namespace rrfp::study;
using namespace rrfp::workload;
using random_source = rrfp::simulate::keyed_random;

const work_model& llama() {
  static const auto model = training_flops(preset("llama3-8b-internvit").value());
  return model;
}

sample_work text(double tokens, double most) {
  const auto n = std::clamp(std::round(tokens), 1.0, most);
  return {static_cast<std::uint64_t>(n), llama().work_of(n)};
}

double lognormal(random_source& random, double median, double sigma) {
  return median * std::exp(sigma * random.normal());
}

/// P(tokens > x) = 100 / x.
double zipf(random_source& random) { return 100 / (1 - random.uniform()); }

using drawing = std::function<sample_work(random_source&)>;

std::vector<sample_work> drawn(std::size_t count, const drawing& draw) {
  random_source random{11};
  std::vector<sample_work> samples;
  for (std::size_t i = 0; i < count; ++i) samples.push_back(draw(random));
  return samples;
}

const std::map<std::string, drawing>& kinds() {
  static const std::map<std::string, drawing> all{
      {"lognormal", [](random_source& r) { return text(lognormal(r, 500, 0.8), 4096); }},
      {"documents with a long tail", [](random_source& r) { return text(zipf(r), 8192); }},
      {"chat",
       [](random_source& r) {
         double tokens = 0;
         for (auto turns = 1 + 5 * r.uniform(); turns > 0; --turns)
           tokens += lognormal(r, 120, 0.7);
         return text(tokens, 8192);
       }},
      {"images", [](random_source& r) {
         const std::vector<double> patches(static_cast<std::size_t>(r.uniform() * 5), 256);
         const auto tokens =
             std::round(lognormal(r, 150, 0.8)) + 1 + 256.0 * static_cast<double>(patches.size());
         return sample_work{static_cast<std::uint64_t>(tokens), llama().work_of(tokens, patches)};
       }}};
  return all;
}

struct figures {
  double of_microbatches = 1;  ///< the largest of all steps
  double of_replicas = 1;
  bool has_outlier = false;  ///< a sample with more work than a microbatch on average
};

figures figures_of(const std::vector<sample_work>& samples, const packed_step& step) {
  std::vector<double> work, of_replica;
  double most = 0;
  for (const auto& parts : step.replicas) {
    of_replica.push_back(0);
    for (const auto& part : parts) {
      work.push_back(0);
      for (const auto i : part) {
        work.back() += samples[i].work;
        most = std::max(most, samples[i].work);
      }
      of_replica.back() += work.back();
    }
  }
  const auto mean =
      std::accumulate(work.begin(), work.end(), 0.0) / static_cast<double>(work.size());
  return {imbalance(work), imbalance(of_replica), most > mean};
}

std::vector<packed_step> epoch_of(packer& p) {
  std::vector<packed_step> steps;
  for (const auto epoch = p.position().epoch; p.position().epoch == epoch;)
    steps.push_back(p.next());
  return steps;
}

packer packer_of(std::vector<sample_work> samples, const pack_options& options) {
  auto made = packer::make(std::move(samples), options);
  INFO((made ? "" : made.message()));
  REQUIRE(made.ok());
  return *std::move(made);
}

/// How often each sample occurs.
std::vector<int> occurrences(const std::vector<packed_step>& steps, std::size_t count) {
  std::vector<int> times(count);
  for (const auto& step : steps)
    for (const auto& parts : step.replicas)
      for (const auto& part : parts)
        for (const auto i : part) ++times[i];
  return times;
}

void check_limits(const std::vector<sample_work>& samples, const packed_step& step,
                  const pack_options& options) {
  CHECK(step.replicas.size() == options.replicas);
  std::size_t taken = 0;
  for (const auto& parts : step.replicas) {
    if (options.microbatches != 0) CHECK(parts.size() <= options.microbatches);
    CHECK(std::is_sorted(parts.begin(), parts.end()));
    for (const auto& part : parts) {
      CHECK_FALSE(part.empty());
      CHECK(std::is_sorted(part.begin(), part.end()));
      taken += part.size();
      std::uint64_t tokens = 0;
      for (const auto i : part) tokens += samples[i].tokens;
      if (options.max_tokens != 0) CHECK(tokens <= options.max_tokens);
    }
  }
  if (options.batch_size != 0) CHECK(taken <= options.batch_size);
  for (const auto& [sample, steps] : step.delays) CHECK(steps <= options.delay);
}

bool same(const packed_step& a, const packed_step& b) {
  return a.replicas == b.replicas && a.delays == b.delays;
}

/// All steps of an epoch in which no sample has more work than a microbatch on average.
void check_balance(const std::string& name, const std::vector<sample_work>& samples,
                   const pack_options& options) {
  INFO(name << ", " << options.microbatches << " of " << options.replicas << " replicas");
  auto p = packer_of(samples, options);
  std::size_t checked = 0;
  for (const auto& step : epoch_of(p)) {
    const auto f = figures_of(samples, step);
    if (f.has_outlier) continue;
    ++checked;
    CHECK(f.of_microbatches < 1.03);
    CHECK(f.of_replicas < 1.03);
  }
  CHECK(checked > 0);
}

}  // namespace

TEST_CASE("without outliers the work of microbatches and of replicas differs by less than 3 %") {
  for (const auto& [name, draw] : kinds()) {
    const auto samples = drawn(8192, draw);
    for (const auto& options :
         {pack_options{.microbatches = 8, .batch_size = 256},
          pack_options{.microbatches = 8, .replicas = 4, .batch_size = 1024},
          pack_options{.max_tokens = 65'536, .microbatches = 4, .replicas = 4, .batch_size = 512},
          pack_options{.max_tokens = 131'072, .replicas = 3, .batch_size = 2048}})
      check_balance(name, samples, options);
  }
}

TEST_CASE("so it does where nine tenths of the room for tokens are taken") {
  for (const auto& [name, draw] : kinds()) {
    auto samples = drawn(8192, draw);
    std::erase_if(samples, [](const sample_work& s) { return s.tokens > 6144; });
    for (const std::uint32_t replicas : {1U, 4U})
      check_balance(name, samples,
                    {.max_tokens = 8192,
                     .microbatches = 32,
                     .replicas = replicas,
                     .batch_tokens = std::uint64_t{replicas} * 32 * 8192 * 9 / 10});
  }
}

TEST_CASE("an epoch has each sample once, in steps within their limits") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    random_source random{seed, 5};
    const auto below = [&](std::uint64_t n) { return random.bits() % n; };
    const auto count = static_cast<std::size_t>(1 + below(400));
    std::vector<sample_work> samples;
    for (std::size_t i = 0; i < count; ++i) samples.push_back(text(zipf(random), 4096));
    pack_options o;
    o.replicas = static_cast<std::uint32_t>(1 + below(4));
    if (below(2) == 0) o.microbatches = static_cast<std::uint32_t>(1 + below(6));
    if (below(3) != 0) o.max_tokens = 4096 + below(3) * 2000;
    if (below(3) != 0) o.batch_size = 1 + below(100);
    if (o.batch_size == 0 && below(3) != 0) o.batch_tokens = 1 + below(40'000);
    if (o.batch_size + o.batch_tokens > 0) o.delay = static_cast<std::uint32_t>(below(5));
    o.shuffle = below(2) == 0;
    o.seed = seed;
    INFO("seed " << seed);
    auto p = packer_of(samples, o);
    for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
      CHECK(p.position() == pack_position{.epoch = epoch});
      const auto steps = epoch_of(p);
      CHECK(occurrences(steps, count) == std::vector<int>(count, 1));
      for (const auto& step : steps) check_limits(samples, step, o);
    }
  }
}

TEST_CASE("replicas have equally many microbatches, unless there are too few samples") {
  const auto samples = drawn(100, kinds().at("chat"));
  for (const std::uint32_t microbatches : {0U, 4U}) {
    auto p = packer_of(
        samples,
        {.max_tokens = 8192, .microbatches = microbatches, .replicas = 3, .batch_size = 33});
    const auto steps = epoch_of(p);
    REQUIRE(steps.size() == 4);
    for (std::size_t s = 0; s < 3; ++s)
      for (const auto& parts : steps[s].replicas)
        CHECK(parts.size() == steps[s].replicas[0].size());
    // The last sample is alone.
    std::vector<std::size_t> counts;
    for (const auto& parts : steps[3].replicas) counts.push_back(parts.size());
    std::sort(counts.begin(), counts.end());
    CHECK(counts == std::vector<std::size_t>{0, 0, 1});
  }
}

TEST_CASE("a replica with a large sample has as many microbatches as the others") {
  std::vector<sample_work> samples(15, sample_work{100, 100});
  samples.push_back({1500, 1500});
  auto p = packer_of(samples, {.microbatches = 4, .replicas = 2});
  const auto step = p.next();
  for (const auto& parts : step.replicas) CHECK(parts.size() == 4);
  CHECK(figures_of(samples, step).of_replicas == Approx(1800.0 * 2 / 3000));
}

TEST_CASE("samples that fill a microbatch each may give a replica one more") {
  auto p = packer_of(std::vector<sample_work>(7, sample_work{1000, 1}),
                     {.max_tokens = 1000, .microbatches = 4, .replicas = 2});
  const auto step = p.next();
  CHECK(step.replicas[0].size() + step.replicas[1].size() == 7);
  CHECK(p.position().epoch == 1);
}

TEST_CASE("a step has as few microbatches as its tokens need") {
  const std::vector<sample_work> samples(12, sample_work{300, 1});
  const auto counts = [&](std::uint64_t max_tokens, std::uint32_t replicas) {
    auto p = packer_of(samples, {.max_tokens = max_tokens, .replicas = replicas});
    return p.next().replicas[0].size();
  };
  CHECK(counts(0, 1) == 1);
  CHECK(counts(3600, 1) == 1);
  CHECK(counts(3599, 1) == 2);
  CHECK(counts(599, 1) == 12);
  CHECK(counts(900, 2) == 2);
}

TEST_CASE("a step that does not fit leaves its last samples to the next one") {
  const auto sizes = [](std::uint64_t tokens, std::size_t batch_size) {
    auto p =
        packer_of(std::vector<sample_work>(30, sample_work{tokens, 1}),
                  {.max_tokens = 1000, .microbatches = 2, .replicas = 2, .batch_size = batch_size});
    std::vector<std::size_t> all;
    for (const auto& step : epoch_of(p)) {
      all.push_back(0);
      for (const auto& parts : step.replicas)
        for (const auto& part : parts) all.back() += part.size();
    }
    return all;
  };
  CHECK(sizes(600, 6) == std::vector<std::size_t>{4, 4, 4, 4, 4, 4, 4, 2});
  CHECK(sizes(300, 20) == std::vector<std::size_t>{12, 12, 6});
}

TEST_CASE("outliers wait for each other, for the given number of steps at most") {
  // A sample in forty has as much work as two microbatches.
  std::vector<sample_work> samples;
  for (std::uint32_t i = 0; i < 4000; ++i) samples.push_back({i % 40 == 0 ? 1000U : 50U, 0});
  for (auto& s : samples) s.work = static_cast<double>(s.tokens);
  const auto imbalanced = [&](std::uint32_t delay) {
    const pack_options o{.microbatches = 8, .batch_size = 40, .delay = delay};
    auto p = packer_of(samples, o);
    std::size_t steps = 0;
    std::uint64_t longest = 0;
    for (const auto& step : epoch_of(p)) {
      check_limits(samples, step, o);
      if (figures_of(samples, step).of_microbatches > 1.5) ++steps;
      for (const auto& [sample, waited] : step.delays) {
        CHECK(samples[sample].tokens == 1000);
        longest = std::max(longest, waited);
      }
    }
    CHECK((delay == 0) == (longest == 0));
    return steps;
  };
  const auto now = imbalanced(0);
  const auto waited = imbalanced(4);
  const auto gathered = imbalanced(16);
  CHECK(now > 40);
  CHECK(waited < now);
  CHECK(gathered < 8);
}

TEST_CASE("equal packers give equal steps, and another seed or epoch another order") {
  const auto samples = drawn(500, kinds().at("chat"));
  const pack_options o{.max_tokens = 8192, .replicas = 2, .batch_size = 64, .delay = 3, .seed = 4};
  auto a = packer_of(samples, o);
  auto b = packer_of(samples, o);
  auto other = o;
  other.seed = 5;
  auto c = packer_of(samples, other);
  const auto first = epoch_of(a);
  const auto again = epoch_of(b);
  REQUIRE(first.size() == again.size());
  for (std::size_t s = 0; s < first.size(); ++s) CHECK(same(first[s], again[s]));
  CHECK_FALSE(same(first[0], c.next()));
  CHECK_FALSE(same(first[0], a.next()));
}

TEST_CASE("a packer goes on from a position, also in the middle of an epoch") {
  const auto samples = drawn(3000, kinds().at("documents with a long tail"));
  const pack_options o{.microbatches = 4, .replicas = 2, .batch_size = 64, .delay = 6, .seed = 4};
  auto whole = packer_of(samples, o);
  epoch_of(whole);  // position 0 of epoch 1
  std::vector<pack_position> positions;
  std::vector<packed_step> steps;
  while (whole.position().epoch == 1) {
    positions.push_back(whole.position());
    steps.push_back(whole.next());
  }
  CHECK(std::any_of(positions.begin(), positions.end(),
                    [](const auto& p) { return !p.held.empty(); }));
  for (std::size_t from = 0; from < positions.size(); from += 7) {
    auto resumed = packer_of(samples, o);
    REQUIRE(resumed.go_to(positions[from]).ok());
    const auto rest = epoch_of(resumed);
    REQUIRE(rest.size() == steps.size() - from);
    for (std::size_t s = 0; s < rest.size(); ++s) CHECK(same(rest[s], steps[from + s]));
  }
}

TEST_CASE("drop_last leaves out a last step that is not full") {
  const std::vector<sample_work> samples(10, sample_work{1, 1});
  const auto steps = [&](std::size_t batch_size) {
    auto p = packer_of(samples, {.batch_size = batch_size, .drop_last = true});
    const auto first = epoch_of(p).size();
    CHECK(epoch_of(p).size() == first);
    return first;
  };
  CHECK(steps(4) == 2);
  CHECK(steps(5) == 2);
  CHECK(steps(10) == 1);
}

TEST_CASE("bad samples, options and positions are refused by their names") {
  const auto refusal = [](std::vector<sample_work> samples, const pack_options& options) {
    const auto made = packer::make(std::move(samples), options);
    return made ? std::string{"accepted"} : made.message();
  };
  const std::vector<sample_work> two(2, sample_work{5, 1});
  CHECK(refusal(two, {.max_tokens = 5}) == "accepted");
  CHECK(refusal({}, {}) == "samples: expected at least one, got none");
  CHECK(refusal(two, {.max_tokens = 4}) ==
        "samples[0]: expected at most max_tokens = 4 tokens, got 5");
  CHECK(refusal({{1, 1}, {0, 1}}, {}) == "samples[1]: expected 1 to 4294967296 tokens, got 0");
  CHECK(refusal({{1, -1}}, {}) ==
        "cost of samples[0]: expected a finite number >= 0, got -1.000000");
  CHECK(refusal({{1, std::nan("")}}, {}) ==
        "cost of samples[0]: expected a finite number >= 0, got nan");
  CHECK(refusal(two, {.replicas = 0}) == "replicas: expected an integer >= 1, got 0");
  CHECK(refusal(two, {.microbatches = 1000, .replicas = 1000}) ==
        "microbatches: expected replicas * microbatches <= 65536, got 1000 * 1000");
  CHECK(refusal(two, {.batch_size = 1, .batch_tokens = 2}) ==
        "batch_tokens: expected None with batch_size, got 2");
  CHECK(refusal(two, {.delay = 3}) ==
        "delay: expected 0 without batch_size and batch_tokens, because all samples are one step, "
        "got 3");
  CHECK(refusal(two, {.drop_last = true}) ==
        "drop_last: expected False without batch_size, got True");

  CHECK(refusal(two, {.batch_size = 3, .drop_last = true}) ==
        "batch_size: expected at most the 2 samples with drop_last, got 3");

  auto p = packer_of(two, {.batch_size = 1});
  CHECK(p.go_to({.next = 3}).message() ==
        "state: expected a place in an epoch of 2 samples, got 3");
  CHECK(p.go_to({.next = 2}).message() ==
        "state: expected a place in an epoch of 2 samples, got 2");
  CHECK(p.go_to({.step = 1, .held = {{2, 0}}}).message() ==
        "state: expected waiting samples below 2, got 2");
  CHECK(p.go_to({.step = 1, .held = {{1, 1}}}).message() ==
        "state: expected samples that wait since a step before 1, got 1");
  CHECK(p.position() == pack_position{});
}
