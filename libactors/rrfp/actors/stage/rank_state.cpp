/// The state of a rank between two steps: into a checkpoint, into a copy for recovery, and back.
#include <fmt/format.h>

#include <rrfp/actors/checkpoint_tensors.hpp>
#include <rrfp/actors/recovery/copy_exchange.hpp>
#include <rrfp/actors/recovery/state_bytes.hpp>

#include "guarded.hpp"
#include "tp_rank.hpp"

namespace rrfp::actors {

void tp_rank::on_take_snapshot(const take_snapshot& m) {
  on_device(setup_, [m, rank = setup_] {
    const auto& context = rank->context;
    const auto begun = context->now();
    std::vector<compute::named_buffer> copies;
    std::string failure;
    // Without memory for the copy there is no checkpoint, but the run continues.
    try {
      copies =
          rank->compute->snapshot(compute::tied_copies::left_out, compute::snapshot_memory::copied);
    } catch (const std::exception& e) {
      failure = fmt::format("{}: cannot copy the tensors to save: {}", rank->name(), e.what());
    }
    post(rank->job, snapshot_taken{m.step, context->now() - begun});
    context->saver->post([m, rank, copies = std::move(copies), failure] {
      const auto& at = rank->address;
      snapshot_written outcome{m.step, {}, 0, 0, failure};
      if (!failure.empty()) return post(rank->job, std::move(outcome));
      try {
        const auto written =
            write_rank(checkpoint::folder_of_save(rank->context->setup.checkpoint->dir, m.step),
                       at.stage, at.rank, m.step, copies);
        if (written)
          outcome = {m.step, written->name, written->bytes, written->xxh64, {}};
        else
          outcome.failure = written.message();
      } catch (const std::exception& e) {
        outcome.failure = fmt::format("{}: cannot write the tensors: {}", rank->name(), e.what());
      }
      post(rank->job, std::move(outcome));
    });
  });
}

void tp_rank::on_copy_state(const copy_state& m) {
  on_device(setup_, [m, rank = setup_] {
    auto copying = rank->context->copies->begin_copy(
        {m.step, rank->address.stage, rank->address.rank}, m.complete,
        rank->compute->snapshot(compute::tied_copies::included, compute::snapshot_memory::shared));
    // The copy is made while the next step runs, which changes the state at its end; but a program
    // may change it as soon as the step is over.
    if (!rank->context->setup.on_request) {
      *rank->copying = std::move(copying);
      return;
    }
    if (copying) copying->finish();
    post(rank->job, copy_taken{m.step});
  });
}

void tp_rank::on_restore_state() {
  const auto& at = setup_->address;
  setup_->context->copies->restore(at.stage, at.rank, [rank = setup_](result<tensor_buffer> copy) {
    on_device(rank, [rank, copy = std::move(copy)] {
      const auto state = copy ? state_of_bytes(*copy) : copy.failure();
      const auto restored = state ? rank->compute->restore(*state) : state.failure();
      if (!restored) throw std::runtime_error(restored.message());
      post(rank->job, state_restored{});
    });
  });
}

}  // namespace rrfp::actors
