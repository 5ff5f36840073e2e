/// Work of a rank whose exceptions end the job.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include <rrfp/actors/control/caller_runs.hpp>
#include <rrfp/compute/compute_error.hpp>
#include <rrfp/compute/rank_group.hpp>

#include "tp_rank.hpp"

namespace rrfp::actors {

/// Calls `work`. If it throws, reports the failure, which ends the job, and returns nothing or
/// zero. What was launched before the job's end arrives here is then not run: it would compute with
/// the state that the failure left.
template <class Work, class... Arguments>
auto run_guarded(const tp_rank_setup& rank, Work&& work, Arguments&&... of_it) {
  using returned = std::invoke_result_t<Work, Arguments...>;
  if (*rank.has_failed) return returned();
  try {
    return std::invoke(std::forward<Work>(work), std::forward<Arguments>(of_it)...);
  } catch (const compute::compute_error& e) {
    using enum compute::compute_fault;
    if (e.fault() == data || e.fault() == non_finite_loss)
      post(rank.job, failed{{e.what(), error_kind::bad_input}});
    else if (e.fault() == collective)
      rank.suspect(e.what());
    else
      rank.report(e.what());
  } catch (const compute::group_error& e) {
    rank.suspect(rank.name() + ": " + e.what());
  } catch (const std::exception& e) {
    rank.fail(e.what());
  } catch (...) {
    rank.fail("threw an object that is not a std::exception");
  }
  *rank.has_failed = true;
  return returned();
}

/// Runs `work` on the device of the rank.
template <class Work>
void on_device(const std::shared_ptr<const tp_rank_setup>& rank, Work work) {
  rank->device->post([work = std::move(work), rank]() mutable {
    const caller_runs scope;
    run_guarded(*rank, work);
  });
}

}  // namespace rrfp::actors
