/// Owners and buddies copy, records and copies arrive in any order, and any nodes are lost at any
/// moment: as long as a step's record and every rank of it are left somewhere, the job goes on from
/// it or from a later one.
#include <algorithm>
#include <map>
#include <random>
#include <set>

#include <catch2/catch.hpp>

#include <rrfp/core/rank_hosts.hpp>
#include <rrfp/core/recovery_point.hpp>

namespace rrfp {
namespace {

using random_source = std::mt19937_64;

std::uint64_t below(random_source& random, std::uint64_t limit) { return random() % limit; }

/// A job of one rank a stage.
class cluster {
 public:
  cluster(std::uint32_t nodes, std::uint32_t ranks, random_source& random)
      : random_(random), nodes_(nodes), ranks_(ranks) {
    for (std::uint32_t n = 0; n < nodes; ++n) hosts_.push_back(n % 2 == 0 ? "a" : "b");
  }

  /// Trains a few steps until nodes are lost.
  void run() {
    for (auto moves = below(random_, 60); moves > 0; --moves) move();
    lose_nodes();
    go_on();
  }

  std::uint64_t recoveries() const { return recoveries_; }
  std::uint64_t begun_again() const { return begun_again_; }

 private:
  struct arrival {
    std::uint32_t node;
    held_copy copy;
    std::uint64_t complete;
  };

  static held_copy copy_of(std::uint64_t step, std::uint32_t rank) {
    return {{step, stage_id{rank}, rank_id{0}}, 8, 1000 * step + rank};
  }
  std::vector<std::uint32_t> holders_of(std::uint32_t rank) const {
    const node_id owner{rank % nodes_};
    const auto buddy = buddy_of(owner, {}, {}, hosts_);
    if (!buddy) return {owner.value()};
    return {owner.value(), buddy->value()};
  }

  /// One thing that may happen next.
  void move() {
    if (!records_.empty() && below(random_, 3) == 0) return deliver_record();
    if (!arrivals_.empty()) return deliver_copy();
    begin_copies();
  }
  void begin_copies() {
    step_ += 1 + below(random_, 2);
    for (std::uint32_t r = 0; r < ranks_; ++r)
      for (const auto n : holders_of(r)) arrivals_.push_back({n, copy_of(step_, r), complete_});
  }
  void deliver_copy() {
    if (below(random_, 40) == 0) return arrivals_.clear();  // given up
    const auto at =
        arrivals_.begin() + static_cast<std::ptrdiff_t>(below(random_, arrivals_.size()));
    const auto a = *at;
    arrivals_.erase(at);
    put(a.node, a.copy, a.complete);
    if (!arrivals_.empty()) return;
    complete_ = step_;
    for (std::uint32_t n = 0; n < nodes_; ++n) records_[n].push_back(step_);
  }
  /// Node 0 sends them in order to each node.
  void deliver_record() {
    auto at = records_.begin();
    std::advance(at, below(random_, records_.size()));
    const auto [node, all] = *at;
    auto& left = at->second;
    keep(node, left.front());
    left.erase(left.begin());
    if (left.empty()) records_.erase(at);
  }
  void put(std::uint32_t node, const held_copy& c, std::uint64_t complete) {
    sets_[node].put(c, complete);
    had_[c.what].insert(node);
    // What is made again may end the copies that were before.
    std::size_t of_rank = 0;
    for (const auto& h : sets_[node].held()) of_rank += h.what.stage == c.what.stage ? 1 : 0;
    CHECK(of_rank <= 3 + records_[node].size());
    if (records_[node].empty()) records_.erase(node);
  }
  void keep(std::uint32_t node, std::uint64_t step) {
    sets_[node].keep({step, "record " + std::to_string(step)});
    recorded_[step].insert(node);
  }

  void lose_nodes() {
    auto left = below(random_, 4) == 0 ? below(random_, nodes_ + 1) : 1;
    for (; left > 0; --left) {
      const auto n = static_cast<std::uint32_t>(below(random_, nodes_));
      sets_.erase(n);
      for (auto& [_, all] : had_) all.erase(n);
      for (auto& [_, all] : recorded_) all.erase(n);
    }
    arrivals_.clear();
    records_.clear();
  }

  /// The newest step that is left: its record and every rank.
  std::uint64_t newest_left() const {
    for (auto r = recorded_.rbegin(); r != recorded_.rend(); ++r) {
      if (r->second.empty()) continue;
      bool all = true;
      for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
        const auto found = had_.find(copy_of(r->first, rank).what);
        all &= found != had_.end() && !found->second.empty();
      }
      if (all) return r->first;
    }
    return 0;
  }

  void go_on() {
    std::vector<recovery_report> reports(nodes_);
    for (std::uint32_t n = 0; n < nodes_; ++n) {
      reports[n].held = sets_[n].held();
      reports[n].record = sets_[n].record();
    }
    const auto p = choose_recovery_point(reports, std::vector{ranks_});
    const auto expected = newest_left();
    CHECK(p.record.step >= expected);
    had_.clear();
    recorded_.clear();
    ++recoveries_;
    if (!p.has_copies()) {
      ++begun_again_;
      sets_.clear();
      step_ = complete_ = 0;
      return;
    }
    CHECK(p.copies.size() == ranks_);
    for (const auto& [what, from] : p.copies) {
      CHECK(what.step == p.record.step);
      CHECK(from.xxh64 == copy_of(what.step, what.stage.value()).xxh64);
      const auto& held = sets_[from.node.value()].held();
      CHECK(std::any_of(held.begin(), held.end(), [&](const auto& h) { return h.what == what; }));
    }
    step_ = complete_ = p.record.step;
    for (std::uint32_t n = 0; n < nodes_; ++n) {
      keep(n, step_);
      for (const auto& h : sets_[n].held()) had_[h.what].insert(n);
    }
    // Each owner fetches what it lacks, then all copy again.
    for (std::uint32_t r = 0; r < ranks_; ++r) {
      if (below(random_, 8) == 0) return;  // a node is lost before
      put(r % nodes_, copy_of(step_, r), step_);
    }
    for (std::uint32_t r = 0; r < ranks_; ++r)
      for (const auto n : holders_of(r)) arrivals_.push_back({n, copy_of(step_, r), complete_});
  }

  random_source& random_;
  const std::uint32_t nodes_;
  const std::uint32_t ranks_;
  std::vector<std::string> hosts_;
  std::uint64_t step_ = 0;
  std::uint64_t complete_ = 0;
  std::map<std::uint32_t, copy_set> sets_;
  std::vector<arrival> arrivals_;
  std::map<std::uint32_t, std::vector<std::uint64_t>> records_;  ///< on their way
  // What nodes that are not lost have had, dropped or not.
  std::map<copy_key, std::set<std::uint32_t>> had_;
  std::map<std::uint64_t, std::set<std::uint32_t>> recorded_;
  std::uint64_t recoveries_ = 0;
  std::uint64_t begun_again_ = 0;
};

}  // namespace

TEST_CASE("whatever nodes drop, a step that is left somewhere can still be chosen") {
  std::uint64_t recoveries = 0;
  std::uint64_t begun_again = 0;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    INFO("seed " << seed);
    random_source random{seed};
    const auto nodes = 1 + static_cast<std::uint32_t>(below(random, 5));
    cluster c{nodes, 1 + static_cast<std::uint32_t>(below(random, 7)), random};
    for (int losses = 0; losses < 6; ++losses) c.run();
    recoveries += c.recoveries();
    begun_again += c.begun_again();
  }
  CHECK(recoveries == 6000);
  CHECK(begun_again > 300);
  CHECK(begun_again < 4000);
}

}  // namespace rrfp
