#include "endings.hpp"

#include <fmt/format.h>

#include <rrfp/base/exit_code.hpp>

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
  const auto kind = kind_of(how);
  return kind ? rrfp::exit_code_of(*kind) : exit_done;
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
