/// Runs a job of several nodes on this machine: starts one process per node, watches them, and
/// leaves none behind.
#pragma once

#include <optional>

#include <rrfp/job/job.hpp>

#include "commands.hpp"
#include "interrupt_watch.hpp"
#include "metrics_server.hpp"

namespace rrfp::apps {

/// Starts options.local_nodes processes of this program, which join over loopback, and waits for
/// them. SIGINT goes to node 0, which ends the job for all. When a node fails, the other nodes may
/// report the loss for `report_limit`; then this process names the first node that failed. Nodes
/// that do not end within the time limits are killed; they also die with this process. Node N
/// serves metrics on the port of `metrics` + N, if there is one. Returns the exit code of the job.
int launch_nodes(const command_options& options, const job::job& j,
                 const std::optional<http_address>& metrics, interrupt_watch& interrupts);

}  // namespace rrfp::apps
