// Tables of Nsight Systems give the tasks of a pipeline as the profiler's traces do.
#include <catch2/catch.hpp>

#include "hand_made.hpp"

namespace rrfp::foreign::testing {
namespace {

using names = std::vector<std::string>;
using Catch::Matchers::Contains;

/// The table of ranges; times in milliseconds.
class ranges {
 public:
  explicit ranges(int process = 700) : process_(process) {}

  ranges& add(const std::string& name, double begin, double end, int thread = 1) {
    const auto quoted = name.find(',') == std::string::npos ? name : "\"" + name + "\"";
    rows_ += fmt::format("{:.0f},{:.0f},{:.0f},0,0,{},{},{},0,0,1,,:1,{}\n", begin * 1e6, end * 1e6,
                         (end - begin) * 1e6, quoted, process_, thread, quoted);
    return *this;
  }
  ranges& message(const std::string& function, double begin, double end) {
    return add(":megatron.core.pipeline_parallel.p2p_communication." + function, begin, end);
  }
  const std::string& rows() const { return rows_; }

 private:
  int process_;
  std::string rows_;
};

std::string table(const std::string& rows) {
  return "Start (ns),End (ns),Duration (ns),DurChild (ns),DurNonChild (ns),Name,PID,TID,Lvl,"
         "NumChild,RangeId,ParentId,RangeStack,NameTree\n" +
         rows;
}

struct kernel {
  double launched, begin, end;
  std::string name = "void gemm<float, 2>(int)";
};

std::string kernel_table(const std::vector<kernel>& kernels) {
  std::string text =
      "API Start (ns),API Dur (ns),Queue Start (ns),Queue Dur (ns),Kernel Start (ns),"
      "Kernel Dur (ns),Total Dur (ns),PID,TID,DevId,API Function,GridXYZ,BlockXYZ,Kernel Name\n";
  for (const auto& k : kernels)
    text += fmt::format(
        "{:.0f},5000,,,{:.0f},{:.0f},9000,700,2,0,cudaLaunchKernel,\"   8    1    1\","
        "\" 256    1    1\",\"{}\"\n",
        k.launched * 1e6, k.begin * 1e6, (k.end - k.begin) * 1e6, k.name);
  return text;
}

/// Two stages of Megatron-Core, two microbatches.
ranges megatron_first(int process = 700) {
  return ranges{process}
      .message("recv_forward", 0, 0.1)
      .message("send_forward", 10, 11)
      .message("recv_forward", 11, 11.1)
      .message("send_forward_recv_backward", 21, 42)
      .message("send_backward", 62, 62.1)
      .message("recv_backward", 62.2, 73)
      .message("send_backward", 93, 93.1);
}

ranges megatron_last(int process = 701) {
  return ranges{process}
      .message("recv_forward", 0, 11)
      .message("send_forward_recv_backward", 21, 21.1)
      .message("send_backward_recv_forward", 41, 42)
      .message("send_forward_recv_backward", 52, 52.1)
      .message("send_backward", 72, 73);
}

}  // namespace

TEST_CASE("names of emit_nvtx are tasks, with and without what it appends") {
  written files;
  files.add("rank0_nvtx_pushpop_trace.csv", table(ranges{}
                                                      .add(":train step", 0, 100)
                                                      .add(":PP:0F0, op_id = 7", 1, 11)
                                                      .add(":PP:0B0, op_id = 90", 41, 61)
                                                      .rows()));
  files.add("rank1_nvtx_pushpop_trace.csv",
            table(ranges{}.add("PP:1F0", 12, 22).add("PP:1B0", 22, 40).rows()));
  const auto found = files.run();
  CHECK(found.run.shape == pipeline_shape{2, 1, 1, placement::linear});
  CHECK(tasks_of(found, 0) == names{"F0 0-10", "BW0 40-60"});
  CHECK(tasks_of(found, 1) == names{"F0 11-21", "BW0 21-39"});
  CHECK_THAT(found.notes.back(), Contains("those of the host"));
}

TEST_CASE("sequence numbers lead from a gradient to its forward") {
  const auto stage = [](double f, double b, bool receives) {
    ranges r;
    if (receives) r.add(":c10d::recv_, op_id = 1", f - 1, f);
    r.add(":aten::linear, seq = 4, op_id = 2", f + 0.5, f + 9);
    r.add(":aten::addmm, seq = 4, op_id = 3", f + 1, f + 8);
    if (!receives) r.add(":c10d::send, op_id = 4", f + 10, f + 10.5);
    if (!receives) r.add(":c10d::recv_, op_id = 5", f + 11, b);
    r.add(":autograd::engine::evaluate_function: AddmmBackward0, op_id = 6", b + 0.5, b + 19, 2);
    r.add(":AddmmBackward0, seq = 4, op_id = 7", b + 1, b + 18, 2);
    r.add(":aten::mm, seq = 0, op_id = 8", b + 2, b + 10, 2);
    if (receives) r.add(":c10d::send, op_id = 9", b + 20, b + 20.5);
    return table(r.rows());
  };
  written files;
  files.add("rank0.csv", stage(0, 41, false));
  files.add("rank1.csv", stage(12, 22, true));
  const auto found = files.run();
  CHECK(found.run.shape == pipeline_shape{2, 1, 1, placement::linear});
  CHECK_THAT(found.notes.front(), Contains("autograd's operators"));
  CHECK(tasks_of(found, 1) == names{"F0 11.5-20.5", "BW0 22-40.5"});
}

TEST_CASE("tasks of Megatron-Core lie between its messages") {
  written files;
  files.add("job_nvtx_pushpop_trace.csv",
            "Processing [job.sqlite] with [nvtx_pushpop_trace.py]\n\n" +
                table(megatron_first().rows() + megatron_last().rows()));
  const auto found = files.run();
  CHECK(found.run.shape == pipeline_shape{2, 1, 2, placement::linear});
  CHECK(tasks_of(found, 0) == names{"F0 0-9.9", "F1 11-20.9", "BW0 41.9-61.9", "BW1 72.9-92.9"});
  CHECK(tasks_of(found, 1) == names{"F0 10.9-20.9", "BW0 21-40.9", "F1 41.9-51.9", "BW1 52-71.9"});
}

TEST_CASE("tasks last as long as the kernels that were launched in them") {
  written files;
  files.add("rank0_nvtx_pushpop_trace.csv",
            table(ranges{}.add(":PP:0F0", 0, 1).add(":PP:0B0", 2, 3).rows()));
  files.add("rank0_cuda_kern_exec_trace.csv",
            kernel_table({{0.1, 1, 5},
                          {0.2, 5, 9},
                          {0.9, 9, 30, "ncclDevKernel_SendRecv(ncclDevKernelArgs)"},
                          {2.5, 30, 50}}));
  const auto found = files.run();
  CHECK(tasks_of(found, 0) == names{"F0 0-8", "BW0 29-49"});
  CHECK_THAT(found.notes.front(), Contains("those of their kernels"));
}

TEST_CASE("tables that are broken or have no pipeline are refused with their line") {
  const auto refusal = [](const std::string& text) {
    written files;
    files.add("rank0.csv", text);
    return files.refusal();
  };
  CHECK_THAT(refusal("Time (%),Total Time (ns),Instances,Range\n"),
             Contains("expected the table nvtx_pushpop_trace or cuda_kern_exec_trace"));
  CHECK_THAT(refusal(table("")), Contains("expected tasks of a pipeline"));
  CHECK_THAT(refusal(table(ranges{}.add(":forward", 0, 1).rows())),
             Contains("expected tasks of a pipeline"));
  CHECK(refusal(table("1,2,1,0,0,:x,7\n")) == ":2: expected a whole number as TID, got \"\"");
  CHECK(refusal(table("5,2,1,0,0,:x,7,7\n")) ==
        ":2: expected an end not before the start, got \"2\"");
  CHECK_THAT(refusal(table("5,-,1,0,0,:x,7,7\n")), Contains("a whole number as End (ns)"));
  CHECK_THAT(refusal(table(ranges{}.message("send_forward_recv_forward", 0, 1).rows())),
             Contains(":2: expected messages of Megatron's schedule without interleaving"));
  CHECK_THAT(refusal(table(std::string(100'000, 'x'))), Contains("lines of at most 65536 bytes"));
  CHECK_THAT(refusal(kernel_table({})), Contains("expected the ranges of the same name"));
  std::string many;
  for (int process = 0; process < 65; ++process)
    many += ranges{process}.add(":PP:0F0", 0, 1).rows();
  CHECK_THAT(refusal(table(many)), Contains(":66: expected at most 64 processes"));
}

TEST_CASE("files of nsys without a rank in their names are refused") {
  written files;
  for (const auto* const name : {"a.csv", "b.csv"})
    files.add(name, table(ranges{}.add(":PP:0F0", 0, 1).rows()));
  CHECK_THAT(files.refusal(), Contains("expected the rank in the name of the file"));
}

}  // namespace rrfp::foreign::testing
