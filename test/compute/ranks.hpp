/// Tensor-parallel ranks as threads, with the collectives of the runtime between them.
#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <rrfp/compute/rank_group.hpp>
#include <rrfp/device/collective_group.hpp>
#include <rrfp/torch/stage_compute.hpp>
#include <rrfp/tp_coord/in_process_collective.hpp>

namespace rrfp::compute::test {

using shared_group = std::shared_ptr<rank_group>;

/// Groups indexed by rank.
inline std::vector<shared_group> make_groups(
    std::uint32_t ranks, std::chrono::milliseconds limit = std::chrono::seconds(60)) {
  std::vector<shared_group> groups;
  for (auto& member : tp_coord::make_in_process_group(ranks, {limit})) {
    groups.push_back(actors::make_collective_group(std::move(member)));
  }
  return groups;
}

/// Returns the result of `work(group)` on each rank. An exception of any rank ends the test.
/// (Catch's assertions belong to the main thread: look at the results there.)
template <class Work>
auto on_ranks(const std::vector<shared_group>& groups, Work work) {
  std::vector<decltype(work(groups[0]))> results(groups.size());
  std::vector<std::exception_ptr> errors(groups.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < groups.size(); ++r) {
    threads.emplace_back([&, r] {
      prepare_compute_thread();
      try {
        results[r] = work(groups[r]);
      } catch (...) {
        errors[r] = std::current_exception();
      }
    });
  }
  for (auto& t : threads) t.join();
  for (const auto& e : errors) {
    if (e) std::rethrow_exception(e);
  }
  return results;
}

template <class Work>
auto on_ranks(std::uint32_t ranks, Work work) {
  return on_ranks(make_groups(ranks), std::move(work));
}

/// The logical tensors assembled from the ranks' parts; replicated ones are those of rank 0.
std::vector<named_tensor> assemble(const std::vector<std::vector<named_tensor>>& of_ranks);

}  // namespace rrfp::compute::test
