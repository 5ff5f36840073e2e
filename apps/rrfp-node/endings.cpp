#include "endings.hpp"

#include <fmt/format.h>

#include "../common/exit_code.hpp"

namespace rrfp::apps {

std::string_view name(actors::ending how) {
  switch (how) {
    case actors::ending::done: return "done";
    case actors::ending::interrupted: return "interrupted";
    case actors::ending::bad_input: return "bad_input";
    case actors::ending::failed: return "failed";
    case actors::ending::node_lost: return "node_lost";
  }
  return "?";
}

int exit_code_of(actors::ending how) {
  switch (how) {
    case actors::ending::done: return exit_done;
    case actors::ending::interrupted: return exit_interrupted;
    case actors::ending::bad_input: return exit_bad_input;
    case actors::ending::failed: return exit_failed;
    case actors::ending::node_lost: return exit_node_lost;
  }
  return exit_failed;
}

std::string cause_of(const actors::run_result& r, bool knows_steps) {
  if (r.how == actors::ending::done) return {};
  if (r.how == actors::ending::interrupted)
    return knows_steps
               ? fmt::format("interrupted after {} steps", r.summary.first_step + r.summary.steps)
               : "interrupted";
  if (!r.message.empty()) return r.message;
  return fmt::format("internal error: the run ended as {} without a reason", name(r.how));
}

}  // namespace rrfp::apps
