/// A set of small integers that finds its next member in O(log64 n). Each integer has one bit; each
/// bit of a higher level says whether one word of the level below is non-empty. counted_bitmap also
/// counts the members of a range, with a Fenwick tree over the words.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include <rrfp/base/check.hpp>

namespace rrfp {

class priority_bitmap {
 public:
  static constexpr std::uint32_t none = ~std::uint32_t{0};

  explicit priority_bitmap(std::uint32_t size = 0) {
    std::uint32_t words = size;
    do {
      words = (words + 63) / 64;
      levels_.emplace_back(words);
    } while (words > 1);
  }

  void clear() {
    for (auto& level : levels_) std::fill(level.begin(), level.end(), 0);
  }

  bool test(std::uint32_t at) const { return (levels_[0][at / 64] >> (at % 64) & 1) != 0; }

  void insert(std::uint32_t at) {
    for (auto& level : levels_) {
      auto& word = level[at / 64];
      const bool was_empty = word == 0;
      word |= std::uint64_t{1} << (at % 64);
      if (!was_empty) return;
      at /= 64;
    }
  }

  void erase(std::uint32_t at) {
    for (auto& level : levels_) {
      auto& word = level[at / 64];
      word &= ~(std::uint64_t{1} << (at % 64));
      if (word != 0) return;
      at /= 64;
    }
  }

  /// The smallest member in [from, end), or none.
  std::uint32_t first_in(std::uint32_t from, std::uint32_t end) const {
    const auto found = next(from);
    return found < end ? found : none;
  }

  std::uint64_t word(std::uint32_t index) const { return levels_[0][index]; }

 private:
  std::uint32_t next(std::uint32_t from) const {
    std::size_t depth = 0;
    while (depth < levels_.size()) {
      const auto& level = levels_[depth];
      const auto index = from / 64;
      if (index >= level.size()) return none;
      const auto rest = level[index] >> (from % 64);
      if (rest != 0) {
        auto found = from + static_cast<std::uint32_t>(std::countr_zero(rest));
        while (depth-- > 0)
          found = found * 64 + static_cast<std::uint32_t>(std::countr_zero(levels_[depth][found]));
        return found;
      }
      from = index + 1;
      ++depth;
    }
    return none;
  }

  std::vector<std::vector<std::uint64_t>> levels_;
};

/// The tasks not yet launched, with O(log n) counting of a range.
class counted_bitmap {
 public:
  explicit counted_bitmap(std::uint32_t size = 0)
      : bits_(size), size_(size), tree_((size + 63) / 64 + 1) {}

  /// Makes every position a member.
  void fill() {
    bits_.clear();
    std::fill(tree_.begin(), tree_.end(), 0);
    for (std::uint32_t at = 0; at < size_; ++at) bits_.insert(at);
    for (std::uint32_t i = 1; i < tree_.size(); ++i) {
      tree_[i] += static_cast<std::uint32_t>(std::popcount(bits_.word(i - 1)));
      if (const auto parent = i + (i & (~i + 1)); parent < tree_.size()) tree_[parent] += tree_[i];
    }
    count_ = size_;
  }

  void erase(std::uint32_t at) {
    RRFP_CHECK(bits_.test(at), "a task is launched once per step");
    bits_.erase(at);
    for (auto i = at / 64 + 1; i < tree_.size(); i += i & (~i + 1)) --tree_[i];
    --count_;
  }

  bool test(std::uint32_t at) const { return bits_.test(at); }
  std::uint32_t count() const { return count_; }
  std::uint32_t count(std::uint32_t from, std::uint32_t to) const {
    return below(to) - below(from);
  }
  std::uint32_t first_in(std::uint32_t from, std::uint32_t end) const {
    return bits_.first_in(from, end);
  }

 private:
  std::uint32_t below(std::uint32_t at) const {
    std::uint32_t sum = 0;
    for (auto i = at / 64; i > 0; i -= i & (~i + 1)) sum += tree_[i];
    if (at % 64 != 0) {
      const auto mask = (std::uint64_t{1} << (at % 64)) - 1;
      sum += static_cast<std::uint32_t>(std::popcount(bits_.word(at / 64) & mask));
    }
    return sum;
  }

  priority_bitmap bits_;
  std::uint32_t size_;
  std::vector<std::uint32_t> tree_;
  std::uint32_t count_ = 0;
};

}  // namespace rrfp
