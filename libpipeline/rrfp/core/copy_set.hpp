/// Which copies of the state a node keeps.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <rrfp/base/ids.hpp>

namespace rrfp {

/// The state of a rank, which is the same on all replicas, after `step` steps.
struct copy_key {
  std::uint64_t step = 0;
  stage_id stage;
  rank_id rank;

  auto operator<=>(const copy_key&) const = default;
};

/// What a node tells of a copy that it holds.
struct held_copy {
  copy_key what;
  std::uint64_t bytes = 0;
  std::uint64_t xxh64 = 0;

  bool operator==(const held_copy&) const = default;
};

/// What the job knew after a step, in a form that only the job reads.
struct job_record {
  std::uint64_t step = 0;
  std::string bytes;
  /// What is too large for all nodes; see keeps_details().
  std::string details{};

  bool operator==(const job_record&) const = default;
};

auto fields(auto f, copy_key& x) { return f(x.step, x.stage, x.rank); }
auto fields(auto f, held_copy& x) { return f(x.what, x.bytes, x.xxh64); }
auto fields(auto f, job_record& x) { return f(x.step, x.bytes, x.details); }

/// Whether a node keeps details: log n of n nodes do, so that the bytes of all details grow with
/// n log n. If these nodes are all lost together, the job continues without details.
constexpr bool keeps_details(node_id n) { return (n.value() & (n.value() - 1)) == 0; }

/// A copy that all ranks have is dropped only with the record of a newer one: without its record,
/// no step can be chosen. So of each rank two copies stay, and more while a record is on its way.
class copy_set {
 public:
  /// `complete`: the newest step of which the copies of all ranks are held somewhere; 0: none is.
  /// Returns what is dropped: copies after it that were given up.
  std::vector<copy_key> put(const held_copy& c, std::uint64_t complete);
  /// The copies of all ranks after `r.step` are held somewhere. Returns what is dropped.
  std::vector<copy_key> keep(job_record r);

  std::vector<held_copy> held() const;
  /// The newest; without bytes: there is none yet.
  const job_record& record() const { return record_; }

 private:
  std::map<copy_key, held_copy> copies_;
  job_record record_;
};

}  // namespace rrfp
