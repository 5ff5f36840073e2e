/// What packing by cost and readiness give together on samples of different lengths: simulated
/// steps of a pipeline with replicas.
///
///   cmake --preset release && cmake --build build/release --target packing_bench
///   build/release/bin/packing_bench              # a table, in the folder of the sources
///   build/release/bin/packing_bench --csv        # all rows as CSV
///
/// The lengths are those of real data: texts of Python's enhancement proposals (documents), Python
/// files of torch (code), requests to a chat service with their answers (chats), pages of a manual
/// with their images (images). The head of bench/lengths.py names the sources; samples are drawn
/// from the quantiles in bench/lengths.csv. A microbatch has room for `tokens`: the power of two
/// that holds the longest sample, at most 32,768; what is longer is cut. A step has 0.9 * 32 *
/// `tokens` tokens for each replica. Packings:
///
///   padded   every sample has the length of the longest one of its step, as fixed shapes require;
///            a microbatch holds as many as fit
///   tokens   samples in the order of the data, until a microbatch is full; dealt out to the
///            replicas in turn
///   cost     rrfp.pack(): equal work over microbatches and replicas, outliers wait up to 8 steps
///
/// Each packing runs in four ways, which give no device more memory than the first of 1F1B:
///
///   1F1B blocking   in order; send and receive are paired and waited for, as Schedule1F1B of
///                   torch.distributed.pipelining does
///   1F1B in order   messages do not block
///   BFW+ ready      by readiness, as many slots on every stage as 1F1B has on the first
///   BFW+ sorted     the same, and the smallest microbatches are admitted at both ends of a step
///
/// Work is FLOPs of Llama 3 8B at 40 % of 989 TFLOP/s a device, messages cross 50 GB/s, and tasks
/// and messages vary as the paper measured them. A step ends when the slowest replica does. The
/// speed-up is the time of all steps of `tokens` with 1F1B blocking, divided by that of the row.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/policies/registry.hpp>
#include <rrfp/simulate/keyed_random.hpp>
#include <rrfp/simulate/stage_costs.hpp>
#include <rrfp/study/presets.hpp>
#include <rrfp/workload/packer.hpp>
#include <rrfp/workload/work_model.hpp>

namespace {

using namespace rrfp;
using namespace rrfp::study;
using namespace rrfp::workload;
using random_source = simulate::keyed_random;

constexpr double flops_of_device = 0.4 * 989e12;  // a second
constexpr double bytes_a_second = 50e9;
constexpr double latency_ms = 0.02;
constexpr std::uint32_t microbatches_of_replica = 32;
constexpr std::uint64_t tokens_max_of_all = 32'768;
constexpr std::uint64_t tokens_of_tile = 256;
constexpr double patches_of_tile = 1024;
constexpr std::uint64_t seeds = 3;
constexpr std::size_t steps = 12;

template <class T>
T value_or_exit(result<T> r) {
  if (r) return std::move(*r);
  std::fprintf(stderr, "packing_bench: %s\n", r.message().c_str());
  std::exit(1);
}

/// Samples of one kind, from the shortest to the longest, equally far apart in their order.
struct data_kind {
  struct length {
    std::uint64_t text = 0, tiles = 0;
    std::uint64_t tokens() const { return text + tokens_of_tile * tiles; }
  };
  std::string name;
  std::vector<length> lengths = {};
  std::uint64_t tokens_max = 1;  ///< of a microbatch

  sample_work draw(random_source& random, const work_model& model) const {
    const auto place = random.uniform() * static_cast<double>(lengths.size() - 1);
    const auto at = static_cast<std::size_t>(place);
    auto [text, tiles] = lengths[at];
    if (tiles == 0 && text > 0)
      text = static_cast<std::uint64_t>(
          std::round(static_cast<double>(text) *
                     std::pow(static_cast<double>(lengths[at + 1].text) / static_cast<double>(text),
                              place - static_cast<double>(at))));
    text = std::clamp<std::uint64_t>(text, 16, tokens_max);
    tiles = std::min(tiles, (tokens_max - text) / tokens_of_tile);
    const auto tokens = text + tokens_of_tile * tiles;
    return {tokens,
            model.work_of(static_cast<double>(tokens), std::vector(tiles, patches_of_tile))};
  }
};

std::vector<data_kind> kinds_in(const char* file) {
  std::vector<data_kind> kinds;
  std::ifstream in{file};
  std::string line;
  std::getline(in, line);  // the names of the columns
  while (std::getline(in, line)) {
    char name[32] = {};
    unsigned long long text = 0, tiles = 0;
    if (std::sscanf(line.c_str(), "%31[^,],%llu,%llu", name, &text, &tiles) != 3) break;
    if (kinds.empty() || kinds.back().name != name) kinds.push_back({name});
    auto& kind = kinds.back();
    kind.lengths.push_back({text, tiles});
    while (kind.tokens_max < std::min(kind.lengths.back().tokens(), tokens_max_of_all))
      kind.tokens_max *= 2;
  }
  if (kinds.empty() || !in.eof()) {
    std::fprintf(stderr, "packing_bench: %s: expected lines KIND,TOKENS,TILES, got '%s'\n", file,
                 line.c_str());
    std::exit(2);
  }
  return kinds;
}

/// The work and the tokens of the microbatches of a replica in a step.
using microbatches = std::vector<sample_work>;
struct packed_work {
  std::vector<microbatches> replicas;
  double largest_sample = 0;
};
using packed = std::vector<packed_work>;  ///< by step

double largest_of(std::span<const sample_work> samples) {
  double largest = 0;
  for (const auto& s : samples) largest = std::max(largest, s.work);
  return largest;
}

/// The samples of a step, from those that have not been in one.
std::size_t end_of_step(const std::vector<sample_work>& samples, std::size_t first,
                        std::uint64_t tokens) {
  for (std::uint64_t sum = 0; first < samples.size(); ++first)
    if ((sum += samples[first].tokens) > tokens) break;
  return first;
}

/// `cut`: the microbatches of the samples of a step, which are dealt out to the replicas in turn.
packed dealt(const std::vector<sample_work>& samples, std::uint32_t replicas,
             std::uint64_t tokens_of_step, auto cut) {
  packed all;
  for (std::size_t first = 0; first < samples.size();) {
    const auto end = end_of_step(samples, first, tokens_of_step);
    const auto of_step = std::span{samples}.subspan(first, end - first);
    const microbatches made = cut(of_step);
    auto& step = all.emplace_back(std::vector<microbatches>(replicas), largest_of(of_step));
    for (std::size_t i = 0; i < made.size(); ++i) step.replicas[i % replicas].push_back(made[i]);
    first = end;
  }
  return all;
}

packed by_tokens(const std::vector<sample_work>& samples, std::uint32_t replicas,
                 std::uint64_t tokens_max, std::uint64_t tokens_of_step) {
  return dealt(samples, replicas, tokens_of_step, [&](std::span<const sample_work> of_step) {
    microbatches made(1);
    for (const auto& sample : of_step) {
      if (made.back().tokens + sample.tokens > tokens_max) made.emplace_back();
      made.back().tokens += sample.tokens;
      made.back().work += sample.work;
    }
    return made;
  });
}

packed padded(const std::vector<sample_work>& samples, std::uint32_t replicas,
              std::uint64_t tokens_max, std::uint64_t tokens_of_step) {
  return dealt(samples, replicas, tokens_of_step, [&](std::span<const sample_work> of_step) {
    const auto longest =
        *std::max_element(of_step.begin(), of_step.end(),
                          [](const auto& a, const auto& b) { return a.work < b.work; });
    const auto rows = std::max<std::size_t>(tokens_max / longest.tokens, 1);
    microbatches made;
    for (std::size_t first = 0; first < of_step.size(); first += rows) {
      const auto here = std::min(rows, of_step.size() - first);
      made.push_back({longest.tokens * here, longest.work * static_cast<double>(here)});
    }
    return made;
  });
}

packed by_cost(const std::vector<sample_work>& samples, std::uint32_t replicas,
               std::uint64_t tokens_max, std::uint64_t tokens_of_step) {
  auto packing = value_or_exit(packer::make(samples, {.max_tokens = tokens_max,
                                                      .microbatches = microbatches_of_replica,
                                                      .replicas = replicas,
                                                      .batch_tokens = tokens_of_step,
                                                      .delay = 8,
                                                      .shuffle = false}));
  packed all;
  while (packing.position().epoch == 0) {
    auto& step = all.emplace_back();
    for (const auto& parts : packing.next().replicas) {
      auto& replica = step.replicas.emplace_back();
      for (const auto& part : parts) {
        replica.emplace_back();
        for (const auto i : part) {
          replica.back().tokens += samples[i].tokens;
          replica.back().work += samples[i].work;
          step.largest_sample = std::max(step.largest_sample, samples[i].work);
        }
      }
    }
    step.replicas.resize(replicas);
  }
  return all;
}

class work_costs final : public simulate::microbatch_costs {
 public:
  work_costs(const packed& all, std::uint32_t replica, std::uint32_t stages, std::uint32_t hidden)
      : all_(all), replica_(replica), stages_(stages), hidden_(hidden) {}

  double task_ms(step_id step, stage_id, task_kind, microbatch_id mb) const override {
    // F, B and W cost about the same.
    return 1e3 * at(step, mb).work / 3 / stages_ / flops_of_device;
  }
  double message_ms(step_id step, stage_id lower, microbatch_id mb) const override {
    return latency_ms + 1e3 * static_cast<double>(message_bytes(step, lower, mb)) / bytes_a_second;
  }
  std::uint64_t activation_bytes(step_id step, stage_id, microbatch_id mb) const override {
    return at(step, mb).tokens;
  }
  std::uint64_t message_bytes(step_id step, stage_id, microbatch_id mb) const override {
    return at(step, mb).tokens * hidden_ * 2;
  }

 private:
  /// Nothing beyond those of the step.
  sample_work at(step_id step, microbatch_id mb) const {
    const auto& of_step = all_[step.value()].replicas[replica_];
    return mb.value() < of_step.size() ? of_step[mb.value()] : sample_work{};
  }

  const packed& all_;
  const std::uint32_t replica_, stages_, hidden_;
};

struct way {
  std::string_view name;
  std::string_view policy;
  dispatch_mode mode = dispatch_mode::in_order;
  simulate::transport messages = simulate::transport::asynchronous;
  bool is_sorted = false;
};
constexpr way ways[] = {
    {"1F1B blocking", "one_f_one_b", dispatch_mode::in_order, simulate::transport::blocking},
    {"1F1B in order", "one_f_one_b"},
    {"BFW+ ready", "bfw_plus", dispatch_mode::ready},
    {"BFW+ sorted", "bfw_plus", dispatch_mode::ready, simulate::transport::asynchronous, true}};

/// Seconds of all steps.
double simulated(const packed& all, std::uint32_t stages, const way& how, std::uint64_t seed) {
  std::vector<double> of_step(all.size());
  const auto replicas = static_cast<std::uint32_t>(all.front().replicas.size());
  for (std::uint32_t d = 0; d < replicas; ++d) {
    std::uint32_t most = 1;
    for (const auto& step : all)
      most = std::max(most, static_cast<std::uint32_t>(step.replicas[d].size()));
    const pipeline_shape shape{stages, 1, most, placement::linear};
    simulate::stage_costs_options options;
    options.by_microbatch = std::make_shared<work_costs>(all, d, stages, 4096);
    const auto level = simulate::conditions_of("measured");
    static_cast<simulate::conditions&>(options.jitter) = level.value();
    options.jitter.seed = seed + (std::uint64_t{d} << 32);
    const auto costs = simulate::stage_costs(shape, options);
    simulate::plan plan;
    plan.shape = shape;
    plan.steps = all.size();
    plan.microbatches = [&](step_id step) {
      return static_cast<std::uint32_t>(all[step.value()].replicas[d].size());
    };
    plan.rule.mode = how.mode;
    plan.rule.make_policy = [&](const pipeline_shape& of, stage_id s) {
      return value_or_exit(policies::registry().make(how.policy, of))->make(s);
    };
    plan.limit.slots = stages;
    plan.messages = how.messages;
    const auto ran = value_or_exit(simulate::run(plan, costs));
    for (std::size_t i = 0; i < all.size(); ++i)
      of_step[i] = std::max(of_step[i], static_cast<double>(ran.steps[i].makespan) * 1e-9);
  }
  return std::accumulate(of_step.begin(), of_step.end(), 0.0);
}

/// The microbatches of each replica in the order of admission, which readiness may choose.
packed small_large_small(packed all) {
  for (auto& step : all)
    for (auto& replica : step.replicas) {
      std::vector<double> work;
      for (const auto& mb : replica) work.push_back(mb.work);
      microbatches admitted;
      for (const auto i : admission_order(admission::small_large_small, work))
        admitted.push_back(replica[i]);
      replica = std::move(admitted);
    }
  return all;
}

/// What all microbatches (replicas) would have to do as the largest of their step, over what they
/// do; the same over the least that is possible, in which the largest microbatch is the mean or the
/// largest sample; and microbatches a replica. The table shows those of the last seed.
struct balance {
  double microbatches = 0, replicas = 0, possible = 0, count = 0;
};

balance balance_of(const packed& all) {
  double work = 0, microbatches = 0, replicas = 0, least = 0, count = 0;
  for (const auto& step : all) {
    double of_step = 0, largest_microbatch = 0, largest_replica = 0, n = 0;
    for (const auto& replica : step.replicas) {
      double of_replica = 0;
      for (const auto& mb : replica) {
        of_replica += mb.work;
        largest_microbatch = std::max(largest_microbatch, mb.work);
      }
      of_step += of_replica;
      largest_replica = std::max(largest_replica, of_replica);
      n += static_cast<double>(replica.size());
    }
    const auto of_replicas = static_cast<double>(step.replicas.size());
    work += of_step;
    microbatches += largest_microbatch * n;
    replicas += largest_replica * of_replicas;
    least += std::max(of_step, step.largest_sample * n);
    count += n / of_replicas;
  }
  return {microbatches / work, replicas / work, microbatches / least,
          count / static_cast<double>(all.size())};
}

void measure(const data_kind& kind, std::uint32_t stages, std::uint32_t replicas, bool csv) {
  const auto model = training_flops(preset("llama3-8b-internvit").value());
  const auto tokens_of_step = replicas * microbatches_of_replica * kind.tokens_max * 9 / 10;
  struct packing {
    std::string_view name;
    packed (*make)(const std::vector<sample_work>&, std::uint32_t, std::uint64_t, std::uint64_t);
  };
  constexpr packing packings[] = {{"padded", padded}, {"tokens", by_tokens}, {"cost", by_cost}};
  double seconds[3][4] = {};
  balance balances[3];
  // Padding takes many times as long, in every way.
  const auto is_measured = [&](int p, std::size_t w) { return p != 0 || w == 0; };
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    random_source random{seed + 7};
    std::vector<sample_work> samples;
    for (std::uint64_t tokens = 0; tokens < steps * tokens_of_step;) {
      samples.push_back(kind.draw(random, model));
      tokens += samples.back().tokens;
    }
    for (int p = 0; p < 3; ++p) {
      const auto all = packings[p].make(samples, replicas, kind.tokens_max, tokens_of_step);
      balances[p] = balance_of(all);
      for (std::size_t w = 0; w < std::size(ways); ++w)
        if (is_measured(p, w))
          seconds[p][w] +=
              simulated(ways[w].is_sorted ? small_large_small(all) : all, stages, ways[w], seed);
    }
  }
  for (int p = 0; p < 3; ++p)
    for (std::size_t w = 0; w < std::size(ways); ++w)
      if (is_measured(p, w))
        std::printf(csv ? "%s,%u,%u,%s,%s,%.1f,%.3f,%.3f,%.3f,%.4f\n"
                        : "%-10s %6u %8u  %-7s %-14s %6.1f %8.3f %8.3f %8.3f %8.3f\n",
                    kind.name.c_str(), stages, replicas, std::string{packings[p].name}.c_str(),
                    std::string{ways[w].name}.c_str(), balances[p].count, balances[p].microbatches,
                    balances[p].possible, balances[p].replicas, seconds[1][0] / seconds[p][w]);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const bool csv = argc > 1 && std::string_view{argv[1]} == "--csv";
  std::printf(csv ? "data,stages,replicas,packing,dispatch,microbatches,mb/mean,mb/possible,"
                    "replica/mean,speedup\n"
                  : "data       stages replicas  packing dispatch           mb  mb/mean  mb/poss "
                    "repl/mean  speedup\n");
  for (const auto& kind : kinds_in("bench/lengths.csv"))
    for (const auto& [stages, replicas] :
         {std::pair{4U, 1U}, {8U, 1U}, {8U, 4U}, {16U, 4U}, {32U, 8U}})
      measure(kind, stages, replicas, csv);
}
