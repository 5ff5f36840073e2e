/// Which node this process is, from arguments, torchrun's variables and Slurm's.
#include <map>

#include <catch2/catch.hpp>

#include <rrfp/membership/launch_environment.hpp>

namespace rrfp::actors {
namespace {

using variables = std::map<std::string, std::string>;

result<launch_place> resolve(const launch_arguments& arguments, const variables& set) {
  return resolve_launch(arguments, [&](const char* name) -> const char* {
    const auto at = set.find(name);
    return at == set.end() ? nullptr : at->second.c_str();
  });
}

/// "RANK of NODES at HOST:PORT" and perhaps ", the agent's", or the error.
std::string resolved(const launch_arguments& arguments, const variables& set) {
  const auto got = resolve(arguments, set);
  if (!got) return got.message();
  return std::to_string(got->node.value()) + " of " + std::to_string(got->nodes) + " at " +
         got->host + ":" + std::to_string(got->port) + (got->is_agents_port ? ", the agent's" : "");
}

const variables torchrun{
    {"NNODES", "4"}, {"NODE_RANK", "3"}, {"MASTER_ADDR", "head"}, {"MASTER_PORT", "1234"}};
const variables slurm{
    {"SLURM_NNODES", "8"}, {"SLURM_NODEID", "5"}, {"SLURM_STEP_NODELIST", "gpu[003-007,9]"}};

variables with(variables a, const variables& b) {
  for (const auto& [name, value] : b) a[name] = value;
  return a;
}

}  // namespace

TEST_CASE("Without arguments and variables the job has one node") {
  CHECK(resolved({}, {}) == "0 of 1 at 127.0.0.1:29400");
  CHECK(resolved({}, {{"NNODES", ""}, {"SLURM_NODEID", ""}}) == "0 of 1 at 127.0.0.1:29400");
}

TEST_CASE("Arguments, torchrun's variables and Slurm's variables each suffice") {
  CHECK(resolved({2, 1, "head:77"}, {}) == "1 of 2 at head:77");
  CHECK(resolved({}, torchrun) == "3 of 4 at head:1234");
  CHECK(resolved({}, {{"GROUP_WORLD_SIZE", "4"}, {"GROUP_RANK", "2"}, {"MASTER_ADDR", "head"}}) ==
        "2 of 4 at head:29400");
  CHECK(resolved({}, slurm) == "5 of 8 at gpu003:29400");
  CHECK(resolved({}, {{"SLURM_JOB_NUM_NODES", "2"},
                      {"SLURM_NODEID", "1"},
                      {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1"},
                      {"SLURM_JOB_NODELIST", "other"}}) == "1 of 2 at 10.0.0.1:29400");
  CHECK(resolved({},
                 {{"SLURM_NNODES", "2"}, {"SLURM_NODEID", "1"}, {"SLURM_JOB_NODELIST", "a1,a2"}}) ==
        "1 of 2 at a1:29400");
}

TEST_CASE("Arguments override torchrun's variables, and those override Slurm's, value by value") {
  const auto both = with(torchrun, slurm);
  CHECK(resolved({}, both) == "3 of 4 at head:1234");
  CHECK(resolved({9, {}, {}}, both) == "3 of 9 at head:1234");
  CHECK(resolved({{}, 0, {}}, both) == "0 of 4 at head:1234");
  CHECK(resolved({{}, {}, "there:5"}, both) == "3 of 4 at there:5");
  // The host of one source does not belong to the port of another.
  CHECK(resolved({{}, {}, "there"}, both) == "3 of 4 at there:29400");
  CHECK(resolved({}, with(slurm, {{"MASTER_ADDR", "head"}, {"MASTER_PORT", "77"}})) ==
        "5 of 8 at head:77");
  CHECK(resolved({}, with(slurm, {{"MASTER_PORT", "77"}})) == "5 of 8 at gpu003:77");
}

TEST_CASE("Host and port may be two arguments, as for torchrun") {
  CHECK(resolved({2, 1, {}, "head", 77}, {}) == "1 of 2 at head:77");
  CHECK(resolved({2, 1, {}, "::1", 77}, {}) == "1 of 2 at ::1:77");
  CHECK(resolved({2, 1, {}, "there", 5}, torchrun) == "1 of 2 at there:5");
  // The host of one source does not belong to the port of another.
  CHECK(resolved({2, 1, {}, "there", {}}, torchrun) == "1 of 2 at there:29400");
  CHECK(resolved({{}, {}, {}, {}, 5}, torchrun) == "3 of 4 at head:5");
  CHECK(resolved({{}, {}, {}, {}, 5}, with(torchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}})) ==
        "3 of 4 at head:5");
  CHECK(resolved({{}, {}, {}, {}, 5}, slurm) == "5 of 8 at gpu003:5");
  CHECK(resolved({2, 1, {}, "", 77}, {}) == "--master-addr: expected a host, got ''");
}

TEST_CASE("Each process of torchrun is a node, and MASTER_PORT is its agent's") {
  // Two processes on each of two machines, as torchrun sets them.
  const variables process{{"RANK", "3"},
                          {"WORLD_SIZE", "4"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "2"},
                          {"GROUP_RANK", "1"},
                          {"GROUP_WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "head"},
                          {"MASTER_PORT", "29500"},
                          {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  CHECK(resolved({}, process) == "3 of 4 at head:29500, the agent's");
  // The variables of the surrounding script have lower priority.
  CHECK(resolved({}, with(process, {{"NNODES", "2"}, {"NODE_RANK", "1"}})) ==
        "3 of 4 at head:29500, the agent's");
  CHECK(resolved({}, with(process, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})) ==
        "3 of 4 at head:29500");
  CHECK(resolved({{}, {}, "other:77"}, process) == "3 of 4 at other:77");
}

TEST_CASE("Without torchrun, the variables that give its options their defaults count") {
  // As the torch plugin of Kubeflow Trainer sets them in a pod.
  const variables pod{{"PET_NNODES", "2"},
                      {"PET_NPROC_PER_NODE", "1"},
                      {"PET_NODE_RANK", "1"},
                      {"PET_MASTER_ADDR", "job-node-0-0.job"},
                      {"PET_MASTER_PORT", "29400"}};
  CHECK(resolved({}, pod) == "1 of 2 at job-node-0-0.job:29400");
  CHECK(resolved({}, with(pod, {{"PET_MASTER_PORT", "77"}})) == "1 of 2 at job-node-0-0.job:77");
  CHECK(resolved({}, with(slurm, pod)) == "1 of 2 at job-node-0-0.job:29400");
  const auto several = with(pod, {{"PET_NPROC_PER_NODE", "4"}});
  const auto refused = [](const std::string& got) {
    return "PET_NPROC_PER_NODE: expected 1 (without torchrun a machine runs one node), got '" +
           got + "'";
  };
  CHECK(resolved({}, several) == refused("4"));
  CHECK(resolved({}, with(pod, {{"PET_NPROC_PER_NODE", "auto"}})) == refused("auto"));
  // torchrun passes them on to its processes, and sets its own.
  CHECK(resolved({}, with(several, torchrun)) == "3 of 4 at head:1234");
  CHECK(resolved({8, {}, {}}, several) == "1 of 8 at job-node-0-0.job:29400");
}

TEST_CASE("A rendezvous is host and port, IPv6 in brackets") {
  CHECK(resolved({2, 1, "[::1]:77"}, {}) == "1 of 2 at ::1:77");
  CHECK(resolved({2, 1, "[::1]"}, {}) == "1 of 2 at ::1:29400");
  for (const auto* bad : {"", ":77", "::1", "[::1", "[]:5", "[::1]77"})
    CHECK(resolved({2, 1, bad}, {}) ==
          "--rendezvous: expected HOST:PORT or [IPv6]:PORT, got '" + std::string{bad} + "'");
  for (const auto* port : {"", "0", "65536", "x", "7 "})
    CHECK(resolved({2, 1, "head:" + std::string{port}}, {}) ==
          "--rendezvous: expected a port, 1 to 65535, got '" + std::string{port} + "'");
}

TEST_CASE("An error names the variable, the expected value and the actual one") {
  CHECK(resolved({}, with(torchrun, {{"NNODES", "1:4"}})) ==
        "NNODES: expected a whole number, got '1:4'");
  CHECK(resolved({}, with(torchrun, {{"NODE_RANK", "-1"}})) ==
        "NODE_RANK: expected a whole number, got '-1'");
  CHECK(resolved({}, with(torchrun, {{"NODE_RANK", "4"}})) ==
        "NODE_RANK: expected 0 to 3 (from NNODES), got '4'");
  CHECK(resolved({}, {{"SLURM_NODEID", "1"}}) ==
        "SLURM_NODEID: expected 0 to 0 (from the default of 1 node), got '1'");
  CHECK(resolved({}, with(torchrun, {{"NNODES", "0"}})) ==
        "NNODES: expected 1 node or more, got '0'");
  CHECK(resolved({}, with(torchrun, {{"NNODES", "4294967296"}})) ==
        "NNODES: expected a whole number, got '4294967296'");
  CHECK(resolved({}, with(torchrun, {{"MASTER_PORT", "99999"}})) ==
        "MASTER_PORT: expected a port, 1 to 65535, got '99999'");
  CHECK(resolved({}, with(slurm, {{"SLURM_STEP_NODELIST", "gpu[003"}})) ==
        "SLURM_STEP_NODELIST: expected a node list such as gpu[003-007,9],login1, got 'gpu[003'");
  CHECK(resolved({3, {}, "head:1"}, {}) ==
        "--nnodes is 3: expected the number of this node in --node-rank, RANK, NODE_RANK or "
        "SLURM_NODEID, got none");
  CHECK(resolved({3, 1, {}}, {}) ==
        "--nnodes is 3: expected the host of node 0 in --rendezvous, --master-addr, "
        "MASTER_ADDR or SLURM_STEP_NODELIST, got none");
}

TEST_CASE("The first host of a Slurm node list") {
  const auto first = [](const std::string& list) {
    const auto got = first_of_node_list(list);
    return got.ok() ? *got : "error";
  };
  CHECK(first("gpu1") == "gpu1");
  CHECK(first("gpu1,gpu2") == "gpu1");
  CHECK(first("gpu[003-007,9]") == "gpu003");
  CHECK(first("gpu[9,003-007],login1") == "gpu9");
  CHECK(first("a,gpu[003-007]") == "a");
  CHECK(first("rack[1-2]-ib") == "rack1-ib");
  CHECK(first("rack[1-2]n[05-09],x") == "rack1n05");
  for (const auto* bad : {"", ",a", "gpu[", "gpu[]", "gpu[a-b]", "gpu[1-2]]", "gpu]", "[1-2"})
    CHECK(first(bad) == "error");
}

}  // namespace rrfp::actors
