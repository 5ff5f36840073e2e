/// Who may include whom, and what the pure core may need at link time. Each rule is also seen to
/// fail, on a small tree that breaks it.
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

/// A source tree that lives as long as the test.
class planted_tree {
 public:
  planted_tree() {
    auto pattern = (fs::temp_directory_path() / "rrfp-layers-XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    root_ = pattern;
  }
  planted_tree(const planted_tree&) = delete;
  planted_tree& operator=(const planted_tree&) = delete;
  ~planted_tree() { fs::remove_all(root_); }

  planted_tree& add(const fs::path& file, const std::string& text) {
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

TEST_CASE("Every include of the tree follows the arrows between the layers") {
  CHECK(layer_violations(RRFP_SOURCE_DIR) == lines{});
}

TEST_CASE("The core's archive needs the C++ runtime and nothing else") {
  const auto undefined = symbols_of(RRFP_SCHEDULE_ARCHIVE, "-u");
  const auto defined = symbols_of(RRFP_SCHEDULE_ARCHIVE, "--defined-only");
  REQUIRE(undefined.size() > 10);
  REQUIRE(defined.size() > 10);
  CHECK(foreign_symbols(undefined, defined) == lines{});
}

TEST_CASE("The core's link line is empty but for the warning flags") {
  CHECK(std::string{RRFP_SCHEDULE_LINKS} == "$<BUILD_INTERFACE:rrfp_options>");
}

TEST_CASE("The core may include its own headers and the pure part of the standard library") {
  planted_tree tree;
  tree.add("libpipeline/schedule/include/rrfp/schedule/a.hpp", "#pragma once\n#include <vector>\n")
      .add("libpipeline/schedule/b.hpp", "// #include <thread>\n")
      .add("libpipeline/schedule/b.cpp", "#include <rrfp/schedule/a.hpp>\n#include \"b.hpp\"\n")
      .add("libpipeline/schedule/check.cpp", "#include <cstdio>\n#include <cstdlib>\n");
  CHECK(tree.violations() == lines{});
}

TEST_CASE("A clock, thread, socket, file, stream, random or foreign header in the core is found") {
  const auto* const header =
      GENERATE("chrono", "ctime", "thread", "mutex", "atomic", "condition_variable", "future",
               "random", "fstream", "iostream", "sstream", "filesystem", "cstdio", "sys/socket.h",
               "unistd.h", "fmt/format.h", "nlohmann/json.hpp");
  planted_tree tree;
  tree.add("libpipeline/schedule/bad.cpp", std::string("\n  #  include <") + header + ">\n");
  CHECK(tree.violations() == lines{std::string("libpipeline/schedule/bad.cpp:2: includes <") +
                                   header + ">: the core is pure"});
}

TEST_CASE("The launch order is as pure as the core, and knows no other part of its layer") {
  planted_tree tree;
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

TEST_CASE("Compute and the coordination of its ranks do not know each other") {
  planted_tree tree;
  tree.add("libpipeline/compute/a.cpp", "#include <rrfp/tp_coord/collective.hpp>\n")
      .add("libtp_coord/collective/a.cpp",
           "#include <rrfp/compute/rank_group.hpp>\n#include <caf/all.hpp>\n");
  CHECK(tree.violations() ==
        lines{
            "libpipeline/compute/a.cpp:1: includes <rrfp/tp_coord/collective.hpp>: "
            "no arrow from compute to tp_coord",
            "libtp_coord/collective/a.cpp:1: includes <rrfp/compute/rank_group.hpp>: "
            "no arrow from tp_coord to compute",
            "libtp_coord/collective/a.cpp:2: includes <caf/all.hpp>: "
            "layer tp_coord may not know caf",
        });
}

TEST_CASE("An arrow that runs the other way is found") {
  planted_tree tree;
  tree.add("libpipeline/schedule/a.cpp", "#include <rrfp/weather/weather.hpp>\n")
      .add("libpipeline/weather/a.cpp", "#include <rrfp/simulate/simulator.hpp>\n")
      .add("libpipeline/simulate/a.cpp", "#include <rrfp/job/options.hpp>\n")
      .add("libpipeline/job/a.cpp", "#include <rrfp/compute/model.hpp>\n")
      .add("libpipeline/compute/a.cpp",
           "#include <rrfp/job/options.hpp>\n#include <rrfp/job/job.hpp>\n")
      .add("policies/a.cpp", "#include <rrfp/schedule/policy.hpp>\n#include <rrfp/job/job.hpp>\n")
      .add("libtp_coord/order/a.cpp", "#include <rrfp/actors/trace.hpp>\n")
      .add("libactors/a.cpp",
           "#include <rrfp/simulate/simulator.hpp>\n#include <rrfp/apps/x.hpp>\n");
  CHECK(
      tree.violations() ==
      lines{
          "libactors/a.cpp:2: includes <rrfp/apps/x.hpp>: no arrow from actors to apps",
          "libpipeline/compute/a.cpp:2: includes <rrfp/job/job.hpp>: no arrow from compute to job",
          "libpipeline/job/a.cpp:1: includes <rrfp/compute/model.hpp>: no arrow from job to "
          "compute",
          "libpipeline/schedule/a.cpp:1: includes <rrfp/weather/weather.hpp>: "
          "no arrow from schedule to weather",
          "libpipeline/simulate/a.cpp:1: includes <rrfp/job/options.hpp>: "
          "no arrow from simulate to job",
          "libpipeline/weather/a.cpp:1: includes <rrfp/simulate/simulator.hpp>: "
          "no arrow from weather to simulate",
          "libtp_coord/order/a.cpp:1: includes <rrfp/actors/trace.hpp>: "
          "no arrow from tp_coord to actors",
          "policies/a.cpp:2: includes <rrfp/job/job.hpp>: no arrow from policies to job",
      });
}

TEST_CASE("A workload is sizes and weather: it knows neither time nor jobs") {
  planted_tree tree;
  tree.add("libpipeline/workload/a.cpp",
           "#include <rrfp/schedule/ids.hpp>\n#include <rrfp/weather/keyed_random.hpp>\n"
           "#include <rrfp/simulate/simulator.hpp>\n#include <rrfp/job/job.hpp>\n")
      .add("libpipeline/simulate/a.cpp", "#include <rrfp/workload/model.hpp>\n");
  CHECK(tree.violations() ==
        lines{
            "libpipeline/simulate/a.cpp:1: includes <rrfp/workload/model.hpp>: "
            "no arrow from simulate to workload",
            "libpipeline/workload/a.cpp:3: includes <rrfp/simulate/simulator.hpp>: "
            "no arrow from workload to simulate",
            "libpipeline/workload/a.cpp:4: includes <rrfp/job/job.hpp>: "
            "no arrow from workload to job",
        });
}

TEST_CASE("A third party in a layer that may not know it is found") {
  planted_tree tree;
  tree.add("libpipeline/simulate/a.cpp", "#include <torch/torch.h>\n")
      .add("libpipeline/compute/a.cpp", "#include <ATen/core/Tensor.h>\n#include <caf/all.hpp>\n")
      .add("libpipeline/job/a.cpp", "#include <toml++/toml.h>\n#include <CLI/CLI.hpp>\n")
      .add("libtp_coord/a.cpp", "#include <c10/core/Device.h>\n")
      .add("libactors/a.cpp",
           "#include <caf/all.hpp>\n#include <torch/torch.h>\n#include <toml++/toml.h>\n")
      .add("apps/a.cpp", "#include <CLI/CLI.hpp>\n#include <caf/all.hpp>\n");
  CHECK(tree.violations() ==
        lines{
            "libactors/a.cpp:3: includes <toml++/toml.h>: layer actors may not know toml++",
            "libpipeline/compute/a.cpp:2: includes <caf/all.hpp>: layer compute may not know caf",
            "libpipeline/job/a.cpp:2: includes <CLI/CLI.hpp>: layer job may not know CLI",
            "libpipeline/simulate/a.cpp:1: includes <torch/torch.h>: "
            "layer simulate may not know torch",
            "libtp_coord/a.cpp:1: includes <c10/core/Device.h>: layer tp_coord may not know c10",
        });
}

TEST_CASE("A reader that goes around the limit of depth is found") {
  planted_tree tree;
  tree.add("libpipeline/data/a.cpp",
           "// json::parse(text)\nauto a = nlohmann::json::parse(text);\n")
      .add("libpipeline/json/a.cpp", "auto a = json::parse(text);\n")
      .add("libpipeline/job/a.cpp", "auto a = toml::parse(text);\n")
      .add("libpipeline/job/toml_reader.cpp", "auto a = toml::parse(text);\n");
  CHECK(tree.violations() ==
        lines{
            "libpipeline/data/a.cpp:2: parses by itself: expected parse_json(), which limits the "
            "depth",
            "libpipeline/job/a.cpp:1: parses by itself: expected read_toml(), which limits the "
            "depth",
        });
}

TEST_CASE("The report reads traces and knows nothing of what made them") {
  planted_tree tree;
  tree.add("libpipeline/report/a.cpp",
           "#include <rrfp/schedule/task.hpp>\n#include <rrfp/report/trace.hpp>\n"
           "#include <rrfp/actors/trace.hpp>\n#include <rrfp/simulate/simulator.hpp>\n")
      .add("libactors/a.cpp", "#include <rrfp/report/trace.hpp>\n")
      .add("apps/a.cpp", "#include <rrfp/report/page.hpp>\n");
  CHECK(tree.violations() ==
        lines{
            "libactors/a.cpp:1: includes <rrfp/report/trace.hpp>: no arrow from actors to report",
            "libpipeline/report/a.cpp:3: includes <rrfp/actors/trace.hpp>: "
            "no arrow from report to actors",
            "libpipeline/report/a.cpp:4: includes <rrfp/simulate/simulator.hpp>: "
            "no arrow from report to simulate",
        });
}

TEST_CASE("The file format of tensors knows no tensor library and none of what is stored in it") {
  planted_tree tree;
  tree.add("libpipeline/safetensors/a.cpp",
           "#include <rrfp/schedule/result.hpp>\n#include <nlohmann/json.hpp>\n"
           "#include <ATen/core/Tensor.h>\n#include <rrfp/compute/shard.hpp>\n");
  CHECK(tree.violations() ==
        lines{
            "libpipeline/safetensors/a.cpp:3: includes <ATen/core/Tensor.h>: "
            "layer safetensors may not know ATen",
            "libpipeline/safetensors/a.cpp:4: includes <rrfp/compute/shard.hpp>: "
            "no arrow from safetensors to compute",
        });
}

TEST_CASE("A quoted include that leaves its layer, an unknown layer and a stray folder are found") {
  planted_tree tree;
  tree.add("libpipeline/schedule/core.hpp", "")
      .add("libpipeline/simulate/a.cpp",
           "#include \"../schedule/core.hpp\"\n#include \"none.hpp\"\n#include <rrfp/new/a.hpp>\n")
      .add("libpipeline/new/a.cpp", "");
  CHECK(tree.violations() ==
        lines{
            "libpipeline/new/a.cpp:0: lies in no layer",
            "libpipeline/simulate/a.cpp:1: includes \"../schedule/core.hpp\", "
            "which is not a file of its own layer",
            "libpipeline/simulate/a.cpp:2: includes \"none.hpp\", "
            "which is not a file of its own layer",
            "libpipeline/simulate/a.cpp:3: includes <rrfp/new/a.hpp> of an unknown layer",
        });
}

TEST_CASE("CUDA is seen behind its door alone") {
  planted_tree tree;
  tree.add("libactors/cuda/a.cpp",
           "#include <cuda_runtime_api.h>\n#include <c10/cuda/CUDAStream.h>\n"
           "#include <rrfp/accelerator/platform.hpp>\n#include <rrfp/nccl/nccl_collective.hpp>\n")
      .add("libtp_coord/nccl/a.cpp", "#include <nccl.h>\n#include <ATen/ATen.h>\n")
      .add("libactors/accelerator/a.cpp",
           "#include <ATen/ATen.h>\n#include <ATen/cuda/Sleep.h>\n#include "
           "<rrfp/actors/session.hpp>\n")
      .add("libactors/a.cpp",
           "#include <rrfp/accelerator/platform.hpp>\n#include <cuda_runtime_api.h>\n"
           "#include <c10/cuda/CUDAStream.h>\n#include <nccl.h>\n");
  CHECK(tree.violations() ==
        lines{
            "libactors/a.cpp:2: includes <cuda_runtime_api.h>: layer actors may not know cuda",
            "libactors/a.cpp:3: includes <c10/cuda/CUDAStream.h>: layer actors may not know cuda",
            "libactors/a.cpp:4: includes <nccl.h>: layer actors may not know nccl.h",
            "libactors/accelerator/a.cpp:2: includes <ATen/cuda/Sleep.h>: layer accelerator may "
            "not know cuda",
            "libactors/accelerator/a.cpp:3: includes <rrfp/actors/session.hpp>: no arrow from "
            "accelerator to actors",
            "libtp_coord/nccl/a.cpp:2: includes <ATen/ATen.h>: layer nccl may not know ATen",
        });
}

TEST_CASE("Membership, a layer inside the actors' folder, knows neither actors nor tensors") {
  planted_tree tree;
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
  CHECK(
      tree.violations() ==
      lines{
          "libactors/a.cpp:2: includes <openssl/evp.h>: layer actors may not know openssl",
          "libactors/a.cpp:3: includes \"membership/frames.hpp\", "
          "which is not a file of its own layer",
          "libactors/membership/a.cpp:4: includes <rrfp/actors/session.hpp>: "
          "no arrow from membership to actors",
          "libactors/membership/a.cpp:5: includes <caf/all.hpp>: layer membership may not know caf",
          "libactors/membership/a.cpp:6: includes <torch/torch.h>: "
          "layer membership may not know torch",
          "libactors/membership/a.cpp:7: includes \"../trace.hpp\", "
          "which is not a file of its own layer",
          "libactors/membership/a.cpp:8: includes <rrfp/job/job.hpp>: "
          "no arrow from membership to job",
      });
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
