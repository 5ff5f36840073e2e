/// The messages between the actors of a run, as control/messages.hpp has them, with symbols for
/// tensors and hashes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <rrfp/base/codec.hpp>
#include <rrfp/core/copy_set.hpp>
#include <rrfp/core/event.hpp>
#include <rrfp/core/job_events.hpp>

#include "symbols.hpp"

namespace rrfp {

auto fields(auto f, rank_address& x) { return f(x.replica, x.stage, x.rank); }

}  // namespace rrfp

namespace rrfp::cluster {

enum class mail_kind : std::uint8_t {
  restore_state,
  state_restored,
  begin_step,
  arrived,
  run_launch,
  launch_done,
  end_step,
  rank_step_ended,
  stage_step_ended,
  apply_update,
  update_applied,
  step_over,
  take_snapshot,
  snapshot_taken,
  snapshot_written,
  copy_state,
  copy_held,
  copy_offered,
  fetch_copy,
  copy_piece,
  keep_copies,
  report_weights,
  stage_weights,
  report_progress,
  stage_progress,
  interrupted,
  drain_asked,
  report_requested,
  failed,
  suspected,
  job_ended,
};

/// Who gets it: the job, a node, the supervisor of a stage, or a rank.
enum class addressee : std::uint8_t { job, node, supervisor, rank };

/// One type for all; each kind uses the members that it needs.
struct mail {
  mail_kind kind = mail_kind::failed;
  addressee to = addressee::job;
  rank_address at;  ///< of the addressee; in messages to the job: of the sender
  std::uint64_t step = 0;
  std::uint64_t number = 0;
  std::uint64_t offset = 0;
  error_kind how = error_kind::failed;
  bool is_good = true;
  std::string text;
  std::vector<symbol> values;
  std::vector<symbol> more_values;
};

auto fields(auto f, mail& x) {
  return f(x.kind, x.to, x.at, x.step, x.number, x.offset, x.how, x.is_good, x.text, x.values,
           x.more_values);
}

/// A launch as values of a mail, and back.
inline std::vector<symbol> values_of(const launch& l) {
  return {l.seq.value(),
          static_cast<symbol>(l.what.kind),
          l.what.mb.value(),
          l.what.chunk.value(),
          l.folds.first.value(),
          l.folds.count,
          l.piece.number,
          l.piece.count,
          static_cast<symbol>(l.pass)};
}

inline launch launch_of(const std::vector<symbol>& v) {
  const auto small = [&](std::size_t i) { return static_cast<std::uint32_t>(v.at(i)); };
  launch l;
  l.seq = launch_seq{v.at(0)};
  l.what = {static_cast<task_kind>(v.at(1)), microbatch_id{small(2)}, chunk_id{small(3)}};
  l.folds = {microbatch_id{small(4)}, small(5)};
  l.piece = {small(6), small(7)};
  l.pass = static_cast<forward_pass>(v.at(8));
  return l;
}

}  // namespace rrfp::cluster
