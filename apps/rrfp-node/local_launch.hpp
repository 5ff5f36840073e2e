/// A job of several nodes on this machine: starts a process a node, watches them, and leaves none.
#pragma once

#include <rrfp/job/job.hpp>

#include "commands.hpp"
#include "interrupt_watch.hpp"

namespace rrfp::apps {

/// Starts options.local_nodes processes of this program, which join each other over loopback, and
/// waits for them. SIGINT goes to node 0, which ends the job for all. When one node ends otherwise
/// than well, the others have some seconds to say why and end; then they are killed, as when this
/// process dies. Returns the exit code of the job.
int launch_nodes(const command_options& options, const job::job& j, interrupt_watch& interrupts);

}  // namespace rrfp::apps
