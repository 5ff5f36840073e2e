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
  lines public_violations() const { return public_header_violations(root_); }

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

TEST_CASE("Every public header is there, and includes public headers alone") {
  CHECK(public_header_violations(RRFP_SOURCE_DIR) == lines{});
}

TEST_CASE("The archive of the cores needs base and the C++ runtime and nothing else") {
  auto undefined = symbols_of(RRFP_CORE_ARCHIVE, "-u");
  auto defined = symbols_of(RRFP_CORE_ARCHIVE, "--defined-only");
  for (const auto& symbol : symbols_of(RRFP_BASE_ARCHIVE, "-u")) undefined.push_back(symbol);
  for (const auto& symbol : symbols_of(RRFP_BASE_ARCHIVE, "--defined-only"))
    defined.push_back(symbol);
  REQUIRE(undefined.size() > 10);
  REQUIRE(defined.size() > 10);
  CHECK(foreign_symbols(undefined, defined) == lines{});
}

TEST_CASE("The cores link base and the warning flags") {
  CHECK(std::string{RRFP_CORE_LINKS} == "rrfp::base $<BUILD_INTERFACE:rrfp_options>");
}

TEST_CASE("The core may include its own headers and the pure part of the standard library") {
  temporary_tree tree;
  tree.add("libpipeline/rrfp/core/a.hpp", "#pragma once\n#include <vector>\n")
      .add("libpipeline/rrfp/base/c.hpp", "#include <string>\n")
      .add("libpipeline/rrfp/core/b.hpp", "// #include <thread>\n")
      .add("libpipeline/rrfp/core/b.cpp",
           "#include <rrfp/core/a.hpp>\n#include <rrfp/base/c.hpp>\n#include \"b.hpp\"\n")
      .add("libpipeline/rrfp/base/check.cpp", "#include <cstdio>\n#include <cstdlib>\n");
  CHECK(tree.violations() == lines{});
}

TEST_CASE("A clock, thread, socket, file, stream, random or foreign header in the core is found") {
  const auto* const header =
      GENERATE("chrono", "ctime", "thread", "mutex", "atomic", "condition_variable", "future",
               "random", "fstream", "iostream", "sstream", "filesystem", "cstdio", "sys/socket.h",
               "unistd.h", "fmt/format.h", "nlohmann/json.hpp");
  temporary_tree tree;
  tree.add("libpipeline/rrfp/core/bad.cpp", std::string("\n  #  include <") + header + ">\n");
  CHECK(tree.violations() == lines{std::string("libpipeline/rrfp/core/bad.cpp:2: includes <") +
                                   header + ">: the core is pure"});
}

TEST_CASE("The launch order is as pure as the core, and includes no other file of its layer") {
  temporary_tree tree;
  const std::string folder = "libtp_coord/rrfp/tp_coord/";
  tree.add(folder + "launch_order.cpp",
           "#include <string>\n#include <rrfp/core/task.hpp>\n"
           "#include <rrfp/tp_coord/fingerprint.hpp>\n#include <chrono>\n"
           "#include <rrfp/tp_coord/collective.hpp>\n")
      .add(folder + "fingerprint.hpp", "#include <atomic>\n")
      .add(folder + "c.cpp", "#include <atomic>\n#include <rrfp/tp_coord/x.hpp>\n");
  CHECK(tree.violations() ==
        lines{
            folder + "fingerprint.hpp:1: includes <atomic>: the order is pure",
            folder + "launch_order.cpp:4: includes <chrono>: the order is pure",
            folder + "launch_order.cpp:5: includes " + folder + "collective.hpp: the order is pure",
        });
}

TEST_CASE("A part of the core includes itself and the stage's files alone") {
  temporary_tree tree;
  const std::string folder = "libpipeline/rrfp/core/";
  tree.add(folder + "job_events.hpp", "#include <rrfp/core/task.hpp>\n")
      .add(folder + "job_core.cpp",
           "#include <rrfp/core/job_events.hpp>\n#include <rrfp/core/ring_plan.hpp>\n")
      .add(folder + "stage_core.cpp",
           "#include <rrfp/core/ranking.hpp>\n#include \"job_events.hpp\"\n");
  CHECK(tree.violations() == lines{
                                 folder + "job_core.cpp:2: includes " + folder +
                                     "ring_plan.hpp: only the checkpoint part of the core may",
                                 folder + "stage_core.cpp:2: includes " + folder +
                                     "job_events.hpp: only the job part of the core may",
                             });
}

TEST_CASE("Compute and the coordination of its ranks do not include each other") {
  temporary_tree tree;
  tree.add("libpipeline/rrfp/compute/a.cpp", "#include <rrfp/tp_coord/collective.hpp>\n")
      .add("libtp_coord/rrfp/tp_coord/a.cpp",
           "#include <rrfp/compute/rank_group.hpp>\n#include <caf/all.hpp>\n");
  CHECK(tree.violations() ==
        lines{
            "libpipeline/rrfp/compute/a.cpp:1: includes <rrfp/tp_coord/collective.hpp>: "
            "compute may not depend on tp_coord",
            "libtp_coord/rrfp/tp_coord/a.cpp:1: includes <rrfp/compute/rank_group.hpp>: "
            "tp_coord may not depend on compute",
            "libtp_coord/rrfp/tp_coord/a.cpp:2: includes <caf/all.hpp>: "
            "layer tp_coord may not include caf",
        });
}

TEST_CASE("A dependency in the wrong direction is found") {
  temporary_tree tree;
  tree.add("libpipeline/rrfp/core/a.cpp", "#include <rrfp/simulate/conditions.hpp>\n")
      .add("libpipeline/rrfp/simulate/a.cpp", "#include <rrfp/job/options.hpp>\n")
      .add("libpipeline/rrfp/job/a.cpp", "#include <rrfp/torch/model.hpp>\n")
      .add("libpipeline/rrfp/compute/a.cpp",
           "#include <rrfp/job/options.hpp>\n#include <rrfp/job/job.hpp>\n")
      .add("policies/a.cpp", "#include <rrfp/core/policy.hpp>\n#include <rrfp/job/job.hpp>\n")
      .add("libtp_coord/rrfp/tp_coord/a.cpp", "#include <rrfp/actors/trace.hpp>\n")
      .add("libactors/rrfp/pipeline.hpp", "#include <rrfp/report/page.hpp>\n")
      .add("libactors/rrfp/actors/a.cpp",
           "#include <rrfp/simulate/simulator.hpp>\n#include <rrfp/apps/x.hpp>\n");
  CHECK(tree.violations() ==
        lines{
            "libactors/rrfp/actors/a.cpp:2: includes <rrfp/apps/x.hpp>: actors may not depend on "
            "apps",
            "libactors/rrfp/pipeline.hpp:1: includes <rrfp/report/page.hpp>: trainer may not "
            "depend on report",
            "libpipeline/rrfp/compute/a.cpp:2: includes <rrfp/job/job.hpp>: compute may not depend "
            "on job",
            "libpipeline/rrfp/core/a.cpp:1: includes <rrfp/simulate/conditions.hpp>: core may not "
            "depend on simulate",
            "libpipeline/rrfp/job/a.cpp:1: includes <rrfp/torch/model.hpp>: job may not depend on "
            "torch",
            "libpipeline/rrfp/simulate/a.cpp:1: includes <rrfp/job/options.hpp>: simulate may not "
            "depend on job",
            "libtp_coord/rrfp/tp_coord/a.cpp:1: includes <rrfp/actors/trace.hpp>: tp_coord may not "
            "depend on actors",
            "policies/a.cpp:2: includes <rrfp/job/job.hpp>: policies may not depend on job",
        });
}

TEST_CASE("No layer of libpipeline includes policies, and experiments include no actors") {
  temporary_tree tree;
  for (const std::string layer : {"job", "simulate", "report"})
    tree.add("libpipeline/rrfp/" + layer + "/a.cpp", "#include <rrfp/policies/registry.hpp>\n");
  const std::string text =
      "#include <rrfp/policies/registry.hpp>\n#include <rrfp/job/plan.hpp>\n"
      "#include <rrfp/actors/session.hpp>\n";
  tree.add("apps/rrfp-jitter/a.cpp", text).add("apps/rrfp-jitter/wall_clock_engine.cpp", text);
  const auto refused = [](const std::string& layer) {
    return "libpipeline/rrfp/" + layer +
           "/a.cpp:1: includes <rrfp/policies/registry.hpp>: " + layer +
           " may not depend on policies";
  };
  CHECK(tree.violations() ==
        lines{
            "apps/rrfp-jitter/a.cpp:3: includes <rrfp/actors/session.hpp>: jitter may not depend "
            "on actors",
            refused("job"),
            refused("report"),
            refused("simulate"),
        });
}

TEST_CASE("A workload is sizes and weather, and depends on neither the simulator nor jobs") {
  temporary_tree tree;
  tree.add("libpipeline/rrfp/workload/a.cpp",
           "#include <rrfp/base/ids.hpp>\n#include <rrfp/simulate/keyed_random.hpp>\n"
           "#include <rrfp/simulate/simulator.hpp>\n#include <rrfp/job/job.hpp>\n")
      .add("libpipeline/rrfp/simulate/a.cpp", "#include <rrfp/workload/model.hpp>\n");
  CHECK(tree.violations() ==
        lines{
            "libpipeline/rrfp/simulate/a.cpp:1: includes <rrfp/workload/model.hpp>: "
            "simulate may not depend on workload",
            "libpipeline/rrfp/workload/a.cpp:3: includes <rrfp/simulate/simulator.hpp>: "
            "workload may not depend on simulate",
            "libpipeline/rrfp/workload/a.cpp:4: includes <rrfp/job/job.hpp>: "
            "workload may not depend on job",
        });
}

TEST_CASE("A third party in a layer that may not include it is found") {
  temporary_tree tree;
  tree.add("libpipeline/rrfp/simulate/a.cpp", "#include <torch/torch.h>\n")
      .add("libpipeline/rrfp/torch/a.cpp",
           "#include <ATen/core/Tensor.h>\n#include <caf/all.hpp>\n")
      .add("libpipeline/rrfp/compute/a.cpp", "#include <ATen/core/Tensor.h>\n")
      .add("libpipeline/rrfp/job/a.cpp", "#include <toml++/toml.h>\n#include <CLI/CLI.hpp>\n")
      .add("libtp_coord/rrfp/tp_coord/a.cpp", "#include <c10/core/Device.h>\n")
      .add("libactors/rrfp/actors/a.cpp", "#include <caf/all.hpp>\n#include <toml++/toml.h>\n")
      .add("apps/a.cpp", "#include <CLI/CLI.hpp>\n#include <caf/all.hpp>\n");
  CHECK(
      tree.violations() ==
      lines{
          "libactors/rrfp/actors/a.cpp:2: includes <toml++/toml.h>: layer actors may not include "
          "toml++",
          "libpipeline/rrfp/compute/a.cpp:1: includes <ATen/core/Tensor.h>: layer compute may not "
          "include ATen",
          "libpipeline/rrfp/job/a.cpp:2: includes <CLI/CLI.hpp>: layer job may not include CLI",
          "libpipeline/rrfp/simulate/a.cpp:1: includes <torch/torch.h>: "
          "layer simulate may not include torch",
          "libpipeline/rrfp/torch/a.cpp:2: includes <caf/all.hpp>: layer torch may not include caf",
          "libtp_coord/rrfp/tp_coord/a.cpp:1: includes <c10/core/Device.h>: layer tp_coord may not "
          "include c10",
      });
}

TEST_CASE("A call of a parser without a depth limit is found") {
  temporary_tree tree;
  tree.add("libpipeline/rrfp/data/a.cpp",
           "// json::parse(text)\nauto a = nlohmann::json::parse(text);\n")
      .add("libpipeline/rrfp/io/a.cpp", "auto a = json::parse(text);\n")
      .add("libpipeline/rrfp/job/a.cpp", "auto a = toml::parse(text);\n")
      .add("libpipeline/rrfp/job/toml_reader.cpp", "auto a = toml::parse(text);\n");
  CHECK(tree.violations() ==
        lines{
            "libpipeline/rrfp/data/a.cpp:2: calls a parser without a depth limit: expected "
            "parse_json()",
            "libpipeline/rrfp/job/a.cpp:1: calls a parser without a depth limit: expected "
            "read_toml()",
        });
}

TEST_CASE("The report reads traces and includes nothing that produces them") {
  temporary_tree tree;
  tree.add("libpipeline/rrfp/report/a.cpp",
           "#include <rrfp/core/task.hpp>\n#include <rrfp/report/trace.hpp>\n"
           "#include <rrfp/actors/trace.hpp>\n#include <rrfp/simulate/simulator.hpp>\n")
      .add("libactors/rrfp/actors/a.cpp", "#include <rrfp/report/trace.hpp>\n")
      .add("apps/a.cpp", "#include <rrfp/report/page.hpp>\n");
  CHECK(tree.violations() ==
        lines{
            "libactors/rrfp/actors/a.cpp:1: includes <rrfp/report/trace.hpp>: actors may not "
            "depend on report",
            "libpipeline/rrfp/report/a.cpp:3: includes <rrfp/actors/trace.hpp>: "
            "report may not depend on actors",
            "libpipeline/rrfp/report/a.cpp:4: includes <rrfp/simulate/simulator.hpp>: "
            "report may not depend on simulate",
        });
}

TEST_CASE("The file format of tensors includes no tensor library and no model code") {
  temporary_tree tree;
  tree.add("libpipeline/rrfp/safetensors/a.cpp",
           "#include <rrfp/base/result.hpp>\n#include <nlohmann/json.hpp>\n"
           "#include <ATen/core/Tensor.h>\n#include <rrfp/compute/shard.hpp>\n");
  CHECK(tree.violations() ==
        lines{
            "libpipeline/rrfp/safetensors/a.cpp:3: includes <ATen/core/Tensor.h>: "
            "layer safetensors may not include ATen",
            "libpipeline/rrfp/safetensors/a.cpp:4: includes <rrfp/compute/shard.hpp>: "
            "safetensors may not depend on compute",
        });
}

TEST_CASE("A quoted include that leaves its layer, an unknown layer and a stray folder are found") {
  temporary_tree tree;
  tree.add("libpipeline/rrfp/core/core.hpp", "")
      .add("libpipeline/rrfp/simulate/a.cpp",
           "#include \"../schedule/core.hpp\"\n#include \"none.hpp\"\n#include <rrfp/new/a.hpp>\n")
      .add("libpipeline/rrfp/new/a.cpp", "");
  CHECK(tree.violations() ==
        lines{
            "libpipeline/rrfp/new/a.cpp:0: belongs to no layer",
            "libpipeline/rrfp/simulate/a.cpp:1: includes \"../schedule/core.hpp\", "
            "which is not a file of its own layer",
            "libpipeline/rrfp/simulate/a.cpp:2: includes \"none.hpp\", "
            "which is not a file of its own layer",
            "libpipeline/rrfp/simulate/a.cpp:3: includes <rrfp/new/a.hpp> of an unknown layer",
        });
}

TEST_CASE("A folder of the actors includes only the folders below it, and the doors") {
  temporary_tree tree;
  const std::string actors = "libactors/rrfp/actors/";
  tree.add(actors + "control/a.cpp",
           "#include \"messages.hpp\"\n#include <rrfp/actors/stage/tp_rank.hpp>\n"
           "#include <caf/all.hpp>\n")
      .add(actors + "control/messages.hpp", "#include <rrfp/actors/session.hpp>\n")
      .add(actors + "stage/tp_rank.hpp",
           "#include <rrfp/actors/control/messages.hpp>\n"
           "#include <rrfp/actors/hosted_parts.hpp>\n")
      .add(actors + "session.cpp", "#include <rrfp/actors/stage/tp_rank.hpp>\n");
  CHECK(tree.violations() == lines{
                                 actors + "control/a.cpp:2: includes " + actors +
                                     "stage/tp_rank.hpp: folder control "
                                     "may not",
                                 actors + "stage/tp_rank.hpp:2: includes " + actors +
                                     "hosted_parts.hpp: folder stage "
                                     "may not",
                             });
}

TEST_CASE("A header in a folder of a room is private to the room") {
  temporary_tree tree;
  tree.add("apps/a.cpp", "#include <rrfp/actors/control/messages.hpp>\n")
      .add("libpipeline/rrfp/torch/a.cpp", "#include <rrfp/torch/models/layers.hpp>\n");
  CHECK(tree.violations() == lines{"apps/a.cpp:1: includes <rrfp/actors/control/messages.hpp>, "
                                   "which is private to actors"});
}

TEST_CASE("The runtime includes no framework, and devices and transports no actors") {
  temporary_tree tree;
  const auto* const text =
      "#include <ATen/core/Tensor.h>\n#include <rrfp/torch/stage_compute.hpp>\n"
      "#include <rrfp/torch_actors/torch_model.hpp>\n#include <rrfp/compute/rank_compute.hpp>\n"
      "#include <rrfp/accelerator/platform.hpp>\n#include <rrfp/data/source.hpp>\n";
  tree.add("libactors/rrfp/torch_actors/a.cpp", text);
  CHECK(tree.violations() == lines{});
  for (const std::string layer : {"actors", "device"}) {
    temporary_tree runtime;
    const auto file = "libactors/rrfp/" + layer + "/a.cpp";
    runtime.add(file, text);
    const auto line = [&](int number, const std::string& header, const std::string& room) {
      return file + ":" + std::to_string(number) + ": includes <" + header + ">: " + layer +
             " may not depend on " + room;
    };
    CHECK(
        runtime.violations() ==
        lines{file + ":1: includes <ATen/core/Tensor.h>: layer " + layer + " may not include ATen",
              line(2, "rrfp/torch/stage_compute.hpp", "torch"),
              line(3, "rrfp/torch_actors/torch_model.hpp", "torch_actors"),
              line(5, "rrfp/accelerator/platform.hpp", "accelerator"),
              line(6, "rrfp/data/source.hpp", "data")});
  }
  for (const std::string layer : {"device", "transport"}) {
    temporary_tree below;
    const auto file = "libactors/rrfp/" + layer + "/a.cpp";
    below.add(file, "#include <caf/all.hpp>\n#include <rrfp/actors/session.hpp>\n");
    CHECK(below.violations() ==
          lines{file + ":1: includes <caf/all.hpp>: layer " + layer + " may not include caf",
                file + ":2: includes <rrfp/actors/session.hpp>: " + layer +
                    " may not depend on actors"});
  }
}

TEST_CASE("Only the CUDA layer includes CUDA") {
  temporary_tree tree;
  tree.add("libactors/rrfp/cuda/a.cpp",
           "#include <cuda_runtime_api.h>\n#include <c10/cuda/CUDAStream.h>\n"
           "#include <rrfp/accelerator/platform.hpp>\n#include <rrfp/nccl/nccl_collective.hpp>\n")
      .add("libtp_coord/rrfp/nccl/a.cpp", "#include <nccl.h>\n#include <ATen/ATen.h>\n")
      .add("libactors/rrfp/accelerator/a.cpp",
           "#include <ATen/ATen.h>\n#include <ATen/cuda/Sleep.h>\n#include "
           "<rrfp/actors/session.hpp>\n")
      .add("libactors/rrfp/actors/a.cpp",
           "#include <rrfp/core/task.hpp>\n#include <cuda_runtime_api.h>\n"
           "#include <c10/cuda/CUDAStream.h>\n#include <nccl.h>\n");
  CHECK(
      tree.violations() ==
      lines{
          "libactors/rrfp/accelerator/a.cpp:2: includes <ATen/cuda/Sleep.h>: layer accelerator may "
          "not include cuda",
          "libactors/rrfp/accelerator/a.cpp:3: includes <rrfp/actors/session.hpp>: accelerator "
          "may not depend on actors",
          "libactors/rrfp/actors/a.cpp:2: includes <cuda_runtime_api.h>: layer actors may not "
          "include cuda",
          "libactors/rrfp/actors/a.cpp:3: includes <c10/cuda/CUDAStream.h>: layer actors may not "
          "include cuda",
          "libactors/rrfp/actors/a.cpp:4: includes <nccl.h>: layer actors may not include nccl.h",
          "libtp_coord/rrfp/nccl/a.cpp:2: includes <ATen/ATen.h>: layer nccl may not include ATen",
      });
}

TEST_CASE("Membership includes neither actors nor tensors") {
  temporary_tree tree;
  tree.add("libactors/rrfp/membership/frames.hpp", "")
      .add("libactors/rrfp/membership/a.cpp",
           "#include <rrfp/membership/membership.hpp>\n#include <openssl/evp.h>\n"
           "#include \"frames.hpp\"\n#include <rrfp/actors/session.hpp>\n"
           "#include <caf/all.hpp>\n#include <torch/torch.h>\n#include \"../actors/trace.hpp\"\n"
           "#include <rrfp/job/job.hpp>\n")
      .add("libactors/rrfp/actors/trace.hpp", "")
      .add("libactors/rrfp/actors/a.cpp",
           "#include <rrfp/membership/membership.hpp>\n#include <openssl/evp.h>\n"
           "#include \"../membership/frames.hpp\"\n");
  CHECK(tree.violations() ==
        lines{
            "libactors/rrfp/actors/a.cpp:2: includes <openssl/evp.h>: layer actors may not include "
            "openssl",
            "libactors/rrfp/actors/a.cpp:3: includes \"../membership/frames.hpp\", "
            "which is not a file of its own layer",
            "libactors/rrfp/membership/a.cpp:4: includes <rrfp/actors/session.hpp>: "
            "membership may not depend on actors",
            "libactors/rrfp/membership/a.cpp:5: includes <caf/all.hpp>: layer membership may not "
            "include caf",
            "libactors/rrfp/membership/a.cpp:6: includes <torch/torch.h>: "
            "layer membership may not include torch",
            "libactors/rrfp/membership/a.cpp:7: includes \"../actors/trace.hpp\", "
            "which is not a file of its own layer",
            "libactors/rrfp/membership/a.cpp:8: includes <rrfp/job/job.hpp>: "
            "membership may not depend on job",
        });
}

TEST_CASE("A public header that is missing or includes another that is not public is found") {
  temporary_tree tree;
  tree.add("cmake/public-headers.txt", "rrfp/core/a.hpp\nrrfp/core/none.hpp\nrrfp/pipeline.hpp\n")
      .add("libpipeline/rrfp/core/a.hpp", "#include <vector>\n#include <rrfp/base/ids.hpp>\n")
      .add("libactors/rrfp/pipeline.hpp",
           "#include <rrfp/core/a.hpp>\n#include <rrfp/version.hpp>\n#include \"x.hpp\"\n");
  CHECK(tree.public_violations() ==
        lines{
            "rrfp/core/a.hpp: includes rrfp/base/ids.hpp, which is not public",
            "rrfp/core/none.hpp: there is no such header",
            "rrfp/pipeline.hpp: includes x.hpp, which is not public",
        });
  std::string many;
  for (int i = 10; i <= 50; ++i) {
    many += "rrfp/core/h" + std::to_string(i) + ".hpp\n";
    tree.add("libpipeline/rrfp/core/h" + std::to_string(i) + ".hpp", "");
  }
  tree.add("cmake/public-headers.txt", many);
  CHECK(tree.public_violations() == lines{"expected at most 40 public headers, found 41"});
}

TEST_CASE("A type in the unnamed namespaces of two sources of a layer is found") {
  temporary_tree tree;
  const std::string types = "namespace {\nstruct row {\n};\n}  // namespace\n";
  tree.add("libpipeline/rrfp/data/a.cpp", types)
      .add("libpipeline/rrfp/data/b.cpp", "class row final : base {\n};\n" + types)
      .add("libpipeline/rrfp/io/a.cpp", types);
  CHECK(tree.violations() ==
        lines{"libpipeline/rrfp/data/b.cpp:4: type row in the unnamed namespace is also in that of "
              "libpipeline/rrfp/data/a.cpp"});
}

TEST_CASE("A clock, a thread, a file, a socket or a random source in the archive is found") {
  const lines undefined{"memcpy",
                        "__fprintf_chk",
                        "__read_chk",
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
        lines{"__read_chk", "_ZN4rrfp5otherEv", "clock_gettime",
              "_ZNSt6chrono3_V212steady_clock3nowEv", "pthread_create", "_ZNSt6thread4joinEv",
              "fopen", "_ZNSt13random_device9_M_getvalEv", "socket", "rand", "_ZN3c106DeviceC1Ev"});
}

}  // namespace rrfp::testing
