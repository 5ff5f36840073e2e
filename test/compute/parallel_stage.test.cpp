/// Sharded models: what each rank holds, reports and restores, and the errors when ranks disagree
/// or are missing.
#include <map>

#include <ATen/ATen.h>
#include <catch2/catch.hpp>

#include <rrfp/compute/estimate.hpp>
#include <rrfp/compute/parameters.hpp>
#include <rrfp/torch/model.hpp>
#include <rrfp/torch/stage_compute.hpp>

#include "pipeline.hpp"
#include "ranks.hpp"
#include "small_model.hpp"

namespace rrfp::compute::test::parallel_stage {

namespace {

job::model_options wide_model() {
  auto m = small_model();
  m.heads = 8;
  return m;
}

/// A group for shapes only; it runs no collective.
class lonely_group final : public rank_group {
 public:
  lonely_group(std::uint32_t rank, std::uint32_t size) : rank_(rank), size_(size) {}
  std::uint32_t rank() const override { return rank_; }
  std::uint32_t size() const override { return size_; }
  void all_reduce_sum(const tensor_buffer&) override { throw group_error("alone"); }
  void all_reduce_max(const tensor_buffer&) override { throw group_error("alone"); }
  void set_task(step_id, const launch&) override {}

 private:
  std::uint32_t rank_, size_;
};

std::unique_ptr<stage_compute> stage_of_rank(const job::model_options& model,
                                             const shared_group& group,
                                             std::uint32_t microbatches = 2) {
  std::vector<std::unique_ptr<stage_module>> chunks;
  chunks.push_back(make_model_chunk(model, nth_part(model, 0, 1), 1, group).value());
  const pipeline_shape shape{1, 1, microbatches, placement::linear};
  return stage_compute::make({shape, stage_id{0}, small_train(), group}, std::move(chunks),
                             std::make_shared<uneven_source>(microbatches))
      .value();
}

launch launch_of(task_kind kind, std::uint32_t mb, std::uint64_t seq) {
  launch l;
  l.seq = launch_seq{seq};
  l.what = {kind, microbatch_id{mb}, chunk_id{0}};
  return l;
}

/// The error that `work` throws, as text, or "none".
template <class Work>
std::string caught(Work work) {
  try {
    work();
  } catch (const compute_error& e) {
    return (e.fault() == compute_fault::collective ? "collective: " : "other: ") +
           std::string(e.what());
  }
  return "none";
}

}  // namespace

TEST_CASE("each rank's parameters are slices of the parameters of one rank") {
  auto model = wide_model();
  model.tied_head = GENERATE(false, true);
  const auto whole = make_model_chunk(model, nth_part(model, 0, 1), 1).value();
  for (const auto ranks : {1u, 2u, 4u, 8u}) {
    std::vector<std::vector<named_tensor>> of_ranks;
    for (std::uint32_t r = 0; r < ranks; ++r) {
      const auto chunk = make_model_chunk(model, nth_part(model, 0, 1), 1,
                                          std::make_shared<lonely_group>(r, ranks))
                             .value();
      auto& mine = of_ranks.emplace_back();
      const auto expected = whole->parameters();
      REQUIRE(chunk->parameters().size() == expected.size());
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const auto& p = chunk->parameters()[i];
        INFO(p.name << " on rank " << r << " of " << ranks);
        CHECK(p.name == expected[i].name);
        CHECK(p.tied == expected[i].tied);
        CHECK(p.value.numel() == expected[i].value.numel() / (p.part ? ranks : 1));
        if (!p.part) CHECK(at::equal(p.value, expected[i].value));
        if (p.tied != tie::copy) mine.push_back({p.name, p.value.detach(), p.part});
      }
    }
    std::size_t shared = 0;
    for (const auto& t : assemble(of_ranks)) {
      for (const auto& p : whole->parameters()) {
        if (p.name == t.name) CHECK(at::equal(p.value, t.value));
      }
    }
    for (const auto& t : of_ranks[0]) shared += t.part ? 1 : 0;
    // Sharded in a layer: weight and bias of qkv and up, and the weights of projection and down.
    CHECK(shared == (ranks == 1 ? 0 : 4 * 6 + (model.tied_head ? 1 : 2)));
  }
}

TEST_CASE("q, k and v are each sharded by heads") {
  const auto whole = make_model_chunk(wide_model(), nth_part(wide_model(), 0, 4), 1).value();
  const auto mine = make_model_chunk(wide_model(), nth_part(wide_model(), 0, 4), 1,
                                     std::make_shared<lonely_group>(1, 4))
                        .value();
  for (std::size_t i = 0; i < whole->parameters().size(); ++i) {
    const auto& p = mine->parameters()[i];
    if (p.name != "transformer.h.0.attn.c_attn.weight") continue;
    const auto qkv = whole->parameters()[i].value.view({3, 32, 32});  // of, row, input
    CHECK(at::equal(p.value, qkv.narrow(1, 8, 8).reshape({24, 32})));
    REQUIRE(p.part.has_value());
    CHECK(*p.part == shard{{96, 32}, 0, 3, 8, 8});
  }
}

TEST_CASE("models that the ranks do not divide are refused with key and numbers") {
  const auto refused = [](auto change, std::uint32_t ranks) {
    auto model = wide_model();
    change(model);
    const auto made =
        make_model_chunk(model, nth_part(model, 0, 1), 1, std::make_shared<lonely_group>(0, ranks));
    return made.ok() ? std::string("made") : made.message();
  };
  const auto none = [](auto&) {};
  CHECK(refused(none, 3) == "model.heads: expected a multiple of pipeline.tp = 3, got 8");
  CHECK(refused([](auto& m) { m.feed_forward = 90; }, 4) ==
        "model.feed_forward: expected a multiple of pipeline.tp = 4, got 90");
  CHECK(refused([](auto& m) { m.vocabulary = 257; }, 2) ==
        "model.vocabulary: expected a multiple of pipeline.tp = 2, got 257");
  CHECK(refused([](auto& m) { m.feed_forward = 90; }, 2) == "made");
}

TEST_CASE("the estimate knows the parameters of a rank") {
  auto model = wide_model();
  model.tied_head = GENERATE(false, true);
  const std::vector<std::uint32_t> cut{1, 2, 1};
  for (const auto ranks : {1u, 2u, 8u}) {
    const auto estimates = estimate(model, expected_layout(model, {}), cut, ranks);
    const auto alone = estimate(model, expected_layout(model, {}), cut);
    for (std::uint32_t vs = 0; vs < 3; ++vs) {
      const auto chunk = make_model_chunk(model, layers_of(cut, virtual_stage_id{vs}), 1,
                                          std::make_shared<lonely_group>(0, ranks))
                             .value();
      std::uint64_t elements = 0;
      for (const auto& p : chunk->parameters()) {
        if (p.tied != tie::copy) elements += static_cast<std::uint64_t>(p.value.numel());
      }
      CHECK(estimates[vs].parameters == elements);
      CHECK(estimates[vs].forward_flops * ranks == Approx(alone[vs].forward_flops));
      CHECK(estimates[vs].activation_bytes <= alone[vs].activation_bytes);
      CHECK(estimates[vs].boundary_bytes == alone[vs].boundary_bytes);
    }
  }
}

TEST_CASE("the reports of all ranks name every element once") {
  const auto model = wide_model();
  const auto reports = [&](std::uint32_t ranks) {
    std::map<parameter_position, std::uint64_t> all;
    for (std::uint32_t r = 0; r < ranks; ++r) {
      const auto stage = stage_of_rank(model, std::make_shared<lonely_group>(r, ranks));
      for (const auto& h : stage->hashes()) {
        REQUIRE(all.emplace(h.at, h.xxh64).second);
      }
    }
    return all;
  };
  const auto alone = reports(1);
  const auto four = reports(4);
  std::size_t cut = 0;
  for (const auto& [at, hash] : four) cut += at.rank > 0;
  CHECK(cut == 3 * (4 * 6 + 2));
  CHECK(four.size() == alone.size() + cut);
  for (const auto& p : alone) CHECK(four.contains(p.first));
}

TEST_CASE(
    "ranks that run different tasks get an error that names them, in forward and in backward") {
  const auto in_forward = on_ranks(2, [](const shared_group& g) {
    const auto stage = stage_of_rank(wide_model(), g);
    stage->begin_step(step_id{5});
    return caught([&] { stage->run(launch_of(task_kind::forward, g->rank(), 0), {}); });
  });
  for (const auto& text : in_forward) {
    CHECK_THAT(text, Catch::StartsWith("collective: stage 0, F") &&
                         Catch::Contains("of F0 (step 6, launch 0)") &&
                         Catch::Contains("of F1 (step 6, launch 0)"));
  }
  const auto in_backward = on_ranks(2, [](const shared_group& g) {
    const auto stage = stage_of_rank(wide_model(), g);
    stage->begin_step(step_id{5});
    stage->run(launch_of(task_kind::forward, 0, 0), {});
    stage->run(launch_of(task_kind::forward, 1, 1), {});
    const auto kind = g->rank() == 0 ? task_kind::backward : task_kind::backward_weight;
    return caught([&] { stage->run(launch_of(kind, g->rank(), 2), {}); });
  });
  CHECK_THAT(in_backward[0], Catch::StartsWith("collective: stage 0, B0 of step 6: the ranks"));
  CHECK_THAT(in_backward[1], Catch::StartsWith("collective: stage 0, BW1 of step 6: the ranks"));
  for (const auto& text : in_backward) {
    CHECK_THAT(text, Catch::Contains("of B0 (step 6, launch 2)") &&
                         Catch::Contains("of BW1 (step 6, launch 2)"));
  }
}

TEST_CASE("a missing rank is named within the time limit") {
  const auto texts =
      on_ranks(make_groups(4, std::chrono::milliseconds(200)), [](const shared_group& g) {
        const auto stage = stage_of_rank(wide_model(), g);
        stage->begin_step(step_id{0});
        if (g->rank() == 1) return std::string();
        return caught([&] { stage->run(launch_of(task_kind::forward, 0, 0), {}); });
      });
  for (const auto r : {0u, 2u, 3u}) {
    CHECK_THAT(texts[r], Catch::StartsWith("collective: stage 0, F0") &&
                             Catch::Contains("waited 200 ms") && Catch::Contains("for rank 1"));
  }
}

TEST_CASE("shards of any two partitions have the correct overlap") {
  const auto whole = at::arange(2 * 24 * 3).view({2, 24, 3});
  for (const std::int64_t blocks : {1, 3}) {
    for (const auto from : {1u, 2u, 4u, 8u}) {
      for (const auto to : {1u, 2u, 4u, 8u}) {
        for (std::uint32_t r = 0; r < to; ++r) {
          const auto wanted = even_shard({2, 24, 3}, 1, blocks, r, to);
          auto got = at::zeros({2, 24 / to, 3}, at::kLong);
          std::int64_t copied = 0;
          for (std::uint32_t f = 0; f < from; ++f) {
            const auto piece = even_shard({2, 24, 3}, 1, blocks, f, from);
            copied += copy_overlap(slice_of(whole, piece), piece, got, wanted);
          }
          CHECK(copied == got.numel());
          CHECK(at::equal(got, slice_of(whole, wanted)));
        }
      }
    }
  }
}

}  // namespace rrfp::compute::test::parallel_stage
