#pragma once

#include <memory>

#include <rrfp/actors/framework.hpp>

namespace rrfp::apps {

/// The framework that this program was built with.
std::unique_ptr<actors::framework> make_framework();

}  // namespace rrfp::apps
