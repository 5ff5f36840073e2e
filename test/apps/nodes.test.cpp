/// A job over several processes: the same bits; a loss is detected, reported once, and leaves no
/// process behind.
#include <catch2/catch.hpp>

#include <algorithm>
#include <memory>
#include <set>

#include "eventually.hpp"
#include "http.hpp"
#include "json_lines.hpp"
#include "processes.hpp"
#include "program.hpp"

namespace {

using namespace rrfp::test;
using Catch::Matchers::Contains;
using nlohmann::json;

using settings = std::vector<std::string>;

/// Eight stages, so that up to eight nodes have one each.
const std::string job_text = R"([pipeline]
stages = 8
microbatches = 6
[model]
layers = 8
hidden = 32
heads = 4
context = 32
dropout = 0.1
tied_head = true
[data]
text = ["/usr/share/common-licenses/GPL-3"]
microbatch_size = 2
sequence_length = 32
[train]
steps = 3
lr = 1e-3
[cost]
forward_ms = 1.0
backward_ms = 1.0
weight_ms = 1.0
)";

/// Texts of different lengths with zero to two pictures each, so that microbatches differ and some
/// have no input for the encoder.
const std::string pictures_text = R"([pipeline]
stages = 8
microbatches = 6
[model]
family = "qwen3"
layers = 5
hidden = 32
heads = 4
kv_heads = 2
vocabulary = 258
context = 192
dropout = 0.1
tied_head = true
[vision]
layers = 3
hidden = 32
heads = 2
patch = 8
image_size = 32
[data]
shapes = 40
microbatch_size = 1
sequence_length = 192
[train]
steps = 2
lr = 1e-3
)";

/// Runs of one job, each with what differs from it.
using comparison = std::vector<settings>;

const settings jitter{"jitter.compute=lognormal", "jitter.compute_sigma=0.5",
                      "jitter.link=exponential", "jitter.link_mean_ms=1"};

settings operator+(settings some, const settings& more) {
  some.insert(some.end(), more.begin(), more.end());
  return some;
}

const settings short_limit{"--set", "transport.node_timeout_ms=1500"};

class job_file {
 public:
  explicit job_file(const std::string& text = job_text) { std::ofstream{path()} << text; }

  std::string path() const { return folder_ / "job.toml"; }
  std::string at(const std::string& name) const { return folder_ / name; }
  std::vector<std::string> run(std::uint32_t nodes, const std::vector<settings>& all) const {
    std::vector<std::string> arguments{RRFP_NODE, "run", path()};
    if (nodes > 1) arguments.insert(arguments.end(), {"--local-nodes", std::to_string(nodes)});
    for (const auto& some : all)
      for (const auto& s : some) arguments.insert(arguments.end(), {"--set", s});
    return arguments;
  }

 private:
  scratch_folder folder_;
};

struct bits {
  std::string losses, weights;
  std::string eval_losses;  ///< empty: no evaluation
  double loss = 0;          ///< of the last step
  bool operator==(const bits&) const = default;
};

bits bits_in(const json& summary) {
  return {summary.at("losses_xxh64"), summary.at("weights_xxh64"),
          summary.value("eval_losses_xxh64", ""), summary.at("loss_last")};
}

bits bits_of(const job_file& job, std::uint32_t nodes, const std::vector<settings>& all,
             const char* program = RRFP_NODE) {
  auto arguments = job.run(nodes, all);
  arguments.front() = program;
  arguments.insert(arguments.end(), {"--json", job.at("out.jsonl")});
  const auto o = run_program(arguments);
  INFO(nodes << " nodes: " << o.out << o.err);
  REQUIRE(o.code == 0);
  return bits_in(lines_of(job.at("out.jsonl")).back());
}

/// The bits of several runs in the same processes.
std::vector<bits> bits_of_each(const std::string& text, std::uint32_t nodes, const settings& all,
                               const comparison& runs) {
  std::string with_runs = text;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    with_runs += "[[compare]]\nname = \"" + std::to_string(i) + "\"\n";
    for (const auto& s : runs[i]) {
      const auto equals = s.find('=') + 1;
      const bool is_word =
          std::isalpha(static_cast<unsigned char>(s[equals])) != 0 && s.substr(equals) != "true";
      const std::string quote = is_word ? "\"" : "";
      with_runs += s.substr(0, equals) + quote + s.substr(equals) + quote + "\n";
    }
  }
  const job_file job{with_runs};
  auto arguments = job.run(nodes, {all});
  arguments.insert(arguments.end(), {"--json", job.at("out.jsonl")});
  const auto o = run_program(arguments);
  INFO(nodes << " nodes: " << o.out << o.err);
  REQUIRE(o.code == 0);
  std::vector<bits> each;
  for (const auto& line : lines_of(job.at("out.jsonl")))
    if (line.at("event") == "summary") each.push_back(bits_in(line));
  REQUIRE(each.size() == runs.size());
  return each;
}

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

/// Sends a signal to node `number` of a running job; the job must end with the loss of that node.
void lose_node(std::uint32_t number, int signal, const std::string& why) {
  const job_file job;
  // Steps wait for messages rather than compute.
  auto arguments =
      job.run(4, {{"train.steps=100000", "run.progress=none"}, jitter, {"jitter.link_mean_ms=5"}});
  // The loss of a killed node is detected at once, whatever the limit.
  if (signal == SIGSTOP) arguments.insert(arguments.end(), short_limit.begin(), short_limit.end());
  arguments.insert(arguments.end(), {"--json", job.at("out.jsonl")});
  program training{arguments};
  REQUIRE(eventually(
      [&] { return text_of(job.at("out.jsonl")).find("\"step\":2,") != std::string::npos; },
      std::chrono::seconds{60}));
  // The next heartbeat of a node reports its step to the others.
  std::this_thread::sleep_for(std::chrono::milliseconds{1200});
  const auto nodes = children_of(training.pid());
  REQUIRE(nodes.size() == 4);
  const auto lost = node_process(training.pid(), number);
  REQUIRE(lost != 0);
  REQUIRE(::kill(lost, signal) == 0);
  const auto begun = std::chrono::steady_clock::now();
  CHECK(eventually([&] { return training.err().find("node") != std::string::npos; },
                   std::chrono::seconds{4}));
  const std::chrono::duration<double> detected = std::chrono::steady_clock::now() - begun;
  const auto o = training.wait();
  INFO(o.out << "\n" << o.err << "\ndetected after " << detected.count() << " s");
  CHECK(o.code == 3);
  CHECK_THAT(o.err, Contains("node " + std::to_string(number)) && Contains(why) &&
                        Contains("stages " + std::to_string(2 * number)));
  // A slow node ends after the time that the launcher gives it to report the loss of node 0.
  CHECK(occurrences(o.err, "rrfp-node:") <= (slowdown == 1 ? 1 : 2));
  CHECK_THAT(o.err, Contains("step ") && !Contains("***"));
  CHECK(detected.count() < 6 * slowdown);  // 2 s on a quiet machine
  CHECK(o.seconds < 8 * slowdown);         // one second later
  for (const auto node : nodes) CHECK(parent_of(node) == 0);
}

}  // namespace

TEST_CASE("2, 4 and 8 nodes train to the bits of one process") {
  const settings in_order{"dispatch.mode=in-order", "dispatch.policy=one_f_one_b"};
  const auto one = bits_of(job_file{}, 1, {});
  for (const std::string tls : {"posix,tcp,self", "tcp,self"})
    for (const std::uint32_t nodes : {2U, 4U, 8U}) {
      INFO(nodes << " nodes over " << tls);
      comparison runs{{}, jitter + in_order};
      if (nodes == 4) runs.insert(runs.end(), {jitter, in_order});
      const std::vector<bits> same(runs.size(), one);
      CHECK(bits_of_each(job_text, nodes, {"transport.tls=" + tls}, runs) == same);
    }
}

TEST_CASE("tensor-parallel ranks train to the same bits in any order and on any nodes") {
  const job_file job;
  const settings in_order{"dispatch.mode=in-order", "dispatch.policy=zb_h1"};
  const settings two{"pipeline.tp=2"}, four{"pipeline.tp=4"};
  const auto alone = bits_of(job, 1, {});
  const std::vector one{bits_of(job, 1, {two}), bits_of(job, 1, {four})};
  for (const auto& b : one) CHECK(b.loss == Approx(alone.loss).epsilon(1e-4));
  const settings tcp{"transport.tls=tcp,self"};
  const comparison plain{two, four}, delayed{two + jitter, four + jitter},
      reordered{two + jitter + in_order, four + jitter + in_order};
  CHECK(bits_of_each(job_text, 1, {}, reordered) == one);
  CHECK(bits_of_each(job_text, 4, {}, plain) == one);
  CHECK(bits_of_each(job_text, 4, tcp, reordered) == one);
  // The ranks of a stage on different nodes.
  CHECK(bits_of_each(job_text, 3, {}, plain) == one);
  CHECK(bits_of_each(job_text, 3, tcp, delayed) == one);
}

TEST_CASE("replicas train on the global batch, to the same bits on any nodes") {
  const job_file job;
  const settings two{"pipeline.replicas=2", "pipeline.microbatches=3", "pipeline.stages=4"};
  const settings three{"pipeline.replicas=3", "pipeline.microbatches=2", "pipeline.stages=4"};
  const auto alone = bits_of(job, 1, {});
  const std::vector one{bits_of(job, 1, {two}), bits_of(job, 1, {three})};
  for (const auto& b : one) CHECK(b.loss == Approx(alone.loss).epsilon(1e-4));
  CHECK(bits_of_each(job_text, 1, {}, {two + jitter, three + jitter}) == one);
  const auto in_order = jitter + settings{"dispatch.policy=gpipe", "dispatch.mode=in-order"};
  CHECK(bits_of_each(job_text, 2, {}, {two + in_order, three + in_order}) == one);
  CHECK(bits_of_each(job_text, 4, {"transport.tls=tcp,self"}, {two, three}) == one);
  const settings both{"pipeline.replicas=2", "pipeline.microbatches=3", "pipeline.stages=2",
                      "pipeline.tp=2"};
  CHECK(bits_of(job, 4, {both, jitter}) == bits_of(job, 1, {both}));
}

TEST_CASE("texts with pictures train to the same bits on any nodes") {
  const job_file job{pictures_text};
  const auto alone = bits_of(job, 1, {});
  // Another order of admission sums in another order, the same one everywhere.
  const settings sorted{"dispatch.admission=small_large_small"};
  const auto sorted_alone = bits_of(job, 1, {sorted});
  CHECK_FALSE(sorted_alone == alone);
  // Evaluations change no bit of the training, and have the same bits on any nodes.
  const settings evaluated{"eval.shapes=20", "eval.every=1", "eval.batches=2"};
  const auto held_out = bits_of(job, 1, {evaluated});
  auto trained = held_out;
  CHECK(!std::exchange(trained.eval_losses, {}).empty());
  CHECK(trained == alone);
  const settings two{"pipeline.tp=2"};
  const auto ranks = bits_of(job, 1, {two});
  CHECK(ranks.loss == Approx(alone.loss).epsilon(1e-4));
  const settings narrow{"model.precision=bf16"};
  const auto narrow_alone = bits_of(job, 1, {narrow, jitter});

  const settings one_f_one_b{"dispatch.mode=in-order", "dispatch.policy=one_f_one_b"};
  const settings gpipe{"dispatch.mode=in-order", "dispatch.policy=gpipe"};
  CHECK(bits_of_each(pictures_text, 2, {}, {evaluated + gpipe, narrow}) ==
        std::vector{held_out, narrow_alone});
  CHECK(bits_of_each(pictures_text, 3, {},
                     {jitter + settings{"pipeline.recompute=true"}, sorted + jitter,
                      two + jitter}) == std::vector{alone, sorted_alone, ranks});
  CHECK(bits_of_each(pictures_text, 4, {}, {one_f_one_b, evaluated + jitter}) ==
        std::vector{alone, held_out});
  CHECK(bits_of(job, 8, {{"transport.tls=tcp"}, jitter}) == alone);
}

TEST_CASE("samples packed by cost train to the same bits on any nodes, and to the same losses") {
  const job_file job{pictures_text};
  const settings in_order{"data.microbatch_size=2", "model.dropout=0"};
  const settings by_cost{"data.pack=cost"};
  const auto alone = bits_of(job, 1, {in_order, by_cost});
  CHECK(bits_of(job, 3,
                {in_order, by_cost, {"dispatch.mode=in-order", "dispatch.policy=one_f_one_b"}}) ==
        alone);
  // A step has the same samples in either way, and in replicas; only the sums differ.
  CHECK(alone.loss == Approx(bits_of(job, 1, {in_order}).loss).epsilon(1e-4));
  const settings copies{"pipeline.replicas=2", "pipeline.microbatches=3", "pipeline.stages=4"};
  const auto replicas = bits_of(job, 1, {in_order, by_cost, copies});
  CHECK(bits_of(job, 4, {in_order, by_cost, copies, jitter}) == replicas);
  CHECK(replicas.loss == Approx(alone.loss).epsilon(1e-4));
  // The packed microbatches are admitted in the order of their sizes.
  const settings sorted{"dispatch.admission=small_large_small"};
  const auto sorted_alone = bits_of(job, 1, {in_order, by_cost, sorted});
  CHECK(bits_of_each(pictures_text, 2, in_order + by_cost, {jitter, sorted + jitter}) ==
        std::vector{alone, sorted_alone});
  CHECK(sorted_alone.loss == Approx(alone.loss).epsilon(1e-4));
}

TEST_CASE("a step has as many microbatches as its samples need, with the same bits on any nodes") {
  const job_file job{pictures_text};
  const settings limited{"data.microbatch_size=2", "model.dropout=0", "data.pack=cost",
                         "data.max_tokens=192",    "train.steps=4",   "eval.shapes=20",
                         "eval.every=2",           "eval.batches=2"};
  const auto alone = bits_of(job, 1, {limited});
  std::set<std::uint32_t> counts;
  for (const auto& line : lines_of(job.at("out.jsonl")))
    if (line.at("event") == "step") counts.insert(line.at("microbatches").get<std::uint32_t>());
  CHECK(counts.size() > 1);
  CHECK(bits_of(job, 3, {limited, jitter}) == alone);
  const settings blocking{"dispatch.mode=in-order", "dispatch.policy=one_f_one_b",
                          "dispatch.messages=blocking"};
  CHECK(bits_of(job, 2, {limited, blocking}, RRFP_JITTER_NODE) == alone);
  // The samples of a step are those of as many microbatches as the job says.
  const settings in_order{"data.max_tokens=0", "data.pack=order"};
  CHECK(alone.loss == Approx(bits_of(job, 1, {limited, in_order}).loss).epsilon(1e-4));
  const settings copies{"pipeline.replicas=2", "pipeline.microbatches=3", "pipeline.stages=4"};
  const settings sorted{"dispatch.admission=small_large_small", "dispatch.slot_bytes=4000000"};
  const std::vector replicas{bits_of(job, 1, {limited, copies}),
                             bits_of(job, 1, {limited, copies, sorted})};
  for (const auto& b : replicas) CHECK(b.loss == Approx(alone.loss).epsilon(1e-4));
  CHECK(bits_of_each(pictures_text, 4, limited + copies, {jitter, sorted + jitter}) == replicas);
}

TEST_CASE("64 ranks train in four processes") {
  const job_file job;
  const settings many{"pipeline.stages=16", "pipeline.tp=4", "model.layers=16", "train.steps=1"};
  CHECK(bits_of(job, 4, {many, {"transport.node_timeout_ms=20000"}}) == bits_of(job, 1, {many}));
}

TEST_CASE("stages run on the nodes that the job names") {
  const job_file job;
  const settings places{"pipeline.nodes=[1, 0, 0, 0, 1, 1, 0, 1]"};
  CHECK(bits_of(job, 2, {places}) == bits_of(job, 1, {}));
  auto arguments = job.run(2, {places});
  arguments[1] = "check";
  const auto o = run_program(arguments);
  CHECK_THAT(o.out,
             Contains("node 0: stages 1, 2, 3, 6\n") && Contains("node 1: stages 0, 4, 5, 7\n"));
  arguments.back() = "pipeline.nodes=[0, 0, 0, 0, 0, 0, 0, 0]";
  const auto idle = run_program(arguments);
  CHECK(idle.code == 2);
  CHECK_THAT(idle.err, Contains("node 1 hosts no rank"));
}

TEST_CASE("one command gives both runs of a comparison and a trace of all nodes") {
  const job_file job;
  const auto trace = job.at("trace.json");
  const auto o = run_program({RRFP_NODE, "run", RRFP_SOURCE "/apps/jobs/quickstart.toml",
                              "--local-nodes", "2", "--set", "train.steps=2", "--trace", trace});
  INFO(o.out << o.err);
  REQUIRE(o.code == 0);
  CHECK_THAT(o.out,
             Contains("node 0 at ") && Contains("node 1 at ") && Contains("equal to the last bit"));
  const auto events = json::parse(std::ifstream{trace}).at("traceEvents");
  std::size_t tasks = 0;
  for (const auto& e : events) tasks += e.at("ph") == "X" && e.at("cat") != "wait";
  CHECK(tasks == 2 * 4 * 16 * (2 + 3));
}

TEST_CASE("a trace without the tasks of a node is reported as a failed output") {
  const job_file job;
  const auto at = "127.0.0.1:" + std::to_string(free_ports(1));
  const auto trace = job.at("trace.json");
  std::vector<std::unique_ptr<program>> nodes;
  for (const std::string rank : {"0", "1", "2"}) {
    std::vector<std::string> arguments{RRFP_NODE,     "join", job.path(),     "--nnodes", "3",
                                       "--node-rank", rank,   "--rendezvous", at};
    if (rank != "1") arguments.insert(arguments.end(), {"--trace", trace});
    nodes.push_back(std::make_unique<program>(arguments));
  }
  const auto zero = nodes[0]->wait();
  INFO(zero.out << zero.err);
  CHECK(zero.code == 1);
  CHECK_THAT(zero.err, Contains("--trace " + trace + " has no tasks of nodes started without a " +
                                "trace: 1\n"));
  for (const std::size_t n : {1, 2}) CHECK(nodes[n]->wait().code == 0);
  // Stages 3 to 5 are node 1's.
  std::set<int> stages;
  const auto read = json::parse(std::ifstream{trace});
  for (const auto& e : read.at("traceEvents"))
    if (e.at("ph") == "X" && e.at("cat") != "wait") stages.insert(e.at("pid").get<int>());
  CHECK(stages == std::set<int>{0, 1, 2, 6, 7});
}

TEST_CASE("a killed node ends the job with one message") { lose_node(2, SIGKILL, "lost"); }
TEST_CASE("a stopped node ends the job with one message") { lose_node(1, SIGSTOP, "lost"); }
TEST_CASE("a killed first node ends the job with one message") { lose_node(0, SIGKILL, "lost"); }
TEST_CASE("a stopped first node ends the job with one message") { lose_node(0, SIGSTOP, "lost"); }

TEST_CASE("a node that is killed while it joins is named in time, and the others end") {
  const std::uint32_t rank = GENERATE(0u, 2u);
  const job_file job;
  program training{job.run(3, {{"train.steps=100000", "run.progress=none"}})};
  // Stopped at its start, so that it never contacts another node.
  pid_t lost = 0;
  REQUIRE(eventually([&] { return (lost = node_process(training.pid(), rank)) != 0; },
                     std::chrono::seconds{20}));
  REQUIRE(::kill(lost, SIGSTOP) == 0);
  REQUIRE(eventually([&] { return children_of(training.pid()).size() == 3; },
                     std::chrono::seconds{20}));
  const auto nodes = children_of(training.pid());
  REQUIRE(::kill(lost, SIGKILL) == 0);
  const auto o = training.wait();
  INFO(o.out << o.err);
  CHECK(o.code == 3);
  CHECK_THAT(o.err, Contains("rrfp-node: node " + std::to_string(rank) + " (stages ") &&
                        Contains("was killed by signal 9"));
  CHECK(occurrences(o.err, "rrfp-node:") == 1);
  CHECK(o.seconds < 6 * slowdown);  // 2 s on a quiet machine
  for (const auto node : nodes) CHECK(parent_of(node) == 0);
}

TEST_CASE("when node 0 resumes after a stop, it reports its own loss, as the others do") {
  const job_file job;
  const auto port = std::to_string(free_ports(1));
  std::vector<std::unique_ptr<program>> nodes;
  for (const std::string rank : {"0", "1", "2"}) {
    std::vector<std::string> arguments{
        RRFP_NODE,           "join", job.path(),     "--nnodes",          "3",
        "--node-rank",       rank,   "--rendezvous", "127.0.0.1:" + port, "--set",
        "train.steps=100000"};
    arguments.insert(arguments.end(), short_limit.begin(), short_limit.end());
    if (rank == "0") arguments.insert(arguments.end(), {"--json", job.at("out.jsonl")});
    nodes.push_back(std::make_unique<program>(arguments));
  }
  REQUIRE(eventually([&] { return text_of(job.at("out.jsonl")).find("step") != std::string::npos; },
                     std::chrono::seconds{60}));
  nodes[0]->signal(SIGSTOP);
  for (const std::size_t n : {1, 2}) CHECK(nodes[n]->wait(std::chrono::seconds{30}).code == 3);
  nodes[0]->signal(SIGCONT);
  CHECK(nodes[0]->wait(std::chrono::seconds{30}).code == 3);
  for (const auto& node : nodes) {
    INFO(node->err());
    CHECK_THAT(node->err(),
               Contains("node 0 (stages 0, 1, 2") && Contains("was lost: it sent no heartbeat"));
    CHECK_THAT(node->err(), !Contains("node 1") && !Contains("node 2"));
  }
}

TEST_CASE("nodes that wait for a missing node all end with code 3") {
  const job_file job;
  const auto at = "127.0.0.1:" + std::to_string(free_ports(1));
  std::vector<std::unique_ptr<program>> nodes;
  for (const std::string rank : {"0", "1"})
    nodes.push_back(std::make_unique<program>(std::vector<std::string>{
        RRFP_NODE, "join", job.path(), "--nnodes", "3", "--node-rank", rank, "--rendezvous", at,
        "--set", rank == "0" ? "transport.join_timeout_s=7" : "transport.join_timeout_s=60"}));
  for (auto& node : nodes) {
    const auto o = node->wait();
    INFO(o.err);
    CHECK(o.code == 3);
    CHECK_THAT(o.err, Contains("did not join within 7 s: waiting for node 2"));
    // Before that, each says for whom it waits.
    CHECK_THAT(o.err,
               Contains(node == nodes.front() ? "rrfp-node: waiting for node 2 (listening on "
                                              : "rrfp-node: node 0 is waiting for node 2\n"));
  }
}

TEST_CASE("SIGINT ends all nodes with code 130, while they join and while they train") {
  const bool trains = GENERATE(false, true);
  const job_file job;
  auto arguments = job.run(4, {{"train.steps=100000", "run.progress=none"}, jitter});
  arguments.insert(arguments.end(), {"--json", job.at("out.jsonl")});
  program training{arguments};
  REQUIRE(eventually([&] { return children_of(training.pid()).size() == 4; },
                     std::chrono::seconds{20}));
  if (trains) {
    REQUIRE(
        eventually([&] { return text_of(job.at("out.jsonl")).find("step") != std::string::npos; },
                   std::chrono::seconds{60}));
  }
  const auto nodes = children_of(training.pid());
  training.signal(SIGINT);
  const auto o = training.wait();
  INFO(o.out << o.err);
  CHECK(o.code == 130);
  CHECK(o.seconds < 6 * slowdown);  // half a second on a quiet machine
  for (const auto node : nodes) CHECK(parent_of(node) == 0);
}

TEST_CASE("nodes end when their launcher is killed") {
  const job_file job;
  std::vector<pid_t> nodes;
  {
    program training{job.run(4, {{"train.steps=100000", "run.progress=none"}})};
    REQUIRE(eventually([&] { return children_of(training.pid()).size() == 4; },
                       std::chrono::seconds{20}));
    nodes = children_of(training.pid());
  }
  CHECK(eventually(
      [&] {
        return std::all_of(nodes.begin(), nodes.end(), [](pid_t n) { return parent_of(n) == 0; });
      },
      std::chrono::seconds{5}));
}

TEST_CASE("nodes can be started by hand with the variables of torchrun") {
  const job_file job;
  const auto port = std::to_string(20000 + ::getpid() % 10000);
  std::vector<std::unique_ptr<program>> nodes;
  for (const std::string rank : {"1", "0", "2"})
    nodes.push_back(std::make_unique<program>(std::vector<std::string>{
        "/usr/bin/env", "NODE_RANK=" + rank, "NNODES=3", "MASTER_ADDR=127.0.0.1",
        "MASTER_PORT=" + port, RRFP_NODE, "join", job.path()}));
  for (auto& node : nodes) {
    const auto o = node->wait();
    INFO(o.out << o.err);
    CHECK(o.code == 0);
  }
}

TEST_CASE("a node that trains with other vector instructions may not join, one like node 0 may") {
  const job_file job;
  const auto at = "127.0.0.1:" + std::to_string(free_ports(1));
  const auto node = [&](const std::string& rank, const std::string& instructions,
                        const std::string& device) {
    return std::make_unique<program>(
        std::vector<std::string>{"/usr/bin/env", "ATEN_CPU_CAPABILITY=" + instructions, RRFP_NODE,
                                 "join", job.path(), "--nnodes", "2", "--node-rank", rank,
                                 "--rendezvous", at, "--set", "device.kind=" + device});
  };
  const auto device = GENERATE(std::string{"cpu"}, std::string{"emulated"});
  const auto zero = node("0", "avx2", device);
  const auto other = node("1", "default", device)->wait();
  INFO(other.err);
  if (device == "cpu") {
    CHECK(other.code == 2);
    CHECK_THAT(other.err, Contains("refused by node 0: vector instructions: expected AVX2, got "
                                   "DEFAULT (set ATEN_CPU_CAPABILITY on all nodes"));
    CHECK(node("1", "avx2", device)->wait().code == 0);
  } else {
    CHECK(other.code == 0);
  }
  const auto o = zero->wait();
  INFO(o.out << o.err);
  CHECK(o.code == 0);
  CHECK_THAT(o.err, device == "cpu" ? Contains("as node 1: vector instructions: ") : Contains(""));
}

TEST_CASE("join accepts the options of torchrun in every spelling") {
  const job_file job;
  const auto port = std::to_string(20000 + ::getpid() % 10000);
  const std::vector<std::vector<std::string>> spellings{
      {"--nnodes=3", "--node_rank=1", "--master_addr=127.0.0.1", "--master_port=" + port},
      {"--nnodes", "3", "--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", port},
      {"--nnodes=3", "--node_rank=2", "--rdzv_endpoint=127.0.0.1:" + port}};
  std::vector<std::unique_ptr<program>> nodes;
  for (const auto& options : spellings) {
    std::vector<std::string> arguments{RRFP_NODE, "join", job.path()};
    arguments.insert(arguments.end(), options.begin(), options.end());
    nodes.push_back(std::make_unique<program>(arguments));
  }
  for (auto& node : nodes) {
    const auto o = node->wait();
    INFO(o.out << o.err);
    CHECK(o.code == 0);
  }
}

TEST_CASE("an impossible join ends with code 2 and the reason") {
  const job_file job;
  const auto refused = [&](const std::vector<std::string>& more, const std::string& why) {
    std::vector<std::string> arguments{RRFP_NODE, "join", job.path()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const auto o = run_program(arguments);
    INFO(o.err);
    CHECK(o.code == 2);
    CHECK_THAT(o.err, Contains(why));
  };
  refused({"--nnodes", "2", "--node-rank", "2", "--rendezvous", "127.0.0.1:9"}, "rank");
  refused({"--nnodes", "9", "--node-rank", "0", "--rendezvous", "127.0.0.1:9"}, "at most");
  refused({"--nnodes", "2", "--node-rank", "0", "--rendezvous", "0.0.0.0:29599"}, "key");
  refused({"--nnodes", "2", "--node_rank", "0", "--master_port", "65536"}, "65535");
  refused({"--rdzv-endpoint", "127.0.0.1:9", "--master-addr", "127.0.0.1"}, "--rendezvous");
}

TEST_CASE("a node whose peers do not join ends with code 3, so that it is restarted") {
  const job_file job;
  for (const std::string rank : {"0", "1"}) {
    const auto o =
        run_program({RRFP_NODE, "join", job.path(), "--nnodes", "2", "--node-rank", rank,
                     "--rendezvous", "127.0.0.1:" + std::to_string(20000 + ::getpid() % 10000),
                     "--set", "transport.join_timeout_s=1"});
    INFO(o.err);
    CHECK(o.code == 3);
    CHECK_THAT(o.err, Contains("did not join within 1 s"));
  }
}
