#include "messages.hpp"

namespace rrfp::actors {

#define RRFP_DEFINE(message)                      \
  template void post(const caf::actor&, message); \
  template void post_after(actor_base*, std::chrono::milliseconds, message);
RRFP_MESSAGES(RRFP_DEFINE)
RRFP_LOCAL_MESSAGES(RRFP_DEFINE)
#undef RRFP_DEFINE

#define RRFP_DEFINE(message) template void post(const actor_ref&, message);
RRFP_MESSAGES(RRFP_DEFINE)
#undef RRFP_DEFINE

}  // namespace rrfp::actors
