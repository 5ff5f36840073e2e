#include <rrfp/base/exit_code.hpp>

#include "../common/console.hpp"
#include "commands.hpp"

namespace rrfp::apps {

std::unique_ptr<actors::framework> make_framework() { return actors::make_no_framework(); }

int export_command(const export_options&) {
  print_error("rrfp-node export: this program was built without libtorch\n");
  return exit_bad_input;
}

}  // namespace rrfp::apps
