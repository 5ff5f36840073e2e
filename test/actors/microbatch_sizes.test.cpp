// The order of admission of real data follows from the sizes of microbatches.
#include <rrfp/torch_actors/job_data.hpp>

#include <algorithm>
#include <functional>
#include <utility>

#include <ATen/ATen.h>

#include "small_model.hpp"

// Last: libtorch has a CHECK of its own.
#include <catch2/catch.hpp>

namespace {

using namespace rrfp;
using namespace rrfp::actors;

/// Sequences of length 1 + (7 n + step) % 5 in microbatch n.
class lengths final : public compute::batch_source {
 public:
  explicit lengths(microbatch_counts counts = {}) : counts_(std::move(counts)) {}

  microbatch_counts counts(step_id) const override { return counts_; }
  static std::int64_t length(step_id step, microbatch_id mb) {
    return 1 + static_cast<std::int64_t>((7 * mb.value() + step.value()) % 5);
  }
  compute::microbatch load(step_id step, microbatch_id mb) const override {
    const auto n = length(step, mb);
    return {at::full({n}, std::int64_t{mb.value()}), at::zeros({n}, at::kLong), n, {n}};
  }
  std::int64_t step_tokens(step_id) const override { return 1; }

 private:
  const microbatch_counts counts_;
};

job::job job_of(admission order, std::uint32_t replicas) {
  job::job j;
  j.model = compute::test::small_model();
  j.dispatch.admit = order;
  j.pipeline.stages = 2;
  j.pipeline.replicas = replicas;
  return j;
}

}  // namespace

TEST_CASE("real data is admitted in the order of its sizes, each replica by itself") {
  const pipeline_shape shape{2, 1, 5};
  const auto counts = GENERATE(microbatch_counts{}, microbatch_counts{{7, 4}});
  const auto data = std::make_shared<const lengths>(counts);
  CHECK(data_of_job(data, nullptr, job_of(admission::loaded, 2), shape) == data);
  const auto sorted = data_of_job(data, nullptr, job_of(admission::small_large_small, 2), shape);
  for (std::uint64_t s = 0; s < 3; ++s)
    for (std::uint32_t replica = 0; replica < 2; ++replica) {
      std::vector<std::int64_t> ids;
      std::vector<std::int64_t> sizes;
      const auto each = counts.or_equal(2, 5);
      const auto first = each.first_of(replica_id{replica});
      for (std::uint32_t i = 0; i < each.of(replica_id{replica}); ++i) {
        const microbatch_id mb{first + i};
        const auto loaded = sorted->load(step_id{s}, mb);
        sizes.push_back(loaded.tokens);
        CHECK(sorted->layout(step_id{s}, mb) == compute::layout_of(loaded));
        ids.push_back(loaded.inputs[0].item<std::int64_t>());
      }
      const auto largest = std::max_element(sizes.begin(), sizes.end());
      CHECK(std::is_sorted(sizes.begin(), largest));
      CHECK(std::is_sorted(largest, sizes.end(), std::greater<>{}));
      std::sort(ids.begin(), ids.end());
      for (std::uint32_t i = 0; i < ids.size(); ++i) CHECK(ids[i] == first + i);
    }
}
