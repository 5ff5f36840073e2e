/// Whether a message fits the run in which it arrives: every id and enum that it carries is in
/// range, so an actor may index by it. A node that has the job's token, but a bug or another build,
/// must not make this one read beyond its tables.
///
/// The members are found as the decoder finds them, by fields(). A new enum in a message needs its
/// last value here; without it the message does not compile.
#pragma once

#include "messages.hpp"

namespace rrfp::actors {

constexpr auto last_of(actor_kind) { return actor_kind::rank; }
constexpr auto last_of(choice) { return choice::only_choice; }
constexpr auto last_of(compute::step_purpose) { return compute::step_purpose::accumulation; }
constexpr auto last_of(error_kind) { return error_kind::interrupted; }
constexpr auto last_of(forward_pass) { return forward_pass::again; }
constexpr auto last_of(job_end) { return job_end::node_lost; }
constexpr auto last_of(memory_bound) { return memory_bound::activations; }
constexpr auto last_of(stage_phase) { return stage_phase::updating; }
constexpr auto last_of(task_kind) { return task_kind::backward_weight; }
constexpr auto last_of(wait_cause) { return wait_cause::complete; }

class range_check {
 public:
  explicit range_check(const message_ranges& run) : run_(run) {}

  template <class... Members>
  void operator()(Members&... members) {
    (check(members), ...);
  }
  /// The first member that is out of range, what was expected and what was found.
  status outcome() const {
    if (why_.empty()) return success();
    return error{why_, error_kind::failed};
  }

 private:
  template <class T>
  void check(T& x) {
    if constexpr (has_fields<T>) {
      fields([this](auto&... members) { (*this)(members...); }, x);
      check_together(x);
    } else if constexpr (std::is_enum_v<T>) {
      below("a kind", static_cast<std::uint64_t>(x), std::uint64_t{1} + std::uint64_t(last_of(x)));
    }  // numbers and texts have no range
  }
  template <class T>
  void check(std::vector<T>& all) {
    for (auto& x : all) check(x);
  }
  template <class T>
  void check(std::optional<T>& x) {
    if (x) check(*x);
  }
  void check(stage_id& x) { below("stage", x.value(), run_.shape.stages); }
  void check(chunk_id& x) { below("chunk", x.value(), run_.shape.chunks); }
  void check(microbatch_id& x) { below("microbatch", x.value(), microbatches_max); }
  void check(rank_id& x) { below("rank", x.value(), run_.ranks); }
  void check(replica_id& x) { below("replica", x.value(), run_.replicas); }
  void check(node_id& x) { below("node", x.value(), run_.nodes); }
  void check(step_id&) {}
  void check(launch_seq&) {}
  /// Microbatches of losses are numbered over all replicas.
  void check(compute::microbatch_loss& x) {
    below("microbatch", x.mb.value(), std::uint64_t{microbatches_max} * run_.replicas);
  }
  /// Its first microbatch may be the one after the last, if it is empty.
  void check(fold_range& x) {
    below("the end of the folds", std::uint64_t{x.first.value()} + x.count,
          std::uint64_t{microbatches_max} + 1);
  }

  // Rules between the members of one type.
  template <class T>
  void check_together(const T&) {}
  void check_together(const take_snapshot&) { needs("checkpoints", run_.saves); }
  void check_together(const snapshot_taken&) { needs("checkpoints", run_.saves); }
  void check_together(const snapshot_written&) { needs("checkpoints", run_.saves); }
  void check_together(const restore_state&) { needs("copies", run_.copies); }
  void check_together(const copy_state&) { needs("copies", run_.copies); }
  void check_together(const copy_taken&) { needs("copies", run_.copies); }
  void check_together(const copy_offered&) { needs("copies", run_.copies); }
  void check_together(const fetch_copy&) { needs("copies", run_.copies); }
  void check_together(const keep_copies&) { needs("copies", run_.copies); }
  void check_together(const task_piece& x) { below("piece", x.number, x.count); }
  void check_together(const input_arrived& x) {
    below("the kind of an arrival", static_cast<std::uint64_t>(x.kind),
          std::uint64_t(task_kind::weight));
  }
  void check_together(const stage_snapshot& x) {
    below("microbatches", x.microbatches, std::uint64_t{microbatches_max} + 1);
    equal("progress", x.progress.size(), std::uint64_t{run_.shape.chunks} * x.microbatches);
  }
  void check_together(const microbatch_counts& x) { check_counts(x.by_replica); }
  void check_together(const microbatch_shares& x) {
    check_counts(x.shares);
    if (auto valid = x.validate(run_.replicas); !valid && why_.empty()) why_ = valid.message();
  }
  void check_together(const stage_state& x) { equal("ages", x.ages.size(), x.core.running.size()); }

  void check_counts(const std::vector<std::uint32_t>& counts) {
    for (const auto count : counts)
      below("microbatches", count, std::uint64_t{microbatches_max} + 1);
  }
  void below(const char* what, std::uint64_t got, std::uint64_t end) {
    if (got >= end) note(what, "less than " + std::to_string(end), got);
  }
  void equal(const char* what, std::uint64_t got, std::uint64_t wanted) {
    if (got != wanted) note(what, std::to_string(wanted), got);
  }
  void needs(const char* what, bool has) {
    if (!has && why_.empty()) why_ = std::string{"this run makes no "} + what;
  }
  void note(const char* what, const std::string& wanted, std::uint64_t got) {
    if (why_.empty())
      why_ = std::string{what} + ": expected " + wanted + ", got " + std::to_string(got);
  }

  const message_ranges& run_;
  std::string why_;
};

/// The error says which member, what was expected and what was found.
template <class T>
status check_ranges(const message_ranges& run, T& x) {
  range_check check{run};
  check(x);
  return check.outcome();
}

}  // namespace rrfp::actors
