#include <rrfp/torch_actors/torch_framework.hpp>

#include "commands.hpp"

namespace rrfp::apps {

std::unique_ptr<actors::framework> make_framework() { return actors::make_torch_framework(); }

}  // namespace rrfp::apps
