#include "messages.hpp"

namespace rrfp::actors {

#define RRFP_DEFINE(message)                      \
  template void post(const caf::actor&, message); \
  template void post_after(actor_base*, std::chrono::milliseconds, message);
RRFP_MESSAGES(RRFP_DEFINE)
RRFP_LOCAL_MESSAGES(RRFP_DEFINE)
#undef RRFP_DEFINE

void add_messages(caf::actor_system_config& config) {
#define RRFP_ADD(message) add_message<message>(config, "rrfp." #message);
  RRFP_MESSAGES(RRFP_ADD)
#undef RRFP_ADD
}

}  // namespace rrfp::actors
