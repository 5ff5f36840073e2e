/// The checkpoint folder that all nodes share, on a disk that may be full, slow or lose what is not
/// synced: what ring.cpp and write_rank() do around checkpoint_core.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "crashing_disk.hpp"
#include "symbols.hpp"
#include "world.hpp"

#include <rrfp/core/copy_set.hpp>

namespace rrfp::cluster {

class process;

/// A file of a rank, as a manifest lists it.
struct saved_file {
  stage_id stage;
  rank_id rank;
  std::uint64_t bytes = 0;
  std::uint64_t xxh64 = 0;
};

class checkpoint_disk {
 public:
  explicit checkpoint_disk(world& w);

  using answer = std::function<void(const std::string& failure)>;

  status begin(std::uint64_t step);
  void write_rank(process& by, std::uint64_t step, const saved_file& f, const std::string& bytes,
                  answer done);
  void commit(process& by, std::uint64_t step, const std::vector<saved_file>& files,
              const std::string& history, answer done);

  struct found {
    std::uint64_t step = 0;
    std::map<copy_key, rank_state> states;
    std::string history;  ///< of the job
  };
  /// The newest checkpoint that is intact; removes those beyond the newest few.
  std::optional<found> find_newest();
  /// The checkpoint of this step, if it is intact.
  std::optional<found> find(std::uint64_t step) const { return verify(step); }
  /// The newest step that has an intact checkpoint; 0: none.
  std::uint64_t newest_step() const;
  /// All machines lose power.
  void crash();
  void fill(nanoseconds until) { full_until_ = until; }
  void slow(nanoseconds until) { slow_until_ = until; }
  /// The newest step whose save was reported as complete.
  std::uint64_t last_saved() const { return last_saved_; }

 private:
  bool is_full() const { return world_.now() < full_until_; }
  nanoseconds draw_time();
  std::optional<found> verify(std::uint64_t step) const;
  struct commit_state;
  void continue_commit(process& by, std::shared_ptr<commit_state> of);

  world& world_;
  random_source random_;
  testing::crashing_disk files_;
  nanoseconds full_until_ = 0;
  nanoseconds slow_until_ = 0;
  std::uint64_t last_saved_ = 0;
};

}  // namespace rrfp::cluster
