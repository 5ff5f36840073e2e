/// Measures the cost of an all-reduce between threads of one process.
///
///   scripts/build release collective_bench
///   build/release/bin/collective_bench [--benchmark_filter=...]
///
/// all_reduce/RANKS/BYTES is the time per call when all ranks do nothing else. With /parallel in
/// the name, all ranks reduce; with /last, only the last rank to arrive does (by default, the size
/// decides: in_process_options::parallel_bytes_min). channel/direct and channel/parts are the two
/// algorithms of the channel implementation, over a mailbox in this process
/// (channel_options::direct_bytes_max decides).
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <benchmark/benchmark.h>

#include <rrfp/tp_coord/channel_collective.hpp>
#include <rrfp/tp_coord/in_process_collective.hpp>

#include "../test/support/local_channel.hpp"

namespace {

using namespace rrfp;
using namespace rrfp::tp_coord;

using group = std::vector<std::unique_ptr<collective>>;
using group_maker = std::function<group(std::uint32_t)>;

group_maker in_process(std::size_t parallel_bytes_min) {
  return [=](std::uint32_t size) {
    return make_in_process_group(size, {std::chrono::seconds(30), parallel_bytes_min});
  };
}

group_maker over_channel(std::size_t direct_bytes_max) {
  return [=](std::uint32_t size) {
    const auto post = std::make_shared<testing::local_post_office>();
    group members;
    for (std::uint32_t r = 0; r < size; ++r) {
      members.push_back(
          make_channel_collective(std::make_shared<testing::local_channel>(rank_id{r}, size, post),
                                  {std::chrono::seconds(30), direct_bytes_max}));
    }
    return members;
  };
}

/// The first element of rank 0 tells the other ranks whether to continue.
void measure(benchmark::State& state, const group_maker& make) {
  const auto ranks = static_cast<std::uint32_t>(state.range(0));
  const auto count = static_cast<std::size_t>(state.range(1)) / sizeof(float);
  auto members = make(ranks);
  std::vector<std::thread> others;
  for (std::uint32_t r = 1; r < ranks; ++r) {
    others.emplace_back([&, r] {
      std::vector<float> x(count);
      do {
        x[0] = 0;
        if (!members[r]->all_reduce(operation::sum, x.data(), count, element::float32)) return;
      } while (x[0] == 0);
    });
  }
  std::vector<float> x(count);
  bool failed = false;
  for (auto _ : state) {
    x[0] = 0;
    failed |= !members[0]->all_reduce(operation::sum, x.data(), count, element::float32);
  }
  x[0] = 1;
  failed |= !members[0]->all_reduce(operation::sum, x.data(), count, element::float32);
  for (auto& t : others) t.join();
  if (failed) state.SkipWithError("an all-reduce failed");
  state.SetBytesProcessed(state.iterations() * state.range(1));
}

void register_one(const std::string& name, const group_maker& make) {
  auto* b =
      benchmark::RegisterBenchmark(name.c_str(), [make](benchmark::State& s) { measure(s, make); });
  for (const int ranks : {2, 4, 8, 16}) {
    for (const int kib : {1, 16, 64, 256, 1024}) b->Args({ranks, kib * 1024});
  }
  b->UseRealTime()->MinTime(0.1)->Unit(benchmark::kMicrosecond);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  constexpr auto always = std::size_t(-1);
  register_one("all_reduce", in_process(in_process_options{}.parallel_bytes_min));
  register_one("all_reduce/parallel", in_process(0));
  register_one("all_reduce/last", in_process(always));
  register_one("channel/direct", over_channel(std::size_t{1} << 20));
  register_one("channel/parts", over_channel(0));
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
