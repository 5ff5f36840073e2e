/// The pending events of a simulation, earliest first. Events of the same instant are ordered by
/// stage and rank, and the end of a task comes before arrivals, so that the order of events is
/// unique.
#pragma once

#include <cstdint>
#include <vector>

#include <rrfp/simulate/simulator.hpp>

namespace rrfp::simulate {

/// On one rank of a stage: the end of the task that runs there, an arrival, or (on rank 0) that the
/// stage has to decide again. Packed, because the queue is the hottest data of a simulation.
class timed_event {
 public:
  /// Identifies the input: 2 * (chunk * microbatches + mb), plus 1 for a gradient.
  using input_index = std::uint32_t;
  /// stage * ranks + rank
  using lane_index = std::uint32_t;

  static timed_event task_end(nanoseconds at, lane_index lane) { return {at, lane, 0}; }
  static timed_event decision(nanoseconds at, lane_index lane) { return {at, lane, 1}; }
  static timed_event arrival(nanoseconds at, lane_index lane, input_index input) {
    return {at, lane, input + 2};
  }

  nanoseconds at() const { return at_; }
  lane_index lane() const { return static_cast<lane_index>(key_ >> 32); }
  bool is_task_end() const { return static_cast<std::uint32_t>(key_) == 0; }
  bool is_decision() const { return static_cast<std::uint32_t>(key_) == 1; }
  input_index input() const { return static_cast<std::uint32_t>(key_) - 2; }

  bool operator<(const timed_event& other) const {
    return at_ != other.at_ ? at_ < other.at_ : key_ < other.key_;
  }

 private:
  timed_event(nanoseconds at, lane_index lane, std::uint32_t low)
      : at_(at), key_(std::uint64_t{lane} << 32 | low) {}

  nanoseconds at_;
  std::uint64_t key_;
};

/// A heap with four children per node: half the depth of a binary heap, and the children of a node
/// share a cache line.
class event_queue {
 public:
  bool empty() const { return heap_.empty(); }
  const timed_event& top() const { return heap_.front(); }

  void push(timed_event x) {
    auto hole = heap_.size();
    heap_.push_back(x);
    while (hole > 0) {
      const auto parent = (hole - 1) / 4;
      if (!(x < heap_[parent])) break;
      heap_[hole] = heap_[parent];
      hole = parent;
    }
    heap_[hole] = x;
  }

  timed_event pop() {
    const auto first = heap_.front();
    const auto last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) sink(last);
    return first;
  }

 private:
  void sink(timed_event x) {
    const auto size = heap_.size();
    std::size_t hole = 0;
    for (;;) {
      const auto begin = 4 * hole + 1;
      if (begin >= size) break;
      const auto end = begin + 4 < size ? begin + 4 : size;
      auto least = begin;
      for (auto i = begin + 1; i < end; ++i)
        if (heap_[i] < heap_[least]) least = i;
      if (!(heap_[least] < x)) break;
      heap_[hole] = heap_[least];
      hole = least;
    }
    heap_[hole] = x;
  }

  std::vector<timed_event> heap_;
};

}  // namespace rrfp::simulate
