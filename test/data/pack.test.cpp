// data.pack = "cost": the samples of a step in microbatches of about equal work.
#include <algorithm>
#include <numeric>
#include <set>

#include <rrfp/compute/estimate.hpp>
#include <rrfp/workload/partition.hpp>

#include "support.hpp"

namespace rrfp::data::test {

namespace {

/// Documents of 1 to 60 bytes, most of them short.
std::string documents(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i)
    lines +=
        "{\"text\": \"" + std::string(static_cast<std::size_t>(1 + i * i * 31 % 60), 'x') + "\"}\n";
  return lines;
}

source_config balanced(source_config config, std::uint32_t replicas = 1) {
  config.data.pack = job::sample_packing::cost;
  config.replicas = replicas;
  config.model.layers = 2;
  config.model.hidden = 16;
  config.model.heads = 2;
  return config;
}

/// The sequences of all microbatches of a step, sorted.
std::vector<std::string> texts_of(const source& s, const source_config& config, step_id step) {
  std::vector<std::string> all;
  for (std::uint32_t mb = 0; mb < s.counts(step).or_equal(1, config.microbatches).total(); ++mb)
    for (auto& text : inputs_of(s.load(step, microbatch_id{mb}))) all.push_back(std::move(text));
  std::sort(all.begin(), all.end());
  return all;
}

/// The work of each microbatch of a step, in the model of `config`.
std::vector<double> work_of(const source& s, const source_config& config, step_id step) {
  std::vector<double> work;
  for (std::uint32_t mb = 0; mb < config.microbatches; ++mb)
    work.push_back(compute::training_flops(config.model, s.layout(step, microbatch_id{mb})));
  return work;
}

}  // namespace

TEST_CASE("packing by cost keeps the samples of each step and evens out the work") {
  const scratch_folder folder;
  auto config = config_of([&](job::data_options& d) {
    d.jsonl = {write(folder / "a.jsonl", documents(100))};
    d.microbatch_size = 6;
  });
  const auto even = balanced(config);
  const auto in_order = open_good(config);
  const auto by_cost = open_good(even);
  check_promises(*by_cost, even);
  for (std::uint64_t k = 0; k < 20; ++k) {
    const step_id step{k};
    CHECK(texts_of(*by_cost, even, step) == texts_of(*in_order, config, step));
    CHECK(by_cost->step_tokens(step) == in_order->step_tokens(step));
    CHECK(workload::imbalance(work_of(*by_cost, even, step)) < 1.05);
  }
  CHECK(workload::imbalance(work_of(*in_order, even, step_id{0})) > 1.1);
  // A pure function of the step: whatever was loaded before, and on every node.
  const auto again = open_good(even);
  for (const std::uint64_t k : {19U, 3U, 12U})
    for (std::uint32_t mb = 0; mb < even.microbatches; ++mb)
      CHECK(same(again->load(step_id{k}, microbatch_id{mb}),
                 by_cost->load(step_id{k}, microbatch_id{mb})));
}

TEST_CASE("replicas have about equal work, each with its microbatches in a row") {
  const scratch_folder folder;
  auto config = config_of([&](job::data_options& d) {
    d.jsonl = {write(folder / "a.jsonl", documents(300))};
    d.microbatch_size = 4;
  });
  config.microbatches = 12;
  const auto even = balanced(config, 3);
  const auto s = open_good(even);
  check_promises(*s, even);
  for (std::uint64_t k = 0; k < 10; ++k) {
    const auto work = work_of(*s, even, step_id{k});
    std::vector<double> of_replicas;
    for (auto first = work.begin(); first != work.end(); first += 4)
      of_replicas.push_back(std::accumulate(first, first + 4, 0.0));
    CHECK(workload::imbalance(of_replicas) < 1.01);
  }
}

TEST_CASE("a microbatch has at most the tokens of microbatch_size whole sequences") {
  const scratch_folder folder;
  // Two whole sequences and six short ones: four of equal work would have too many tokens.
  std::string lines;
  for (const auto length : {63, 63, 61, 62, 60, 59, 58, 57})
    lines += "{\"text\": \"" + std::string(static_cast<std::size_t>(length), 'x') + "\"}\n";
  auto config = config_of([&](job::data_options& d) {
    d.jsonl = {write(folder / "a.jsonl", lines)};
    d.microbatch_size = 2;
  });
  const auto even = balanced(config);
  const auto s = open_good(even);
  check_promises(*s, even);
  for (std::uint32_t mb = 0; mb < 4; ++mb)
    CHECK(s->layout(step_id{0}, microbatch_id{mb}).lengths.size() == 2);
}

TEST_CASE("with a limit of tokens the samples of a step decide its microbatches") {
  const scratch_folder folder;
  auto config = config_of([&](job::data_options& d) {
    d.jsonl = {write(folder / "a.jsonl", documents(100))};
    d.microbatch_size = 6;
  });
  const auto in_order = open_good(config);
  auto limited = balanced(config, 2);
  limited.data.max_tokens = 150;
  const auto s = open_good(limited);
  check_promises(*s, limited);
  std::set<std::uint32_t> totals;
  for (std::uint64_t k = 0; k < 20; ++k) {
    const step_id step{k};
    const auto counts = s->counts(step);
    CHECK(texts_of(*s, limited, step) == texts_of(*in_order, config, step));
    REQUIRE(counts.by_replica.size() == 2);
    CHECK(counts.of(replica_id{0}) == counts.of(replica_id{1}));
    totals.insert(counts.total());
    // A microbatch less for each replica would not do.
    std::int64_t tokens = 0;
    for (std::uint32_t mb = 0; mb < counts.total(); ++mb)
      tokens += s->load_text(step, microbatch_id{mb}).inputs.numel();
    CHECK(tokens > 150 * (static_cast<std::int64_t>(counts.total()) - 2));
    CHECK_NOTHROW(s->begin(step, counts));
  }
  CHECK(totals.size() > 1);
  CHECK(in_order->counts(step_id{0}).empty());
  CHECK_THROWS_WITH(s->begin(step_id{0}, {{1, 9}}),
                    "expected the microbatches of each replica that node 0 has, 1, 9, got 3, 3 "
                    "with the same data: its program or its processor computes others");
}

TEST_CASE("with a delay, long samples wait for each other and each is trained on once") {
  const scratch_folder folder;
  // One document in 16 is long: alone in its step, it leaves the other microbatches waiting.
  std::string lines;
  for (int i = 0; i < 128; ++i)
    lines += "{\"text\": \"" + std::string(i % 16 == 3 ? 63 : 6, 'x') + "\"}\n";
  auto config = balanced(config_of([&](job::data_options& d) {
                           d.jsonl = {write(folder / "a.jsonl", lines)};
                           d.order = job::sample_order::file;
                           d.microbatch_size = 4;
                           d.max_tokens = 64;
                         }),
                         2);
  config.microbatches = 4;
  const auto plain = open_good(config);
  auto delayed = config;
  delayed.data.pack_delay = 3;
  const auto s = open_good(delayed);
  check_promises(*s, delayed);
  const auto is_long = [](const std::string& text) { return text.size() > 40; };
  std::vector<std::int64_t> of_steps;
  for (std::uint64_t first = 0; first < 8; first += 4) {
    std::vector<std::string> all, want;
    std::int64_t tokens = 0;
    for (auto k = first; k < first + 4; ++k) {
      const auto texts = texts_of(*s, delayed, step_id{k});
      CHECK(texts.size() == 16);
      of_steps.push_back(std::ranges::count_if(texts, is_long));
      all.insert(all.end(), texts.begin(), texts.end());
      const auto own = texts_of(*plain, config, step_id{k});
      CHECK(std::ranges::count_if(own, is_long) == 1);
      want.insert(want.end(), own.begin(), own.end());
      tokens += s->step_tokens(step_id{k}) - plain->step_tokens(step_id{k});
    }
    std::ranges::sort(all);
    std::ranges::sort(want);
    CHECK(all == want);
    CHECK(tokens == 0);
  }
  CHECK(of_steps == std::vector<std::int64_t>{0, 0, 0, 4, 0, 0, 0, 4});
  // A pure function of the step.
  const auto again = open_good(delayed);
  for (const std::uint64_t k : {6U, 1U, 3U}) {
    CHECK(again->counts(step_id{k}) == s->counts(step_id{k}));
    CHECK(texts_of(*again, delayed, step_id{k}) == texts_of(*s, delayed, step_id{k}));
  }
}

TEST_CASE("more replicas than samples leave some without a microbatch") {
  const scratch_folder folder;
  auto config = balanced(config_of([&](job::data_options& d) {
                           d.jsonl = {write(folder / "a.jsonl", documents(9))};
                           d.microbatch_size = 1;
                           d.max_tokens = 1000;
                         }),
                         3);
  config.microbatches = 2;
  const auto s = open_good(config);
  const auto counts = s->counts(step_id{0});
  CHECK(counts.total() == 2);
  CHECK(std::ranges::count(counts.by_replica, 0U) == 1);
}

TEST_CASE("the work of images counts") {
  auto config = config_of([&](job::data_options& d) {
    d.shapes = 200;
    d.microbatch_size = 8;
    d.sequence_length = 192;
  });
  auto even = balanced(config);
  even.model.vision.layers = 2;
  even.model.vision.hidden = 64;
  even.model.vision.heads = 2;
  even.model.vision.patch = even.patch;
  const auto s = open_good(even);
  check_promises(*s, even);
  const auto in_order = open_good(config);
  double before = 0, after = 0;
  for (std::uint64_t k = 0; k < 6; ++k) {
    CHECK(texts_of(*s, even, step_id{k}) == texts_of(*in_order, config, step_id{k}));
    before += workload::imbalance(work_of(*in_order, even, step_id{k})) / 6;
    after += workload::imbalance(work_of(*s, even, step_id{k})) / 6;
  }
  CHECK(after < 1.03);
  CHECK(before > 1.1);
}

TEST_CASE("windows of a token file have equal work, so they stay in order") {
  const scratch_folder folder;
  write(folder / "a.json",
        "{\"format\": \"rrfp-tokens\", \"version\": 1, \"dtype\": \"uint16\", \"tokens\": 400, "
        "\"vocabulary\": 256}");
  std::string bytes;
  for (int i = 0; i < 400; ++i) {
    bytes += static_cast<char>(i % 256);
    bytes += '\0';
  }
  auto config = config_of([&](job::data_options& d) {
    d.tokens = {write(folder / "a.bin", bytes)};
    d.sequence_length = 8;
  });
  const auto even = balanced(config);
  const auto s = open_good(even);
  const auto in_order = open_good(config);
  for (std::uint32_t mb = 0; mb < config.microbatches; ++mb)
    CHECK(same(s->load(step_id{1}, microbatch_id{mb}),
               in_order->load(step_id{1}, microbatch_id{mb})));
  // A limit of tokens holds for them, too: 12 windows, three in a microbatch at most.
  auto limited = even;
  limited.data.max_tokens = 31;
  const auto few = open_good(limited);
  check_promises(*few, limited);
  CHECK(few->counts(step_id{0}).total() == 4);
}

}  // namespace rrfp::data::test
