/// The policies of rrfp.
#pragma once

#include <rrfp/core/policy.hpp>

namespace rrfp::policies {

/// Lives until the process ends. Thread-safe.
const policy_registry& registry();

}  // namespace rrfp::policies
