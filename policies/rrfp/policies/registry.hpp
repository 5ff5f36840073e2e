/// The policies of rrfp.
#pragma once

#include <rrfp/core/policy.hpp>

namespace rrfp::policies {

const policy_registry& registry();

}  // namespace rrfp::policies
