/// A job of several nodes on this machine: starts a process a node, watches them, and leaves none.
#pragma once

#include <optional>
#include <string>

#include <rrfp/job/job.hpp>

#include "commands.hpp"
#include "interrupt_watch.hpp"
#include "metrics_server.hpp"

namespace rrfp::apps {

/// Starts options.local_nodes processes of this program, which join each other over loopback, and
/// waits for them. SIGINT goes to node 0, which ends the job for all. When one node ends otherwise
/// than well, the others have a moment to say so, or it is named here, the first that failed by
/// itself; and some seconds to end, then they are killed, as when this process dies. Node N serves its numbers on the port of `metrics` + N, if there is one. Returns
/// the exit code of the job.
int launch_nodes(const command_options& options, const job::job& j,
                 const std::optional<http_address>& metrics, const std::string& reports,
                 interrupt_watch& interrupts);

}  // namespace rrfp::apps
