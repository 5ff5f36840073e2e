/// Measures the packer: its time, and the work of the largest microbatch and replica over the mean.
/// Goals: 100,000 samples in less than a second on one core; at most 3 % above the mean where no
/// sample has more work than a microbatch.
///
///   cmake --preset release && cmake --build build/release --target pack_bench
///   build/release/bin/pack_bench
///
/// Each row packs an epoch of 100,000 samples whose FLOPs are those of the model. `kept` is the
/// work of all microbatches divided by what they would have if each had that of the largest of its
/// step: the share of the time that a pipeline with equal stages computes.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string_view>
#include <vector>

#include <rrfp/simulate/keyed_random.hpp>
#include <rrfp/study/presets.hpp>
#include <rrfp/workload/packer.hpp>
#include <rrfp/workload/work_model.hpp>

namespace {

using namespace rrfp;
using namespace rrfp::study;
using namespace rrfp::workload;
using random_source = simulate::keyed_random;

constexpr std::size_t samples_of_epoch = 100'000;

double lognormal(random_source& random, double median, double sigma) {
  return median * std::exp(sigma * random.normal());
}

sample_work text(const work_model& model, double tokens, double most) {
  const auto n = std::clamp(std::round(tokens), 1.0, most);
  return {static_cast<std::uint64_t>(n), model.work_of(n)};
}

/// P(tokens > x) = (least / x)^exponent.
double pareto(random_source& random, double least, double exponent) {
  return least * std::pow(1 - random.uniform(), -1 / exponent);
}

struct data_kind {
  std::string_view name;
  std::string_view model;
  std::function<sample_work(random_source&, const work_model&)> draw;
};

const std::vector<data_kind>& kinds() {
  static const std::vector<data_kind> all{
      {"lognormal", "llama3-8b-internvit",
       [](random_source& r, const work_model& m) { return text(m, lognormal(r, 500, 1), 8192); }},
      {"zipf 1.2", "llama3-8b-internvit",
       [](random_source& r, const work_model& m) { return text(m, pareto(r, 100, 1.2), 131'072); }},
      {"zipf, cut at 8k", "llama3-8b-internvit",
       [](random_source& r, const work_model& m) { return text(m, pareto(r, 100, 1.2), 8192); }},
      {"chat", "qwen3-32b-internvit",
       [](random_source& r, const work_model& m) {
         const auto turns = 1 + static_cast<int>(std::floor(pareto(r, 1, 1.5)));
         double tokens = 0;
         for (int i = 0; i < std::min(turns, 20); ++i) tokens += lognormal(r, 120, 0.9);
         return text(m, tokens, 8192);
       }},
      {"images", "qwen3-1.7b-vit-h",
       [](random_source& r, const work_model& m) {
         const std::vector<double> patches(static_cast<std::size_t>(r.uniform() * 5), 256);
         const auto tokens =
             std::round(lognormal(r, 150, 0.8)) + 1 + 256.0 * static_cast<double>(patches.size());
         return sample_work{static_cast<std::uint64_t>(tokens), m.work_of(tokens, patches)};
       }},
  };
  return all;
}

void measure(const data_kind& kind, const pack_options& options) {
  random_source random{7};
  const auto model = training_flops(preset(kind.model).value());
  std::vector<sample_work> samples;
  for (std::size_t i = 0; i < samples_of_epoch; ++i) samples.push_back(kind.draw(random, model));
  const auto began = std::chrono::steady_clock::now();
  auto packing = packer::make(samples, options);
  std::vector<packed_step> steps;
  while (packing.value().position().epoch == 0) steps.push_back(packing.value().next());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
  double of_microbatches = 0, of_replicas = 0, worst = 0, work_sum = 0, kept_sum = 0;
  std::size_t microbatches = 0;
  for (const auto& step : steps) {
    std::vector<double> work, of_replica;
    for (const auto& parts : step.replicas) {
      of_replica.push_back(0);
      for (const auto& part : parts) {
        work.push_back(0);
        for (const auto i : part) work.back() += samples[i].work;
        of_replica.back() += work.back();
      }
    }
    microbatches += work.size();
    for (const auto w : work) work_sum += w;
    kept_sum += *std::max_element(work.begin(), work.end()) * static_cast<double>(work.size());
    of_microbatches += imbalance(work);
    of_replicas += imbalance(of_replica);
    worst = std::max(worst, imbalance(work));
  }
  const auto count = static_cast<double>(steps.size());
  std::printf("%-16.*s %5u %6u %4u %4u %6llu %7zu %8.2f %9.3f %8.4f %8.4f %8.4f %7.3f\n",
              static_cast<int>(kind.name.size()), kind.name.data(),
              static_cast<unsigned>(options.batch_size), static_cast<unsigned>(options.max_tokens),
              options.replicas, options.microbatches,
              static_cast<unsigned long long>(options.delay), steps.size(),
              static_cast<double>(microbatches) / count, seconds.count(), of_microbatches / count,
              worst, of_replicas / count, work_sum / kept_sum);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view wanted = argc > 1 ? argv[1] : "";
  std::printf(
      "samples          batch tokens repl   mb  delay   steps mb/step   seconds mb/mean    worst "
      "repl/mean   kept\n");
  for (const auto& kind : kinds()) {
    if (!kind.name.starts_with(wanted)) continue;
    measure(kind, {.microbatches = 8, .replicas = 1, .batch_size = 128});
    measure(kind, {.microbatches = 8, .replicas = 4, .batch_size = 512});
    measure(kind, {.max_tokens = 131'072, .microbatches = 8, .replicas = 4, .batch_size = 512});
    measure(kind, {.max_tokens = 131'072, .replicas = 4, .batch_size = 4096});
    measure(kind, {.max_tokens = 131'072, .replicas = 8});
    measure(kind, {.microbatches = 8, .replicas = 4, .batch_size = 512, .delay = 8});
    measure(kind, {.microbatches = 8, .replicas = 1, .batch_size = 512, .delay = 8});
    if (kind.name == "zipf 1.2") continue;
    measure(kind, {.max_tokens = 8192, .replicas = 4, .batch_size = 512});
    measure(kind, {.max_tokens = 8192, .microbatches = 8, .replicas = 4, .batch_tokens = 200'000});
  }
}
