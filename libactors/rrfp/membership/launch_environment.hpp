/// Which node of the job this process is: from the command line, from the variables of torchrun and
/// similar launchers, or from those of Slurm. Pure: the environment is passed as a function.
///
///   value | argument      | torchrun-style       | torchrun's options | Slurm
///   nodes | --nnodes      | WORLD_SIZE, NNODES,  | PET_NNODES         | SLURM_NNODES,
///         |               | GROUP_WORLD_SIZE     |                    | SLURM_JOB_NUM_NODES
///   node  | --node-rank   | RANK, NODE_RANK,     | PET_NODE_RANK      | SLURM_NODEID
///         |               | GROUP_RANK           |                    |
///   host  | --rendezvous, | MASTER_ADDR          | PET_MASTER_ADDR    | SLURM_STEP_NODELIST,
///         | --master-addr |                      |                    | SLURM_LAUNCH_NODE_IPADDR,
///         |               |                      |                    | SLURM_JOB_NODELIST
///   port  | --rendezvous, | MASTER_PORT          | PET_MASTER_PORT    | (29400)
///         | --master-port |                      |                    |
///
/// Of a list of nodes from Slurm, the first one counts.
///
/// Each line is resolved separately, and its leftmost, first source wins: MASTER_ADDR together with
/// SLURM_NODEID is common. If the host is an argument, no variable gives the port. An empty
/// variable counts as unset. A node is a process: torchrun may start several on a machine.
///
/// Kubeflow Trainer sets the PET_ variables, the defaults of torchrun's options, in each pod. They
/// count machines; so without torchrun, PET_NPROC_PER_NODE must be 1 where PET_NNODES is used.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <rrfp/base/ids.hpp>
#include <rrfp/base/result.hpp>

namespace rrfp::actors {

/// torchrun's default rendezvous port.
inline constexpr std::uint16_t rendezvous_port_default = 29400;

struct launch_arguments {
  std::optional<std::uint32_t> nodes;
  std::optional<std::uint32_t> node;
  std::optional<std::string> rendezvous;  ///< host:port, [IPv6]:port, or a host alone
  /// Instead of `rendezvous`; an IPv6 address has no brackets.
  std::optional<std::string> master_host = {};
  std::optional<std::uint16_t> master_port = {};
};

struct launch_place {
  std::uint32_t nodes = 1;
  node_id node{0};
  std::string host = "127.0.0.1";
  std::uint16_t port = rendezvous_port_default;
  /// Under torchrun (TORCHELASTIC_USE_AGENT_STORE is "True") its agent listens on MASTER_PORT: node
  /// 0 listens on a free port, which the other nodes find in the agent's store.
  bool is_agents_port = false;
  bool has_nodes = false;  ///< a source gave the number of nodes
};

/// Returns the value of a variable, or null if it is unset; `std::getenv`, for example.
using environment = std::function<const char*(const char* name)>;

/// One node if no source gives a number. An error names the argument or variable, the expected
/// value and the actual one.
result<launch_place> resolve_launch(const launch_arguments& arguments,
                                    const environment& variables);

/// The first host of a Slurm node list: "gpu003" of "gpu[003-007,9],login1".
result<std::string> first_of_node_list(const std::string& list);

}  // namespace rrfp::actors
