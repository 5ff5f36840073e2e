// The traces of torch.profiler give the tasks of a pipeline, whatever its schedule names.
#include <catch2/catch.hpp>

#include "hand_made.hpp"

namespace rrfp::foreign::testing {
namespace {

using names = std::vector<std::string>;

/// Two stages, one microbatch, by the names of _PipelineScheduleRuntime; `clock`: how far that of
/// the second is ahead.
found_run two_named_ranks(double clock = 0, int steps = 1) {
  written files;
  profiled first{rank_members(0)}, second{rank_members(1)};
  for (int s = 0; s < steps; ++s) {
    const double at = 1000 + 100 * s, on_second = at + clock;
    first.named("PP:0F0", at, at + 10).named("PP:0SEND_F0", at + 10, at + 10.2);
    first.named("PP:0RECV_B0", at + 10.3, at + 10.5).message(false, at + 10.35, at + 32);
    first.named("PP:0I0", at + 11, at + 40).named("PP:0W0", at + 40, at + 45);
    second.named("PP:1RECV_F0", on_second, on_second + 0.3);
    second.message(false, on_second + 0.1, on_second + 11);
    second.named("PP:1F0", on_second + 0.5, on_second + 21);
    second.named("PP:1B0", on_second + 21, on_second + 31);
  }
  files.add("a.json", first.text());
  files.add_compressed("b.json.gz", second.text());
  return files.run();
}

/// The last of two stages as Schedule1F1B runs it, for `count` microbatches: nothing has a name.
void add_last_stage(profiled& trace, int count) {
  for (int mb = 0; mb < count; ++mb) {
    const double at = 50 * mb;
    trace.message(false, at, at + 10).op("aten::linear", at + 10.5, at + 11);
    trace.op("Sleep", at + 11, at + 19).op("aten::mse_loss", at + 19, at + 20);
    trace.op("aten::ones_like", at + 20, at + 20.1);
    trace.op("autograd::engine::evaluate_function: A", at + 20.2, at + 30);
    trace.op("autograd::engine::evaluate_function: B", at + 30, at + 40);
    trace.link(at + 19, at + 20.2).link(at + 10.5, at + 30).message(true, at + 40.5, at + 42);
  }
}

void add_first_stage(profiled& trace, int count) {
  trace.op("aten::tensor_split", 0, 0.5);
  const auto forward = [&](double at) {
    trace.op("aten::linear", at, at + 1).op("Sleep", at + 1, at + 9);
  };
  forward(0.6);
  trace.message(true, 9.7, 10);
  forward(10);
  for (int mb = 0; mb < count; ++mb) {
    const double at = 50 * mb;
    const double of_forward = mb == 0 ? 0.6 : mb == 1 ? 10 : 50 * (mb - 2) + 55;
    if (mb > 0 || count > 1) trace.message(true, at + 20, at + 42);
    trace.message(false, at + 20.1, at + 42);
    trace.op("autograd::engine::evaluate_function: A", at + 42, at + 54.5);
    trace.link(of_forward, at + 42);
    if (mb + 2 < count) forward(at + 55);
  }
}

}  // namespace

TEST_CASE("names give stages, kinds and microbatches, without the wait for a message") {
  const auto found = two_named_ranks();
  CHECK(found.is_foreign);
  CHECK(found.run.shape == pipeline_shape{2, 1, 1, placement::linear});
  CHECK(tasks_of(found, 0) == names{"F0 0-10", "B0 32-40", "W0 40-45"});
  CHECK(tasks_of(found, 1) == names{"F0 11-21", "BW0 21-31"});
  REQUIRE(found.run.waits.size() == 2);
  const auto& w = found.run.waits[0];
  CHECK(w.what == wait{wait_cause::input, {task_kind::backward, microbatch_id{0}, chunk_id{0}}});
  CHECK(w.begin == 10'000'000);
  CHECK(w.end == 32'000'000);
}

TEST_CASE("a task that occurs again begins the next step") {
  const auto found = two_named_ranks(0, 3);
  for (const std::uint64_t step : {1, 2, 3}) CHECK(tasks_of(found, 1, step).size() == 2);
  CHECK(tasks_of(found, 1, 4).empty());
}

TEST_CASE("clocks that contradict the messages are shifted to the middle of what these allow") {
  // The output of F ends at 10, so the second clock is at least 11 - 10 + 20 behind.
  const auto found = two_named_ranks(-50);
  CHECK(tasks_of(found, 0).front() == "F0 0-10");
  CHECK(tasks_of(found, 1).front() == "F0 11-21");
  CHECK(found.notes.at(1).find("shifted by up to 50.000 ms") != std::string::npos);
  CHECK(found.notes.at(1).find("to within 1.000 ms") != std::string::npos);
}

TEST_CASE("1F1B, which names nothing, is found between its messages") {
  for (const int count : {2, 4}) {
    profiled first{rank_members(0)}, last{rank_members(1)};
    add_first_stage(first, count);
    add_last_stage(last, count);
    written files;
    files.add("a.json", first.text());
    files.add("b.json", last.text());
    const auto found = files.run();
    CHECK(found.run.shape ==
          pipeline_shape{2, 1, static_cast<std::uint32_t>(count), placement::linear});
    const auto on_last = tasks_of(found, 1);
    CHECK(on_last.size() == static_cast<std::size_t>(2 * count));
    CHECK(on_last.at(0) == "F0 9.5-19.5");
    CHECK(on_last.at(1) == "BW0 19.5-39.5");
    CHECK(on_last.at(2) == "F1 59.5-69.5");
    const auto on_first = tasks_of(found, 0);
    CHECK(on_first.at(0) == "F0 0-9.1");
    CHECK(on_first.at(1) == "F1 9.3-19.5");
    CHECK(on_first.at(2) == "BW0 41.5-54");
    if (count == 4) CHECK(on_first.at(3) == "F2 54-69.5");
  }
}

TEST_CASE("a task with a name begins with its first operator, a whole backward before its own") {
  written files;
  profiled first{rank_members(0)}, second{rank_members(1)};
  first.named("PP:0F0", 0, 10).op("aten::linear", 0.5, 9);
  first.named("PP:0I0", 30, 40).op("autograd::engine::evaluate_function: A", 30.5, 39);
  first.named("PP:0W0", 40, 45).op("autograd::engine::evaluate_function: B", 40.5, 44);
  second.named("PP:1F0", 11, 20).op("aten::linear", 11.5, 20);
  second.named("PP:1B0", 20, 30).op("autograd::engine::evaluate_function: A", 20.5, 29);
  files.add("a.json", first.text());
  files.add("b.json", second.text());
  const auto found = files.run();
  CHECK(tasks_of(found, 0) == names{"F0 0-9.5", "B0 30-39.5", "W0 40-44.5"});
  CHECK(tasks_of(found, 1) == names{"F0 11-19.5", "BW0 19.5-29.5"});
}

TEST_CASE("a forward begins after the send that its rank waited for, and after the optimizer") {
  // As DeepSpeed: each send and each receive blocks.
  written files;
  profiled first{rank_members(0)}, last{rank_members(1)};
  const auto backward = [](profiled& trace, double forward, double at) {
    trace.op("autograd::engine::evaluate_function: A", at, at + 10).link(forward, at);
  };
  for (const double step : {0.0, 200.0}) {
    first.op("aten::linear", step + 1, step + 10).message(true, step + 10.1, step + 30);
    first.op("aten::linear", step + 30.2, step + 40).message(true, step + 40.1, step + 60);
    last.message(false, step + 0.5, step + 30).op("aten::linear", step + 30.1, step + 40);
    backward(last, step + 30.1, step + 40.2);
    last.message(true, step + 50.4, step + 51).message(false, step + 51.1, step + 60);
    last.op("aten::linear", step + 60.1, step + 70);
    backward(last, step + 60.1, step + 70.2);
    last.message(true, step + 80.4, step + 81);
    first.message(false, step + 60.2, step + 61);
    backward(first, step + 1, step + 61.1);
    first.message(false, step + 71.2, step + 81);
    backward(first, step + 30.2, step + 81.1);
    first.event("user_annotation", "Optimizer.step#SGD.step", step + 95, step + 99);
  }
  files.add("a.json", first.text());
  files.add("b.json", last.text());
  const auto found = files.run();
  CHECK(tasks_of(found, 0) == names{"F0 0-9", "F1 29-39", "BW0 60-70.1", "BW1 80-90.1"});
  CHECK(tasks_of(found, 0, 2).front() == "F0 200-209");
}

TEST_CASE("Python functions give the tasks of frameworks that name nothing") {
  struct framework {
    std::string file, forward, backward;
  };
  for (const auto& [file, forward, backward] :
       {framework{"deepspeed/runtime/pipe/engine.py(700): ", "_exec_forward_pass",
                  "_exec_backward_pass"},
        framework{"megatron/core/pipeline_parallel/schedules.py(300): ", "forward_step",
                  "backward_step"},
        framework{"torch/distributed/pipelining/stage.py(669): ", "forward_one_chunk",
                  "backward_one_chunk"}}) {
    written files;
    for (const int rank : {0, 1}) {
      profiled trace{rank_members(rank)};
      for (const int mb : {0, 1}) {
        const double at = 100 * mb + 10 * rank, back = 100 * mb + 40 - 20 * rank;
        const auto add = [&](const std::string& name, double begin) {
          trace.event("python_function", "/site-packages/" + file + name, begin, begin + 10);
        };
        add(forward, at);
        add(backward, back);
        add("another", back + 2);
      }
      files.add(fmt::format("rank{}.json", rank), trace.text());
    }
    const auto found = files.run();
    CHECK(found.run.shape.stages == 2);
    CHECK(tasks_of(found, 0) == names{"F0 0-10", "BW0 40-50"});
    CHECK(tasks_of(found, 1) == names{"F0 10-20", "BW0 20-30"});
  }
}

TEST_CASE("the group of a pipeline tells which ranks belong together") {
  written files;
  for (const int rank : {0, 1, 2, 3}) {
    profiled trace{fmt::format(R"("schemaVersion":1,"distributedInfo":{{"rank":{},"world_size":4,)"
                               R"("pg_config":[{{"pg_desc":"mesh_pp","ranks":[{}]}},)"
                               R"({{"pg_desc":"mesh_dp","ranks":[{}]}}]}})",
                               rank, rank % 2 == 0 ? "0,2" : "1,3", rank < 2 ? "0,1" : "2,3")};
    const double later = rank % 2 == 0 ? 0 : 5;
    const auto file = "x/torch/distributed/pipelining/stage.py(1): ";
    trace.event("python_function", std::string{file} + "forward_one_chunk",
                rank < 2 ? 0 : 10 + later, rank < 2 ? 10 + later : 20 + later);
    trace.event("python_function", std::string{file} + "backward_one_chunk", rank < 2 ? 50 : 30,
                rank < 2 ? 60 : 40);
    files.add(fmt::format("rank{}.json", rank), trace.text());
  }
  const auto found = files.run();
  CHECK(found.run.replicas == 2);
  CHECK(found.run.shape == pipeline_shape{2, 1, 1, placement::linear});
  for (const auto& t : found.run.tasks)
    if (t.stage == stage_id{1} && t.what.kind == task_kind::forward)
      CHECK(t.begin == (t.replica == replica_id{0} ? 10'000'000 : 15'000'000));
}

TEST_CASE("on a device a task lasts as its kernels, without those of collectives") {
  written files;
  for (const int rank : {0, 1}) {
    profiled trace{rank_members(rank)};
    const auto stage = std::to_string(rank);
    const double at = 20 * rank;
    trace.named("PP:" + stage + "F0", at, at + 1).named("PP:" + stage + "B0", at + 1, at + 2);
    const auto kernel = [&](double launched, int id, const std::string& name, double begin,
                            double end) {
      const auto args = fmt::format(R"(,"args":{{"correlation":{}}})", id);
      trace.event("cuda_runtime", "cudaLaunchKernel", at + launched, at + launched + 0.01, args);
      trace.event("kernel", name, at + begin, at + end, args);
    };
    kernel(0.1, 1, "gemm", 5, 8);
    kernel(0.2, 2, "ncclDevKernel_SendRecv", 1, 5);
    kernel(0.3, 3, "gelu", 8, 10);
    kernel(1.1, 4, "gemm_backward", 60 - 2 * at, 65 - 2 * at);
    files.add("rank" + stage + ".json", trace.text());
  }
  const auto found = files.run();
  CHECK(tasks_of(found, 0) == names{"F0 0-5", "BW0 55-60"});
  CHECK(tasks_of(found, 1) == names{"F0 20-25", "BW0 35-40"});
}

TEST_CASE("several stages of a rank are interleaved or in a V") {
  for (const bool v : {false, true}) {
    written files;
    double at = 0;
    std::vector<profiled> ranks{profiled{rank_members(0)}, profiled{rank_members(1)}};
    const auto owner = [&](int vs) { return v ? (vs < 2 ? vs : 3 - vs) : vs % 2; };
    const auto add = [&](int vs, char kind) {
      ranks[static_cast<std::size_t>(owner(vs))].named(fmt::format("PP:{}{}0", vs, kind), at,
                                                       at + 9);
      at += 10;
    };
    for (const int vs : {0, 1, 2, 3}) add(vs, 'F');
    for (const int vs : {3, 2, 1, 0}) add(vs, 'B');
    for (const int r : {0, 1})
      files.add(fmt::format("rank{}.json", r), ranks[static_cast<std::size_t>(r)].text());
    const auto found = files.run();
    CHECK(found.run.shape == pipeline_shape{2, 2, 1, v ? placement::v : placement::interleaved});
    CHECK(tasks_of(found, 0).back() == "BW0 70-79");
  }
}

}  // namespace rrfp::foreign::testing
