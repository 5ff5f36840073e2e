/// Which layer may include which, and which symbols the pure core may need at link time. Each rule
/// is also tested on a small tree that breaks it.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include <catch2/catch.hpp>

#include "layers.hpp"

namespace rrfp::testing {
namespace {

namespace fs = std::filesystem;
using lines = std::vector<std::string>;

/// A source tree in a temporary folder, deleted after the test.
class temporary_tree {
 public:
  temporary_tree() {
    auto pattern = (fs::temp_directory_path() / "rrfp-layers-XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    root_ = pattern;
  }
  temporary_tree(const temporary_tree&) = delete;
  temporary_tree& operator=(const temporary_tree&) = delete;
  ~temporary_tree() { fs::remove_all(root_); }

  temporary_tree& add(const fs::path& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream{root_ / file} << text;
    return *this;
  }
  lines violations() const { return layer_violations(root_); }

 private:
  fs::path root_;
};

lines output_of(const std::string& command) {
  lines out;
  auto* const pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  char buffer[4096];
  while (std::fgets(buffer, sizeof buffer, pipe) != nullptr) {
    std::string line{buffer};
    while (!line.empty() && line.back() == '\n') line.pop_back();
    out.push_back(line);
  }
  REQUIRE(pclose(pipe) == 0);
  return out;
}

/// The names in the output of `nm -P`: the first word of each line that describes a symbol.
lines symbols_of(const std::string& archive, const std::string& options) {
  lines names;
  for (const auto& line : output_of(RRFP_NM " -P " + options + " '" + archive + "'")) {
    std::istringstream words{line};
    std::string name;
    std::string type;
    if (words >> name >> type && type.size() == 1) names.push_back(name);
  }
  return names;
}

}  // namespace

TEST_CASE("Every include of the tree is allowed between its layers") {
  CHECK(layer_violations(RRFP_SOURCE_DIR) == lines{});
}

TEST_CASE("The archive of a core needs base and the C++ runtime and nothing else") {
  const std::string archive =
      GENERATE(RRFP_SCHEDULE_ARCHIVE, RRFP_JOB_CORE_ARCHIVE, RRFP_MEMBERSHIP_CORE_ARCHIVE,
               RRFP_TRANSPORT_CORE_ARCHIVE, RRFP_CHECKPOINT_CORE_ARCHIVE);
  auto undefined = symbols_of(archive, "-u");
  auto defined = symbols_of(archive, "--defined-only");
  for (const auto& symbol : symbols_of(RRFP_BASE_ARCHIVE, "-u")) undefined.push_back(symbol);
  for (const auto& symbol : symbols_of(RRFP_BASE_ARCHIVE, "--defined-only"))
    defined.push_back(symbol);
  REQUIRE(undefined.size() > 10);
  REQUIRE(defined.size() > 10);
  CHECK(foreign_symbols(undefined, defined) == lines{});
}

TEST_CASE("The cores link base or the stage's core, and the warning flags") {
  CHECK(std::string{RRFP_JOB_CORE_LINKS} == "rrfp::schedule $<BUILD_INTERFACE:rrfp_options>");
  const std::string links = GENERATE(RRFP_SCHEDULE_LINKS, RRFP_MEMBERSHIP_CORE_LINKS,
                                     RRFP_TRANSPORT_CORE_LINKS, RRFP_CHECKPOINT_CORE_LINKS);
  CHECK(links == "rrfp::base $<BUILD_INTERFACE:rrfp_options>");
}

TEST_CASE("The core may include its own headers and the pure part of the standard library") {
  temporary_tree tree;
  tree.add("libpipeline/schedule/include/rrfp/schedule/a.hpp", "#pragma once\n#include <vector>\n")
      .add("libpipeline/base/include/rrfp/base/c.hpp", "#include <string>\n")
      .add("libpipeline/schedule/b.hpp", "// #include <thread>\n")
      .add("libpipeline/schedule/b.cpp",
           "#include <rrfp/schedule/a.hpp>\n#include <rrfp/base/c.hpp>\n#include \"b.hpp\"\n")
      .add("libpipeline/base/check.cpp", "#include <cstdio>\n#include <cstdlib>\n");
  CHECK(tree.violations() == lines{});
}

TEST_CASE("A clock, thread, socket, file, stream, random or foreign header in the core is found") {
  const auto* const header =
      GENERATE("chrono", "ctime", "thread", "mutex", "atomic", "condition_variable", "future",
               "random", "fstream", "iostream", "sstream", "filesystem", "cstdio", "sys/socket.h",
               "unistd.h", "fmt/format.h", "nlohmann/json.hpp");
  temporary_tree tree;
  tree.add("libpipeline/schedule/bad.cpp", std::string("\n  #  include <") + header + ">\n");
  CHECK(tree.violations() == lines{std::string("libpipeline/schedule/bad.cpp:2: includes <") +
                                   header + ">: the core is pure"});
}

TEST_CASE("The launch order is as pure as the core, and includes no other part of its layer") {
  temporary_tree tree;
  tree.add("libtp_coord/order/a.cpp",
           "#include <string>\n#include <rrfp/schedule/task.hpp>\n"
           "#include <rrfp/tp_coord/order/b.hpp>\n#include <chrono>\n"
           "#include <rrfp/tp_coord/collective.hpp>\n")
      .add("libtp_coord/include/rrfp/tp_coord/order/b.hpp", "#include <atomic>\n")
      .add("libtp_coord/collective/c.cpp", "#include <atomic>\n#include <rrfp/tp_coord/x.hpp>\n");
  CHECK(tree.violations() ==
        lines{
            "libtp_coord/include/rrfp/tp_coord/order/b.hpp:1: includes <atomic>: the order is pure",
            "libtp_coord/order/a.cpp:4: includes <chrono>: the order is pure",
            "libtp_coord/order/a.cpp:5: includes <rrfp/tp_coord/collective.hpp>: the order is pure",
        });
}

TEST_CASE("Compute and the coordination of its ranks do not include each other") {
  temporary_tree tree;
  tree.add("libpipeline/compute/a.cpp", "#include <rrfp/tp_coord/collective.hpp>\n")
      .add("libtp_coord/collective/a.cpp",
           "#include <rrfp/compute/rank_group.hpp>\n#include <caf/all.hpp>\n");
  CHECK(tree.violations() ==
        lines{
            "libpipeline/compute/a.cpp:1: includes <rrfp/tp_coord/collective.hpp>: "
            "compute may not depend on tp_coord",
            "libtp_coord/collective/a.cpp:1: includes <rrfp/compute/rank_group.hpp>: "
            "tp_coord may not depend on compute",
            "libtp_coord/collective/a.cpp:2: includes <caf/all.hpp>: "
            "layer tp_coord may not include caf",
        });
}

TEST_CASE("A dependency in the wrong direction is found") {
  temporary_tree tree;
  tree.add("libpipeline/schedule/a.cpp", "#include <rrfp/weather/weather.hpp>\n")
      .add("libpipeline/weather/a.cpp", "#include <rrfp/simulate/simulator.hpp>\n")
      .add("libpipeline/simulate/a.cpp", "#include <rrfp/job/options.hpp>\n")
      .add("libpipeline/job/a.cpp", "#include <rrfp/torch/model.hpp>\n")
      .add("libpipeline/compute/a.cpp",
           "#include <rrfp/job/options.hpp>\n#include <rrfp/job/job.hpp>\n")
      .add("policies/a.cpp", "#include <rrfp/schedule/policy.hpp>\n#include <rrfp/job/job.hpp>\n")
      .add("libtp_coord/order/a.cpp", "#include <rrfp/actors/trace.hpp>\n")
      .add("libactors/a.cpp",
           "#include <rrfp/simulate/simulator.hpp>\n#include <rrfp/apps/x.hpp>\n");
  CHECK(
      tree.violations() ==
      lines{
          "libactors/a.cpp:2: includes <rrfp/apps/x.hpp>: actors may not depend on apps",
          "libpipeline/compute/a.cpp:2: includes <rrfp/job/job.hpp>: compute may not depend on job",
          "libpipeline/job/a.cpp:1: includes <rrfp/torch/model.hpp>: job may not depend on torch",
          "libpipeline/schedule/a.cpp:1: includes <rrfp/weather/weather.hpp>: "
          "schedule may not depend on weather",
          "libpipeline/simulate/a.cpp:1: includes <rrfp/job/options.hpp>: "
          "simulate may not depend on job",
          "libpipeline/weather/a.cpp:1: includes <rrfp/simulate/simulator.hpp>: "
          "weather may not depend on simulate",
          "libtp_coord/order/a.cpp:1: includes <rrfp/actors/trace.hpp>: "
          "tp_coord may not depend on actors",
          "policies/a.cpp:2: includes <rrfp/job/job.hpp>: policies may not depend on job",
      });
}

TEST_CASE(
    "No layer of libpipeline includes policies, and no layer below experiments includes them") {
  temporary_tree tree;
  for (const std::string layer : {"job", "plan", "simulate", "report"})
    tree.add("libpipeline/" + layer + "/a.cpp", "#include <rrfp/policies/registry.hpp>\n");
  tree.add("libpipeline/plan/b.cpp", "#include <rrfp/experiment/cell.hpp>\n")
      .add("policies/a.cpp", "#include <rrfp/experiment/cell.hpp>\n")
      .add("apps/rrfp-jitter/experiment/a.cpp",
           "#include <rrfp/policies/registry.hpp>\n#include <rrfp/plan/plan.hpp>\n"
           "#include <rrfp/actors/session.hpp>\n");
  const auto refused = [](const std::string& layer) {
    return "libpipeline/" + layer + "/a.cpp:1: includes <rrfp/policies/registry.hpp>: " + layer +
           " may not depend on policies";
  };
  CHECK(
      tree.violations() ==
      lines{
          "apps/rrfp-jitter/experiment/a.cpp:3: includes <rrfp/actors/session.hpp>: experiment may "
          "not depend on actors",
          refused("job"),
          refused("plan"),
          "libpipeline/plan/b.cpp:1: includes <rrfp/experiment/cell.hpp>: plan may not depend on "
          "experiment",
          refused("report"),
          refused("simulate"),
          "policies/a.cpp:1: includes <rrfp/experiment/cell.hpp>: policies may not depend on "
          "experiment",
      });
}

TEST_CASE("A workload is sizes and weather, and depends on neither the simulator nor jobs") {
  temporary_tree tree;
  tree.add("libpipeline/workload/a.cpp",
           "#include <rrfp/base/ids.hpp>\n#include <rrfp/weather/keyed_random.hpp>\n"
           "#include <rrfp/simulate/simulator.hpp>\n#include <rrfp/job/job.hpp>\n")
      .add("libpipeline/simulate/a.cpp", "#include <rrfp/workload/model.hpp>\n");
  CHECK(tree.violations() ==
        lines{
            "libpipeline/simulate/a.cpp:1: includes <rrfp/workload/model.hpp>: "
            "simulate may not depend on workload",
            "libpipeline/workload/a.cpp:3: includes <rrfp/simulate/simulator.hpp>: "
            "workload may not depend on simulate",
            "libpipeline/workload/a.cpp:4: includes <rrfp/job/job.hpp>: "
            "workload may not depend on job",
        });
}

TEST_CASE("A third party in a layer that may not include it is found") {
  temporary_tree tree;
  tree.add("libpipeline/simulate/a.cpp", "#include <torch/torch.h>\n")
      .add("libpipeline/torch/a.cpp", "#include <ATen/core/Tensor.h>\n#include <caf/all.hpp>\n")
      .add("libpipeline/compute/a.cpp", "#include <ATen/core/Tensor.h>\n")
      .add("libpipeline/job/a.cpp", "#include <toml++/toml.h>\n#include <CLI/CLI.hpp>\n")
      .add("libtp_coord/a.cpp", "#include <c10/core/Device.h>\n")
      .add("libactors/a.cpp", "#include <caf/all.hpp>\n#include <toml++/toml.h>\n")
      .add("apps/a.cpp", "#include <CLI/CLI.hpp>\n#include <caf/all.hpp>\n");
  CHECK(tree.violations() ==
        lines{
            "libactors/a.cpp:2: includes <toml++/toml.h>: layer actors may not include toml++",
            "libpipeline/compute/a.cpp:1: includes <ATen/core/Tensor.h>: layer compute may not "
            "include ATen",
            "libpipeline/job/a.cpp:2: includes <CLI/CLI.hpp>: layer job may not include CLI",
            "libpipeline/simulate/a.cpp:1: includes <torch/torch.h>: "
            "layer simulate may not include torch",
            "libpipeline/torch/a.cpp:2: includes <caf/all.hpp>: layer torch may not include caf",
            "libtp_coord/a.cpp:1: includes <c10/core/Device.h>: layer tp_coord may not include c10",
        });
}

TEST_CASE("A call of a parser without a depth limit is found") {
  temporary_tree tree;
  tree.add("libpipeline/data/a.cpp",
           "// json::parse(text)\nauto a = nlohmann::json::parse(text);\n")
      .add("libpipeline/json/a.cpp", "auto a = json::parse(text);\n")
      .add("libpipeline/job/a.cpp", "auto a = toml::parse(text);\n")
      .add("libpipeline/job/toml_reader.cpp", "auto a = toml::parse(text);\n");
  CHECK(tree.violations() ==
        lines{
            "libpipeline/data/a.cpp:2: calls a parser without a depth limit: expected "
            "parse_json()",
            "libpipeline/job/a.cpp:1: calls a parser without a depth limit: expected "
            "read_toml()",
        });
}

TEST_CASE("The report reads traces and includes nothing that produces them") {
  temporary_tree tree;
  tree.add("libpipeline/report/a.cpp",
           "#include <rrfp/schedule/task.hpp>\n#include <rrfp/report/trace.hpp>\n"
           "#include <rrfp/actors/trace.hpp>\n#include <rrfp/simulate/simulator.hpp>\n")
      .add("libactors/a.cpp", "#include <rrfp/report/trace.hpp>\n")
      .add("apps/a.cpp", "#include <rrfp/report/page.hpp>\n");
  CHECK(tree.violations() ==
        lines{
            "libactors/a.cpp:1: includes <rrfp/report/trace.hpp>: actors may not depend on report",
            "libpipeline/report/a.cpp:3: includes <rrfp/actors/trace.hpp>: "
            "report may not depend on actors",
            "libpipeline/report/a.cpp:4: includes <rrfp/simulate/simulator.hpp>: "
            "report may not depend on simulate",
        });
}

TEST_CASE("The file format of tensors includes no tensor library and no model code") {
  temporary_tree tree;
  tree.add("libpipeline/safetensors/a.cpp",
           "#include <rrfp/base/result.hpp>\n#include <nlohmann/json.hpp>\n"
           "#include <ATen/core/Tensor.h>\n#include <rrfp/compute/shard.hpp>\n");
  CHECK(tree.violations() ==
        lines{
            "libpipeline/safetensors/a.cpp:3: includes <ATen/core/Tensor.h>: "
            "layer safetensors may not include ATen",
            "libpipeline/safetensors/a.cpp:4: includes <rrfp/compute/shard.hpp>: "
            "safetensors may not depend on compute",
        });
}

TEST_CASE("A quoted include that leaves its layer, an unknown layer and a stray folder are found") {
  temporary_tree tree;
  tree.add("libpipeline/schedule/core.hpp", "")
      .add("libpipeline/simulate/a.cpp",
           "#include \"../schedule/core.hpp\"\n#include \"none.hpp\"\n#include <rrfp/new/a.hpp>\n")
      .add("libpipeline/new/a.cpp", "");
  CHECK(tree.violations() ==
        lines{
            "libpipeline/new/a.cpp:0: belongs to no layer",
            "libpipeline/simulate/a.cpp:1: includes \"../schedule/core.hpp\", "
            "which is not a file of its own layer",
            "libpipeline/simulate/a.cpp:2: includes \"none.hpp\", "
            "which is not a file of its own layer",
            "libpipeline/simulate/a.cpp:3: includes <rrfp/new/a.hpp> of an unknown layer",
        });
}

TEST_CASE("A room of the actors includes only the rooms below it") {
  temporary_tree tree;
  tree.add("libactors/stage/tp_rank.hpp", "#include \"control/messages.hpp\"\n")
      .add("libactors/control/messages.hpp", "#include <caf/all.hpp>\n")
      .add("libactors/control/a.cpp", "#include \"messages.hpp\"\n#include \"stage/tp_rank.hpp\"\n")
      .add("libactors/device/a.cpp",
           "#include <caf/all.hpp>\n#include \"../control/messages.hpp\"\n");
  CHECK(tree.violations() ==
        lines{
            "libactors/control/a.cpp:2: includes libactors/stage/tp_rank.hpp: room control may "
            "not include room stage",
            "libactors/device/a.cpp:1: includes <caf/all.hpp>: room device may not include caf",
            "libactors/device/a.cpp:2: includes libactors/control/messages.hpp: room device may "
            "not include room control",
        });
}

TEST_CASE("The runtime includes no framework") {
  temporary_tree tree;
  const auto* const text =
      "#include <ATen/core/Tensor.h>\n#include <rrfp/torch/stage_compute.hpp>\n"
      "#include <rrfp/actors/torch_model.hpp>\n#include <rrfp/compute/rank_compute.hpp>\n"
      "#include <rrfp/accelerator/platform.hpp>\n#include <rrfp/data/source.hpp>\n";
  tree.add("libactors/torch/a.cpp", text).add("libactors/torch/include/rrfp/actors/a.hpp", text);
  CHECK(tree.violations() == lines{});
  for (const std::string file :
       {"libactors/stage/a.cpp", "libactors/include/rrfp/actors/session.hpp"}) {
    temporary_tree runtime;
    runtime.add(file, text);
    const auto line = [&](int number, const std::string& header) {
      return file + ":" + std::to_string(number) + ": includes <" + header +
             ">: the runtime knows no framework";
    };
    CHECK(runtime.violations() ==
          lines{line(1, "ATen/core/Tensor.h"), line(2, "rrfp/torch/stage_compute.hpp"),
                line(3, "rrfp/actors/torch_model.hpp"), line(5, "rrfp/accelerator/platform.hpp"),
                line(6, "rrfp/data/source.hpp")});
  }
}

TEST_CASE("Only the CUDA layer includes CUDA") {
  temporary_tree tree;
  tree.add("libactors/cuda/a.cpp",
           "#include <cuda_runtime_api.h>\n#include <c10/cuda/CUDAStream.h>\n"
           "#include <rrfp/accelerator/platform.hpp>\n#include <rrfp/nccl/nccl_collective.hpp>\n")
      .add("libtp_coord/nccl/a.cpp", "#include <nccl.h>\n#include <ATen/ATen.h>\n")
      .add("libactors/accelerator/a.cpp",
           "#include <ATen/ATen.h>\n#include <ATen/cuda/Sleep.h>\n#include "
           "<rrfp/actors/session.hpp>\n")
      .add("libactors/a.cpp",
           "#include <rrfp/schedule/task.hpp>\n#include <cuda_runtime_api.h>\n"
           "#include <c10/cuda/CUDAStream.h>\n#include <nccl.h>\n");
  CHECK(
      tree.violations() ==
      lines{
          "libactors/a.cpp:2: includes <cuda_runtime_api.h>: layer actors may not include cuda",
          "libactors/a.cpp:3: includes <c10/cuda/CUDAStream.h>: layer actors may not include cuda",
          "libactors/a.cpp:4: includes <nccl.h>: layer actors may not include nccl.h",
          "libactors/accelerator/a.cpp:2: includes <ATen/cuda/Sleep.h>: layer accelerator may "
          "not include cuda",
          "libactors/accelerator/a.cpp:3: includes <rrfp/actors/session.hpp>: accelerator "
          "may not depend on actors",
          "libtp_coord/nccl/a.cpp:2: includes <ATen/ATen.h>: layer nccl may not include ATen",
      });
}

TEST_CASE("Membership, a layer inside the actors' folder, includes neither actors nor tensors") {
  temporary_tree tree;
  tree.add("libactors/membership/frames.hpp", "")
      .add("libactors/membership/a.cpp",
           "#include <rrfp/actors/membership.hpp>\n#include <openssl/evp.h>\n#include "
           "\"frames.hpp\"\n"
           "#include <rrfp/actors/session.hpp>\n#include <caf/all.hpp>\n#include <torch/torch.h>\n"
           "#include \"../trace.hpp\"\n#include <rrfp/job/job.hpp>\n")
      .add("libactors/trace.hpp", "")
      .add("libactors/a.cpp",
           "#include <rrfp/actors/membership.hpp>\n#include <openssl/evp.h>\n"
           "#include \"membership/frames.hpp\"\n");
  CHECK(tree.violations() ==
        lines{
            "libactors/a.cpp:2: includes <openssl/evp.h>: layer actors may not include openssl",
            "libactors/a.cpp:3: includes \"membership/frames.hpp\", "
            "which is not a file of its own layer",
            "libactors/membership/a.cpp:4: includes <rrfp/actors/session.hpp>: "
            "membership may not depend on actors",
            "libactors/membership/a.cpp:5: includes <caf/all.hpp>: layer membership may not "
            "include caf",
            "libactors/membership/a.cpp:6: includes <torch/torch.h>: "
            "layer membership may not include torch",
            "libactors/membership/a.cpp:7: includes \"../trace.hpp\", "
            "which is not a file of its own layer",
            "libactors/membership/a.cpp:8: includes <rrfp/job/job.hpp>: "
            "membership may not depend on job",
        });
}

TEST_CASE("A type in the unnamed namespaces of two sources of a layer is found") {
  temporary_tree tree;
  const std::string types = "namespace {\nstruct row {\n};\n}  // namespace\n";
  tree.add("libpipeline/data/a.cpp", types)
      .add("libpipeline/data/b.cpp", "class row final : base {\n};\n" + types)
      .add("libpipeline/files/a.cpp", types);
  CHECK(tree.violations() ==
        lines{"libpipeline/data/b.cpp:4: type row in the unnamed namespace is also in that of "
              "libpipeline/data/a.cpp"});
}

TEST_CASE("A clock, a thread, a file, a socket or a random source in the archive is found") {
  const lines undefined{"memcpy",
                        "_ZNSt6vectorIiSaIiEE9push_backEOi",
                        "_ZN4rrfp7task_ofEv",
                        "_ZN4rrfp5otherEv",
                        "clock_gettime",
                        "_ZNSt6chrono3_V212steady_clock3nowEv",
                        "pthread_create",
                        "_ZNSt6thread4joinEv",
                        "fopen",
                        "_ZNSt13random_device9_M_getvalEv",
                        "socket",
                        "rand",
                        "_ZN3c106DeviceC1Ev"};
  CHECK(foreign_symbols(undefined, {"_ZN4rrfp7task_ofEv"}) ==
        lines{"_ZN4rrfp5otherEv", "clock_gettime", "_ZNSt6chrono3_V212steady_clock3nowEv",
              "pthread_create", "_ZNSt6thread4joinEv", "fopen", "_ZNSt13random_device9_M_getvalEv",
              "socket", "rand", "_ZN3c106DeviceC1Ev"});
}

}  // namespace rrfp::testing
