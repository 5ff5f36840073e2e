/// A set of small integers that finds its next member in O(log64 n). Each integer has one bit; each
/// bit of a higher level says whether one word of the level below is non-empty. counted_bitmap also
/// counts the members of a range, with a Fenwick tree over the words.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <rrfp/base/check.hpp>

namespace rrfp {

class priority_bitmap {
 public:
  static constexpr std::uint32_t none = ~std::uint32_t{0};

  explicit priority_bitmap(std::uint32_t size = 0) {
    std::uint32_t words = size;
    std::uint32_t all = 0;
    do {
      words = (words + 63) / 64;
      begins_[++levels_] = all += words;
    } while (words > 1);
    words_.resize(all);
  }

  void clear() { std::ranges::fill(words_, 0); }

  bool is_empty() const { return words_.empty() || words_.back() == 0; }
  bool test(std::uint32_t at) const { return (words_[at / 64] >> (at % 64) & 1) != 0; }

  void insert(std::uint32_t at) {
    for (std::uint32_t level = 0; level < levels_; ++level) {
      auto& word = words_[begins_[level] + at / 64];
      const bool was_empty = word == 0;
      word |= std::uint64_t{1} << (at % 64);
      if (!was_empty) return;
      at /= 64;
    }
  }

  void erase(std::uint32_t at) {
    for (std::uint32_t level = 0; level < levels_; ++level) {
      auto& word = words_[begins_[level] + at / 64];
      word &= ~(std::uint64_t{1} << (at % 64));
      if (word != 0) return;
      at /= 64;
    }
  }

  /// The smallest member in [from, end), or none.
  std::uint32_t first_in(std::uint32_t from, std::uint32_t end) const {
    if (is_empty()) return none;
    const auto found = next(from);
    return found < end ? found : none;
  }

  std::uint64_t word(std::uint32_t index) const { return words_[index]; }

 private:
  std::uint32_t next(std::uint32_t from) const {
    for (std::uint32_t level = 0; level < levels_; ++level) {
      const auto index = begins_[level] + from / 64;
      if (index >= begins_[level + 1]) return none;
      if (const auto rest = words_[index] >> (from % 64); rest != 0) {
        auto found = from + static_cast<std::uint32_t>(std::countr_zero(rest));
        while (level-- > 0)
          found = found * 64 +
                  static_cast<std::uint32_t>(std::countr_zero(words_[begins_[level] + found]));
        return found;
      }
      from = from / 64 + 1;
    }
    return none;
  }

  static constexpr std::size_t levels_max = 6;  // of 2^32 integers
  std::uint32_t levels_ = 0;
  std::array<std::uint32_t, levels_max + 1> begins_{};  ///< of each level in words_
  std::vector<std::uint64_t> words_;                    ///< the lowest level first
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
