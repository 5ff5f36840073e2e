/// Nodes of a training are killed or stopped, and it goes on in place: the same bits as without.
#include <catch2/catch.hpp>

#include <memory>
#include <set>

#include "http.hpp"
#include "json_page.hpp"
#include "recovering_job.hpp"

namespace {

using namespace rrfp::test;
using Catch::Matchers::Contains;

}  // namespace

TEST_CASE("each node may be killed, node 0 too, and the weights and losses have the same bits") {
  const scratch_folder folder;
  const auto trace = folder / "trace.json";
  training t{3, {}, job_text, {"--trace", trace}};
  t.start();
  std::uint64_t step = 3;
  for (const std::uint32_t node : {2, 0, 1}) {
    t.wait_for_step(step);
    const auto before = t.recoveries();
    t.kill(node);
    t.wait_for([&] { return t.recoveries() > before; });
    step += 8;
  }
  t.check_same_bits();
  const auto told = events(t.log(), "recovery");
  REQUIRE(told.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(told[i].at("restarts") == i + 1);
    check_documented(told[i], "`recovery`");
    CHECK(told[i].at("from_copies") == true);
    CHECK(told[i].at("run") == "job");
    CHECK(told[i].at("step") >= 1);
    CHECK(told[i].at("repeated_steps") <= 12);  // copies lag on a busy machine
    CHECK(told[i].at("held_s") > 0);
    CHECK_THAT(told[i].at("lost"), Contains(" was lost: "));
  }
  CHECK_THAT(told[1].at("lost"), Contains("node 0 "));
  // A new node 0 knows the losses since it was started.
  std::vector<std::uint64_t> steps;
  const auto written = json::parse(std::ifstream{trace});
  for (const auto& e : written.at("traceEvents"))
    if (e.value("cat", "") == "recovery") steps.push_back(e.at("args").at("step"));
  CHECK(steps == std::vector<std::uint64_t>{told[1].at("step"), told[2].at("step")});
}

TEST_CASE(
    "two nodes are killed at once: owner and buddy of different ranks, then of the same one") {
  training t{4, {"pipeline.stages=4", "checkpoint.dir", "checkpoint.every=2", "train.steps=24"}};
  t.start();
  t.wait_for_step(5);
  t.kill(0);
  t.kill(2);
  t.wait_for([&] { return t.recoveries() == 1; });
  t.wait_for_step(12);
  t.kill(2);
  t.kill(3);
  // The checkpoint knows the losses before it.
  t.check_same_bits();
  const auto told = events(t.log(), "recovery");
  REQUIRE(told.size() >= 2);
  CHECK(told.front().at("from_copies") == true);
  // The state of stage 2 was on nodes 2 and 3 only.
  CHECK(told.back().at("from_copies") == false);
  CHECK(told.back().at("step") >= 2);
}

TEST_CASE("the replacement is killed while it joins, and its replacement, too") {
  training t{3};
  t.start();
  t.wait_for_step(4);
  const auto descriptors = [&] {
    const std::filesystem::directory_iterator all{"/proc/" + std::to_string(t.pid_of(0)) + "/fd"};
    return std::distance(begin(all), end(all));
  };
  const auto before = descriptors();
  auto last = t.pid_of(1);
  for (const int ms : {0, 60, 250}) {
    t.wait_for([&] {
      const auto pid = t.pid_of(1);
      return pid != 0 && (ms == 0 || pid != last);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds{ms});
    last = t.pid_of(1);
    t.kill(1);
  }
  t.wait_for([&] { return t.recoveries() > 0; });
  t.wait_for_step(25);
  CHECK(descriptors() <= before);
  t.check_same_bits();
}

TEST_CASE("a node may be killed in the last step and after it") {
  training t{2, {"pipeline.stages=2", "train.steps=8"}};
  for (const std::uint32_t node : {1, 0}) {
    t.start();
    t.wait_for_step(8);
    if (const auto pid = t.pid_of(node); pid != 0) ::kill(pid, SIGKILL);
    t.check_same_bits();
    std::filesystem::remove(t.at("out.jsonl"));
  }
}

TEST_CASE("a node is killed while a checkpoint is saved") {
  training t{3, {"checkpoint.dir", "checkpoint.every=1", "checkpoint.keep=2"}};
  t.start();
  const auto is_saving = [&] {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator{t.at("checkpoints"), ignored})
      if (entry.path().extension() == ".tmp") return true;
    return false;
  };
  for (const std::uint32_t node : {2, 0}) {
    const auto before = t.recoveries();
    t.wait_for_step(4 + 10 * before);
    t.wait_for(is_saving);
    t.kill(node);
    t.wait_for([&] { return t.recoveries() > before; });
  }
  t.check_same_bits();
  const auto saved = events(t.log(), "checkpoint");
  REQUIRE_FALSE(saved.empty());
  CHECK(saved.back().at("step") == 30);
}

TEST_CASE("all nodes are killed at once: the job and its log go on from the checkpoint") {
  training t{3, {"checkpoint.dir", "checkpoint.every=1"}};
  t.start();
  t.wait_for_step(10);
  for (const std::uint32_t node : {0, 1, 2}) t.kill(node);
  t.check_same_bits({"ending", "loss_last", "weights_xxh64"});
  std::set<std::uint64_t> steps;
  for (const auto& s : events(t.log(), "step")) steps.insert(s.at("step").get<std::uint64_t>());
  CHECK(steps.size() == 30);
  CHECK(events(t.log(), "resume").size() == 1);
}

TEST_CASE(
    "ranks of a stage on several nodes, V placement, tied head, dropout, clipping, evaluation") {
  training t{3,
             {"pipeline.chunks=2", "pipeline.placement=v", "pipeline.tp=2",
              "pipeline.nodes=[0, 1, 1, 2, 2, 0]", "model.tied_head=true", "model.dropout=0.1",
              "train.clip_norm=0.5", "eval.text=[\"/usr/share/common-licenses/GPL-2\"]",
              "eval.every=5", "eval.batches=2", "train.steps=20"}};
  t.start();
  t.wait_for_step(4);
  t.kill(2);
  t.wait_for([&] { return t.recoveries() == 1; });
  t.wait_for_step(11);
  t.kill(0);
  t.check_same_bits();
}

TEST_CASE("replicas on different nodes") {
  training t{2, {"pipeline.stages=1", "pipeline.replicas=2", "train.steps=24"}};
  t.start();
  t.wait_for_step(4);
  t.kill(1);
  t.wait_for([&] { return t.recoveries() == 1; });
  t.wait_for_step(14);
  t.kill(0);
  t.check_same_bits();
  CHECK(events(t.log(), "recovery").size() == 2);
}

TEST_CASE("the data decides how many microbatches a step has") {
  training t{3,
             {"model.vocabulary=258", "model.context=192", "vision.layers=1", "vision.hidden=16",
              "vision.heads=2", "data.text=[]", "data.shapes=40", "data.pack=cost",
              "data.sequence_length=192", "data.microbatch_size=3", "data.max_tokens=192",
              "pipeline.replicas=2", "pipeline.nodes=[0, 1, 2, 2, 1, 0]", "train.steps=24",
              "checkpoint.dir", "checkpoint.every=1"}};
  t.start();
  t.wait_for_step(4);
  t.kill(1);
  t.wait_for([&] { return t.recoveries() == 1; });
  t.wait_for_step(11);
  for (const std::uint32_t node : {0, 1, 2}) t.kill(node);
  t.check_same_bits({"ending", "loss_last", "weights_xxh64"});
  std::set<std::uint64_t> counts;
  for (const auto& s : events(t.log(), "step"))
    counts.insert(s.at("microbatches").get<std::uint64_t>());
  CHECK(counts.size() > 1);
  CHECK(events(t.log(), "resume").size() == 1);
}

TEST_CASE("a loss in the second run of a comparison") {
  training t{2,
             {"pipeline.stages=2", "train.steps=12"},
             job_text +
                 "[[compare]]\nname = \"a\"\ndispatch.policy = \"one_f_one_b\"\n"
                 "[[compare]]\nname = \"b\"\ndispatch.policy = \"bfw\"\n"};
  t.start();
  t.wait_for_step(3, "b");
  t.kill(0);
  t.check_same_bits();
  const auto told = events(t.log(), "recovery");
  REQUIRE(told.size() == 1);
  CHECK(told[0].at("run") == "b");
  CHECK(results_of(t.log()).size() == 2);
  const auto o = t.log();
  CHECK(results_of(o)[0].at("weights_xxh64") == results_of(o)[1].at("weights_xxh64"));
}

TEST_CASE("emulated devices have no state, and go on all the same") {
  training t{2,
             {"pipeline.stages=2", "train.steps=60"},
             job_text +
                 "[device]\nkind = \"emulated\"\n"
                 "[cost]\nforward_ms = 2\nbackward_ms = 2\nweight_ms = 2\n"};
  t.start();
  t.wait_for_step(10);
  t.kill(1);
  t.wait_for([&] { return t.recoveries() == 1; });
  t.kill(0);
  t.check_same_bits();
}

TEST_CASE("metrics count restarts, the time held and repeated steps") {
  const auto port = free_ports(2);
  training t{2,
             {"pipeline.stages=2", "train.steps=100000"},
             job_text,
             {"--metrics", ":" + std::to_string(port)}};
  t.start();
  t.wait_for_step(3);
  const auto total = [&](const std::string& name) {
    return samples_of(
        get(port, "/metrics").body)["rrfp_" + name + "_total{node=\"0\",run=\"job\"}"];
  };
  CHECK(total("restarts") == 0);
  t.kill(1);
  t.wait_for([&] { return total("restarts") == 1; });
  const auto told = events(t.log(), "recovery");
  REQUIRE(told.size() == 1);
  CHECK(total("held_seconds") == Approx(told[0].at("held_s").get<double>()));
  CHECK(total("repeated_steps") == told[0].at("repeated_steps").get<double>());
  t.launcher().signal(SIGINT);
  CHECK(t.end().code == 130);
}

TEST_CASE("a node that was stopped for longer than its timeout joins again") {
  training t{3, {"transport.node_timeout_ms=1000"}};
  t.start();
  std::uint64_t step = 3;
  for (const std::uint32_t node : {1, 0}) {
    t.wait_for_step(step);
    const auto before = t.recoveries();
    t.signal(node, SIGSTOP);
    std::this_thread::sleep_for(std::chrono::milliseconds{2500});
    t.signal(node, SIGCONT);
    t.wait_for([&] { return t.recoveries() > before; });
    step += 10;
  }
  t.check_same_bits();
}

TEST_CASE("one loss more than recovery.max_restarts ends the job with code 3 and names the node") {
  training t{3, {"recovery.max_restarts=1", "train.steps=100000"}};
  t.start();
  t.wait_for_step(3);
  t.kill(1);
  t.wait_for([&] { return t.recoveries() == 1; });
  t.kill(2);
  const auto o = t.end();
  INFO(o.out << o.err);
  CHECK(o.code == 3);
  CHECK_THAT(o.err, Contains("node 2 (stage 2") && Contains(" was lost: "));
}

TEST_CASE("two losses at once with one restart left end the job with code 3 at once") {
  training t{3, {"recovery.max_restarts=1", "train.steps=100000"}};
  t.start();
  t.wait_for_step(3);
  t.kill(1);
  t.kill(2);
  const auto o = t.end();
  INFO(o.out << o.err);
  CHECK(o.code == 3);
  CHECK(o.seconds < 15 * slowdown);
}

TEST_CASE("without a replacement within recovery.hold_s the job ends with code 3") {
  training t{3, {"recovery.hold_s=1.5", "transport.node_timeout_ms=600", "train.steps=100000"}};
  t.start();
  t.wait_for_step(3);
  t.signal(2, SIGSTOP);
  const auto o = t.end();
  INFO(o.out << o.err);
  CHECK(o.code == 3);
  CHECK_THAT(o.err, Contains("node 2 (stage 2") && Contains("did not join within"));
  CHECK(events(t.log(), "summary").at(0).at("ending") == "node_lost");
}

TEST_CASE("an interrupt ends a job that waits for a replacement") {
  training t{2, {"pipeline.stages=2", "transport.node_timeout_ms=600", "train.steps=100000"}};
  t.start();
  t.wait_for_step(3);
  t.signal(1, SIGSTOP);
  t.wait_for([&] { return t.launcher().err().find("waiting up to") != std::string::npos; });
  t.launcher().signal(SIGINT);
  const auto o = t.end();
  INFO(o.out << o.err);
  CHECK(o.code == 130);
  CHECK(events(t.log(), "summary").at(0).at("ending") == "interrupted");
}

TEST_CASE("nodes that loops start again go on after losses, with the same bits") {
  const scratch_folder folder;
  std::ofstream{folder / "job.toml"} << job_text;
  const auto rendezvous = "127.0.0.1:" + std::to_string(free_ports(1));
  std::vector<std::unique_ptr<program>> loops;
  for (const std::string node : {"0", "1"}) {
    settings loop{"/bin/bash",
                  "-c",
                  "for i in 1 2 3 4 5; do \"$@\" && exit 0; done; exit 1",
                  "loop",
                  RRFP_NODE,
                  "join",
                  folder / "job.toml",
                  "--set",
                  "pipeline.stages=2",
                  "--nnodes",
                  "2",
                  "--node-rank",
                  node,
                  "--rendezvous",
                  rendezvous};
    if (node == "0") loop.insert(loop.end(), {"--json", folder / "out.jsonl"});
    loops.push_back(std::make_unique<program>(loop));
  }
  const auto log = [&] { return log_of(folder / "out.jsonl"); };
  for (const std::size_t node : {1, 0}) {
    const auto before = events(log(), "recovery").size();
    const auto at_step = [&] {
      const auto steps = events(log(), "step");
      return !steps.empty() && steps.back().at("step") >= 4 + 10 * before;
    };
    REQUIRE(eventually(at_step, std::chrono::seconds{30}));
    const auto children = children_of(loops[node]->pid());
    REQUIRE(children.size() == 1);
    ::kill(children[0], SIGKILL);
    INFO(loops[0]->err() << loops[1]->err());
    REQUIRE(eventually([&] { return events(log(), "recovery").size() > before; },
                       std::chrono::seconds{30}));
  }
  for (auto& loop : loops) {
    const auto o = loop->wait(std::chrono::seconds{60});
    INFO(o.out << o.err);
    CHECK(o.code == 0);
  }
  CHECK(results_of(log()) == results_of(undisturbed(job_text, {"pipeline.stages=2"})));
}

TEST_CASE("a node that was stopped and replaced ends with code 3, and its replacement goes on") {
  const std::size_t stopped = GENERATE(1, 0);
  const scratch_folder folder;
  std::ofstream{folder / "job.toml"} << job_text;
  const auto rendezvous = "127.0.0.1:" + std::to_string(free_ports(1));
  const auto metrics = free_ports(3);
  // What the stopped process holds until it ends must not end its replacement.
  const auto start = [&](std::size_t node) {
    settings join{RRFP_NODE,
                  "join",
                  folder / "job.toml",
                  "--set",
                  "transport.node_timeout_ms=1500",
                  "--set",
                  "checkpoint.dir=" + (folder / "checkpoints"),
                  "--metrics",
                  ":" + std::to_string(metrics + node),
                  "--nnodes",
                  "3",
                  "--node-rank",
                  std::to_string(node),
                  "--rendezvous",
                  rendezvous};
    if (node == 0) join.insert(join.end(), {"--json", folder / "out.jsonl"});
    return std::make_unique<program>(join);
  };
  const auto log = [&] { return log_of(folder / "out.jsonl"); };
  std::vector<std::unique_ptr<program>> nodes;
  for (std::size_t node = 0; node < 3; ++node) nodes.push_back(start(node));
  REQUIRE(eventually([&] { return events(log(), "step").size() > 3; }, std::chrono::seconds{60}));

  const auto old = std::exchange(nodes[stopped], nullptr);
  old->signal(SIGSTOP);
  const auto& other = *nodes[2];
  REQUIRE(eventually([&] { return other.err().find("waiting up to") != std::string::npos; },
                     std::chrono::seconds{30}));
  nodes[stopped] = start(stopped);
  std::this_thread::sleep_for(std::chrono::milliseconds{300});
  old->signal(SIGCONT);
  const auto ended = old->wait(std::chrono::seconds{60});
  INFO(ended.out << ended.err);
  CHECK(ended.code == 3);
  CHECK_THAT(ended.err, Contains("another process may have its place"));
  for (auto& node : nodes) {
    const auto o = node->wait(std::chrono::seconds{60});
    INFO(o.out << o.err);
    CHECK(o.code == 0);
  }
  CHECK(results_of(log()) == results_of(undisturbed(job_text, {})));
}
