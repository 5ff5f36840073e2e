#include <initializer_list>
#include <limits>
#include <string_view>

#include <fmt/format.h>

#include <rrfp/base/parse_number.hpp>
#include <rrfp/membership/launch_environment.hpp>

namespace rrfp::actors {

namespace {

struct found {
  std::string name;
  std::string text;
};

struct number {
  std::uint32_t value = 0;
  std::string from;  ///< the argument or variable; empty if none is set
};

struct place {
  std::string host;
  std::optional<std::uint16_t> port;
  bool is_agents_port = false;
};

error wrong(const std::string& name, std::string_view expected, std::string_view received) {
  return error{fmt::format("{}: expected {}, got '{}'", name, expected, received)};
}

std::optional<found> first_set(const environment& variables,
                               std::initializer_list<const char*> names) {
  for (const auto* name : names)
    if (const auto* text = variables(name); text != nullptr && *text != '\0')
      return found{name, text};
  return std::nullopt;
}

result<number> resolve_number(std::optional<std::uint32_t> argument, const char* argument_name,
                              const environment& variables,
                              std::initializer_list<const char*> names) {
  if (argument) return number{*argument, argument_name};
  const auto variable = first_set(variables, names);
  if (!variable) return number{};
  const auto value = parse_number<std::uint32_t>(variable->text);
  if (!value) return wrong(variable->name, "a whole number", variable->text);
  return number{*value, variable->name};
}

result<std::uint16_t> port_of(const std::string& name, std::string_view text) {
  const auto value = parse_number<std::uint32_t>(text);
  if (!value || *value < 1 || *value > std::numeric_limits<std::uint16_t>::max())
    return wrong(name, "a port, 1 to 65535", text);
  return static_cast<std::uint16_t>(*value);
}

result<place> split_rendezvous(const std::string& text) {
  const std::string name = "--rendezvous";
  const auto malformed = wrong(name, "HOST:PORT or [IPv6]:PORT", text);
  std::string_view rest = text;
  place found;
  if (rest.starts_with('[')) {
    const auto close = rest.find(']');
    if (close == std::string_view::npos) return malformed;
    found.host = rest.substr(1, close - 1);
    rest.remove_prefix(close + 1);
  } else {
    const auto colon = rest.find(':');
    // More than one colon: an IPv6 address without brackets, whose port would be ambiguous.
    if (colon != rest.rfind(':')) return malformed;
    found.host = rest.substr(0, colon);
    rest.remove_prefix(found.host.size());
  }
  if (found.host.empty() || (!rest.empty() && rest.front() != ':')) return malformed;
  if (rest.empty()) return found;
  const auto port = port_of(name, rest.substr(1));
  if (!port) return port.failure();
  found.port = *port;
  return found;
}

/// torchrun's agent listens on MASTER_PORT while its processes run.
bool agent_uses_port(const environment& variables) {
  const auto value = first_set(variables, {"TORCHELASTIC_USE_AGENT_STORE"});
  return value && value->text == "True";
}

result<place> resolve_place(const launch_arguments& arguments, const environment& variables) {
  place found;
  if (arguments.rendezvous) {
    auto split = split_rendezvous(*arguments.rendezvous);
    if (!split) return split.failure();
    found = *std::move(split);
  } else if (arguments.master_host) {
    if (arguments.master_host->empty()) return wrong("--master-addr", "a host", "");
    found.host = *arguments.master_host;
  } else if (auto host = first_set(variables, {"MASTER_ADDR", "PET_MASTER_ADDR"})) {
    found.host = host->text;
  } else if (auto slurm = first_set(variables, {"SLURM_STEP_NODELIST", "SLURM_LAUNCH_NODE_IPADDR",
                                                "SLURM_JOB_NODELIST"})) {
    auto first = first_of_node_list(slurm->text);
    if (!first) return wrong(slurm->name, first.message(), slurm->text);
    found.host = *std::move(first);
  }
  if (arguments.master_port) found.port = arguments.master_port;
  if (found.port || arguments.rendezvous || arguments.master_host) return found;
  if (const auto variable = first_set(variables, {"MASTER_PORT", "PET_MASTER_PORT"})) {
    const auto port = port_of(variable->name, variable->text);
    if (!port) return port.failure();
    found.port = *port;
    found.is_agents_port = agent_uses_port(variables);
  }
  return found;
}

}  // namespace

result<std::string> first_of_node_list(const std::string& list) {
  const error malformed{"a node list such as gpu[003-007,9],login1"};
  const auto open = list.find_first_of("[,");
  const auto head = list.substr(0, open);
  if (open == std::string::npos || list[open] == ',')
    return head.empty() || head.find(']') != std::string::npos ? result<std::string>{malformed}
                                                               : head;
  // The first of "003-007,9" is 003, with its leading zeros.
  const auto close = list.find(']', open);
  if (close == std::string::npos) return malformed;
  const auto ranges = list.substr(open + 1, close - open - 1);
  const auto digits = ranges.substr(0, ranges.find_first_of("-,"));
  if (!parse_number<std::uint32_t>(digits)) return malformed;
  // The rest belongs to the name ("rack1-[01-04]-ib") and may contain more brackets.
  const auto tail = list.substr(close + 1);
  if (tail.empty() || tail.front() == ',') return head + digits;
  const auto rest = first_of_node_list(tail);
  if (!rest) return malformed;
  return head + digits + *rest;
}

result<launch_place> resolve_launch(const launch_arguments& arguments,
                                    const environment& variables) {
  const auto nodes = resolve_number(arguments.nodes, "--nnodes", variables,
                                    {"WORLD_SIZE", "NNODES", "GROUP_WORLD_SIZE", "PET_NNODES",
                                     "SLURM_NNODES", "SLURM_JOB_NUM_NODES"});
  if (!nodes) return nodes.failure();
  const auto processes = first_set(variables, {"PET_NPROC_PER_NODE"});
  if (nodes->from == "PET_NNODES" && processes && processes->text != "1")
    return wrong(processes->name, "1 (without torchrun a machine runs one node)", processes->text);
  const auto node =
      resolve_number(arguments.node, "--node-rank", variables,
                     {"RANK", "NODE_RANK", "GROUP_RANK", "PET_NODE_RANK", "SLURM_NODEID"});
  if (!node) return node.failure();
  auto address = resolve_place(arguments, variables);
  if (!address) return address.failure();

  launch_place found;
  found.has_nodes = !nodes->from.empty();
  if (found.has_nodes) found.nodes = nodes->value;
  if (found.nodes < 1) return wrong(nodes->from, "1 node or more", "0");
  found.node = node_id{node->value};
  if (node->value >= found.nodes)
    return wrong(node->from,
                 fmt::format("0 to {} (from {})", found.nodes - 1,
                             nodes->from.empty() ? "the default of 1 node" : nodes->from),
                 std::to_string(node->value));
  if (found.nodes > 1 && node->from.empty())
    return error{
        fmt::format("{} is {}: expected the number of this node in --node-rank, RANK, "
                    "NODE_RANK or SLURM_NODEID, got none",
                    nodes->from, found.nodes)};
  if (found.nodes > 1 && address->host.empty())
    return error{
        fmt::format("{} is {}: expected the host of node 0 in --rendezvous, --master-addr, "
                    "MASTER_ADDR or SLURM_STEP_NODELIST, got none",
                    nodes->from, found.nodes)};
  if (!address->host.empty()) found.host = std::move(address->host);
  if (address->port) found.port = *address->port;
  found.is_agents_port = address->is_agents_port;
  return found;
}

}  // namespace rrfp::actors
