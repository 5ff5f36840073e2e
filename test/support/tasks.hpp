#pragma once

#include <rrfp/core/task.hpp>

namespace rrfp::testing {

inline task make_task(task_kind kind, std::uint32_t mb = 0, std::uint32_t chunk = 0) {
  return {kind, microbatch_id{mb}, chunk_id{chunk}};
}

}  // namespace rrfp::testing
