/// The ready tasks of a stage, by position in the ranking.
#pragma once

#include <cstdint>

#include "priority_bitmap.hpp"

namespace rrfp {

struct ready_sets {
  explicit ready_sets(std::uint32_t size = 0)
      : admission(size), forwards(size), again(size), due_again(size), others(size) {}

  void clear() {
    count = 0;
    for (auto* set : {&admission, &forwards, &again, &due_again, &others}) set->clear();
  }
  bool test(std::uint32_t at) const {
    return others.test(at) || forwards.test(at) || admission.test(at) || again.test(at) ||
           due_again.test(at);
  }

  std::uint32_t count = 0;    ///< of all that follow
  priority_bitmap admission;  ///< F that still need a slot
  priority_bitmap forwards;   ///< F that do not
  priority_bitmap again;      ///< F that ran early and have no slot, before their gradient arrives
  priority_bitmap due_again;  ///< the same after it has arrived
  priority_bitmap others;     ///< B, W and BW
};

}  // namespace rrfp
