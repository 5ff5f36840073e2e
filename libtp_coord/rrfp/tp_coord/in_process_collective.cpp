#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include <rrfp/tp_coord/in_process_collective.hpp>

#include "reduce.hpp"
#include "wait_word.hpp"

namespace rrfp::tp_coord {

namespace {

using clock = std::chrono::steady_clock;

constexpr std::uint32_t size_max = 1024;
constexpr std::size_t block_bytes = 8 * 1024;
/// A few microseconds, about the cost of a wake-up.
constexpr int spins_max = 400;
/// Bounds a wait that must end because all ranks are working; it only limits the damage of a lost
/// wake-up.
constexpr std::chrono::seconds work_limit{1};

/// The state of the group in one word, so that "the last rank has arrived" and "the group is
/// broken" cannot both succeed: the number of ranks at the barrier, the parity of the barrier, and
/// whether the group is broken.
class barrier_state {
 public:
  explicit barrier_state(std::uint32_t word) : word_(word) {}

  std::uint32_t word() const { return word_; }
  std::uint32_t present() const { return word_ & 0xffff; }
  bool is_broken() const { return (word_ & broken_bit) != 0; }
  bool is_same_phase_as(barrier_state other) const {
    return ((word_ ^ other.word_) & parity_bit) == 0;
  }

  barrier_state with_one_more() const { return barrier_state(word_ + 1); }
  barrier_state broken() const { return barrier_state(word_ | broken_bit); }
  barrier_state emptied() const { return barrier_state(word_ & ~std::uint32_t{0xffff}); }
  barrier_state next() const { return barrier_state(word_ ^ parity_bit).emptied(); }

 private:
  static constexpr std::uint32_t parity_bit = 1u << 30;
  static constexpr std::uint32_t broken_bit = 1u << 31;
  std::uint32_t word_;
};

class in_process_group {
 public:
  in_process_group(std::uint32_t size, const in_process_options& options)
      : options_(options),
        members_(size),
        spins_(size <= std::thread::hardware_concurrency() ? spins_max : 0) {}

  std::uint32_t size() const { return static_cast<std::uint32_t>(members_.size()); }

  status run(rank_id rank, const collective::request& r) {
    auto& me = members_[rank.value()];
    me.now = r;
    me.calls.fetch_add(1, std::memory_order_relaxed);
    const bool is_large = r.print.bytes() >= options_.parallel_bytes_min;
    const auto [as, joined] = arrive();
    switch (as) {
      case arrival::refused: return failure();
      case arrival::waits:
        if (!wait_for_others(rank, joined)) return failure();
        break;
      case arrival::last:
        if (const auto wrong = check()) {
          // No rank is working, and all of them must leave.
          break_all(*wrong, [](barrier_state m) { return m.broken().emptied(); });
          return failure();
        }
        if (!is_large) work(0, 1);
        open();
        break;
    }
    if (is_large) {
      work(rank.value(), members_.size());
      wait_after_work();
    }
    return success();
  }

  status health() const { return barrier_state(word_.load()).is_broken() ? failure() : success(); }
  void abort(const std::string& why) {
    break_all(why, [](barrier_state m) { return m.broken(); });
  }

 private:
  struct alignas(64) member {
    collective::request now;
    std::atomic<std::uint64_t> calls = 0;
  };
  enum class arrival : std::uint8_t { refused, waits, last };

  /// Arrives at the barrier before the work. A broken group refuses.
  std::pair<arrival, barrier_state> arrive() {
    auto seen = word_.load();
    for (;;) {
      const barrier_state m(seen);
      if (m.is_broken()) return {arrival::refused, m};
      const auto joined = m.with_one_more();
      if (!word_.compare_exchange_weak(seen, joined.word())) continue;
      return {joined.present() == size() ? arrival::last : arrival::waits, joined};
    }
  }

  bool wait_for_others(rank_id rank, barrier_state joined) {
    const auto deadline = clock::now() + options_.limit;
    int spins = spins_;
    for (;;) {
      const barrier_state m(word_.load());
      if (!m.is_same_phase_as(joined)) return true;
      const bool is_complete = m.present() == size();
      if (m.is_broken() && !is_complete) return false;
      if (spins > 0) {
        --spins;
        relax();
        continue;
      }
      const auto left = deadline - clock::now();
      if (is_complete) {
        sleep_while(word_, m.word(), work_limit);
      } else if (left > clock::duration::zero()) {
        sleep_while(word_, m.word(), left);
      } else if (break_unless_complete(text_of_missing(rank))) {
        return false;
      }
    }
  }

  /// Arrives at the barrier after the work. It cannot fail: a rank must not leave while others use
  /// its buffer.
  void wait_after_work() {
    const barrier_state joined(word_.fetch_add(1) + 1);
    if (joined.present() == size()) return open();
    for (int spins = spins_;;) {
      const barrier_state m(word_.load());
      if (!m.is_same_phase_as(joined)) return;
      if (spins-- > 0) {
        relax();
      } else {
        sleep_while(word_, m.word(), work_limit);
      }
    }
  }

  void open() {
    auto seen = word_.load();
    while (!word_.compare_exchange_weak(seen, barrier_state(seen).next().word())) {
    }
    wake_all(word_);
  }

  /// Breaks the group unless all ranks have arrived; returns false in that case.
  bool break_unless_complete(const std::string& why) {
    {
      const std::lock_guard lock(mutex_);
      auto seen = word_.load();
      do {
        if (barrier_state(seen).is_broken()) return true;
        if (barrier_state(seen).present() == size()) return false;
      } while (!word_.compare_exchange_weak(seen, barrier_state(seen).broken().word()));
      failure_ = why;
    }
    wake_all(word_);
    return true;
  }

  /// Breaks the group; `broken` gives its state from the one before.
  void break_all(const std::string& why, barrier_state (*broken)(barrier_state)) {
    {
      const std::lock_guard lock(mutex_);
      if (failure_.empty()) failure_ = why;
      auto seen = word_.load();
      while (!word_.compare_exchange_weak(seen, broken(barrier_state(seen)).word())) {
      }
    }
    wake_all(word_);
  }

  status failure() const {
    const std::lock_guard lock(mutex_);
    return error{failure_};
  }

  std::string text_of_missing(rank_id rank) const {
    const auto& me = members_[rank.value()];
    std::string absent;
    for (std::uint32_t r = 0; r < size(); ++r) {
      if (members_[r].calls.load() >= me.calls.load()) continue;
      absent += (absent.empty() ? "rank " : ", rank ") + std::to_string(r);
    }
    if (absent.empty()) absent = "a rank that arrived too late";
    return "rank " + std::to_string(rank.value()) + " waited " +
           std::to_string(options_.limit.count()) + " ms in " + to_string(me.now.print) + " for " +
           absent;
  }

  std::optional<std::string> check() const {
    const auto& first = members_[0].now.print;
    if (std::all_of(members_.begin(), members_.end(),
                    [&](const member& m) { return m.now.print == first; })) {
      return std::nullopt;
    }
    std::vector<fingerprint> prints;
    for (const auto& m : members_) prints.push_back(m.now.print);
    return disagreement(prints);
  }

  /// Does part `k` of the call's work on the buffers of all ranks.
  void work(std::size_t k, std::size_t parts) const {
    const auto& print = members_[0].now.print;
    const auto p = part_of(print.count, k, parts);
    if (p.count == 0) return;
    const auto width = bytes_of(print.type);
    switch (print.op) {
      case operation::sum:
      case operation::max: return reduce(p);
      case operation::gather:
        for (const auto& to : members_) {
          for (std::size_t r = 0; r < members_.size(); ++r) {
            std::memcpy(to.now.out + (r * print.count + p.begin) * width,
                        members_[r].now.in + p.begin * width, p.count * width);
          }
        }
        return;
      case operation::broadcast: {
        const auto* from = members_[print.root.value()].now.out;
        for (const auto& to : members_) {
          if (to.now.out == from) continue;
          std::memcpy(to.now.out + p.begin * width, from + p.begin * width, p.count * width);
        }
        return;
      }
      case operation::barrier: return;
    }
  }

  void reduce(part p) const {
    const auto& print = members_[0].now.print;
    const auto width = bytes_of(print.type);
    alignas(64) std::array<std::byte, block_bytes> sum;
    for (auto at = p.begin; at < p.begin + p.count; at += block_bytes / width) {
      const auto n = std::min(block_bytes / width, p.begin + p.count - at);
      std::memcpy(sum.data(), members_[0].now.out + at * width, n * width);
      for (std::size_t r = 1; r < members_.size(); ++r) {
        accumulate(print.op, print.type, sum.data(), members_[r].now.out + at * width, n);
      }
      for (const auto& m : members_) std::memcpy(m.now.out + at * width, sum.data(), n * width);
    }
  }

  const in_process_options options_;
  std::vector<member> members_;
  const int spins_;
  alignas(64) std::atomic<std::uint32_t> word_ = 0;
  mutable std::mutex mutex_;
  std::string failure_;  // guarded by mutex_; set before the broken bit
};

class in_process_collective final : public collective {
 public:
  in_process_collective(rank_id rank, std::shared_ptr<in_process_group> group)
      : collective(rank, group->size()), group_(std::move(group)) {}

  status health() const override { return group_->health(); }
  void abort(const std::string& why) override { group_->abort(why); }

 private:
  status run(const request& r) override { return group_->run(rank(), r); }

  std::shared_ptr<in_process_group> group_;
};

}  // namespace

std::vector<std::unique_ptr<collective>> make_in_process_group(std::uint32_t size,
                                                               const in_process_options& options) {
  RRFP_CHECK(size > 0 && size <= size_max, "a group has 1 to 1024 ranks");
  const auto group = std::make_shared<in_process_group>(size, options);
  std::vector<std::unique_ptr<collective>> members;
  for (std::uint32_t r = 0; r < size; ++r) {
    members.push_back(std::make_unique<in_process_collective>(rank_id{r}, group));
  }
  return members;
}

}  // namespace rrfp::tp_coord
