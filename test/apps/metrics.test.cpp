// --metrics serves the numbers of the run; hang reports on demand.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <memory>

#include "eventually.hpp"
#include "http.hpp"
#include "json_lines.hpp"
#include "program.hpp"

namespace {

using namespace rrfp::test;
using Catch::Matchers::Contains;

/// Four stages with two slots each on emulated devices: about 30 ms per step.
std::string job_in(const scratch_folder& folder, const std::string& more = "") {
  const auto file = folder / "job.toml";
  std::ofstream{file} << "name = \"watched\"\n"
                         "[pipeline]\nstages = 4\nmicrobatches = 6\n"
                         "[dispatch]\nslots = 2\n"
                         "[model]\nlayers = 4\n"
                         "[device]\nkind = \"emulated\"\n"
                         "[train]\nsteps = 100000\n"
                         "[cost]\nforward_ms = 1\nbackward_ms = 1\nweight_ms = 1\n"
                      << more;
  return file;
}

double value(const std::map<std::string, double>& all, const std::string& name) {
  const auto at = all.find(name);
  INFO(name);
  REQUIRE(at != all.end());
  return at->second;
}

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& e : std::filesystem::directory_iterator{folder})
    if (e.path().filename().string().rfind("rrfp-report-", 0) == 0) names.push_back(e.path());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

TEST_CASE("metrics and health are served while a job trains") {
  const scratch_folder folder;
  const auto port = free_ports(1);
  program run{{RRFP_NODE, "run", job_in(folder), "--json", folder / "run.jsonl", "--metrics",
               ":" + std::to_string(port)}};
  const std::string job = "{node=\"0\",run=\"watched\"}";
  const auto steps = [&] {
    const auto page = get(port, "/metrics");  // 404 while the server begins
    return page.code == 200 ? samples_of(page.body)["rrfp_steps_total" + job] : 0;
  };
  REQUIRE(eventually([&] { return steps() >= 5; }, std::chrono::seconds{60}));
  const auto health = get(port, "/healthz");
  CHECK(health.code == 200);
  CHECK_THAT(health.body, Contains("watched: last progress"));
  CHECK(get(port, "/nothing").code == 404);

  const auto all = samples_of(get(port, "/metrics").body);
  const auto logged = [&] { return text_of(folder / "run.jsonl"); }();
  const auto done = value(all, "rrfp_steps_total" + job);
  const auto lines = std::count(logged.begin(), logged.end(), '\n');
  CHECK(std::abs(static_cast<double>(lines) - done) <= 3);
  CHECK(value(all, "rrfp_step_seconds_count" + job) == Approx(done).margin(1));
  CHECK(value(all, "rrfp_step_seconds_sum" + job) / done > 0.01);
  CHECK(value(all, "rrfp_healthy" + job) == 1);
  CHECK(value(all, "rrfp_last_step_age_seconds" + job) < 30);
  for (int s = 0; s < 4; ++s) {
    const std::string stage =
        "node=\"0\",run=\"watched\",replica=\"0\",stage=\"" + std::to_string(s) + "\"";
    CHECK(value(all, "rrfp_slots_limit{" + stage + "}") == 2);
    CHECK(value(all, "rrfp_slots_in_use{" + stage + "}") <= 2);
    // A step is six F of one millisecond on each stage.
    const auto count = value(all, "rrfp_task_seconds_count{" + stage + ",kind=\"F\"}");
    CHECK(count == Approx(6 * done).margin(12));
    CHECK(value(all, "rrfp_task_seconds_sum{" + stage + ",kind=\"F\"}") >= 0.0005 * count);
    CHECK(value(all, "rrfp_task_seconds_bucket{" + stage + ",kind=\"F\",le=\"+Inf\"}") == count);
    double decisions = 0;
    for (const auto* reason : {"hint_head", "skipped_not_ready", "memory_bound", "only_choice"})
      decisions += value(all, "rrfp_decisions_total{" + stage + ",reason=\"" + reason + "\"}");
    CHECK(decisions >= 12 * (done - 1));
    const auto rank = "{" + stage + ",rank=\"0\"}";
    const int neighbours = s == 0 || s == 3 ? 1 : 2;
    CHECK(value(all, "rrfp_tensors_sent_total" + rank) ==
          Approx(6 * neighbours * done).margin(12 * neighbours));
    CHECK(value(all, "rrfp_received_bytes_total" + rank) > 0);
  }
  run.signal(SIGINT);
  CHECK(run.wait().code == 130);
}

TEST_CASE("pages accept only GET and HEAD") {
  const scratch_folder folder;
  const auto port = free_ports(1);
  const program run{{RRFP_NODE, "run", job_in(folder), "--metrics", ":" + std::to_string(port)}};
  REQUIRE(eventually([&] { return get(port, "/healthz").code == 200; }, std::chrono::seconds{60}));
  for (const std::string path : {"/metrics", "/healthz"}) {
    const auto page = get(port, path);
    const auto head = ask(port, "HEAD", path);
    INFO(path << "\n" << head.head);
    CHECK(page.code == 200);
    CHECK(head.code == 200);
    CHECK(!page.body.empty());
    CHECK(head.body.empty());
    CHECK_THAT(head.head, Contains("Content-Type: text/plain") && Contains("Content-Length: ") &&
                              !Contains("Content-Length: 0"));
    for (const auto* method : {"POST", "PUT", "DELETE", "OPTIONS", "PATCH"}) {
      const auto refused = ask(port, method, path);
      INFO(method << ": " << refused.head);
      CHECK(refused.code == 405);
      CHECK_THAT(refused.head, Contains("Allow: GET, HEAD"));
    }
  }
  CHECK(ask(port, "HEAD", "/nothing").code == 404);
}

TEST_CASE("clients that do not finish their requests block no other client, and are disconnected") {
  const scratch_folder folder;
  const auto port = free_ports(1);
  const program run{{RRFP_NODE, "run", job_in(folder), "--metrics", ":" + std::to_string(port)}};
  REQUIRE(eventually([&] { return get(port, "/healthz").code == 200; }, std::chrono::seconds{60}));
  std::vector<std::unique_ptr<half_sent_request>> clients;
  for (int i = 0; i < 10; ++i) {
    clients.push_back(std::make_unique<half_sent_request>(port, "/metrics"));
    REQUIRE(clients.back()->sent());
  }
  CHECK(get(port, "/healthz").code == 200);
  CHECK(get(port, "/metrics").code == 200);
  for (const auto& c : clients) CHECK(c->is_ended(std::chrono::seconds{20}));
}

TEST_CASE("a port without a host is served on loopback only") {
  const scratch_folder folder;
  const auto port = std::to_string(free_ports(1));
  program run{{RRFP_NODE, "run", job_in(folder), "--metrics", ":" + port}};
  const auto listening = [&] {
    return run_program({"/bin/sh", "-c", "ss -Hltn sport = :" + port}).out;
  };
  REQUIRE(eventually([&] { return !listening().empty(); }, std::chrono::seconds{60}));
  CHECK_THAT(listening(), Contains("127.0.0.1:" + port) && !Contains("0.0.0.0:" + port) &&
                              !Contains("*:" + port + " "));
}

TEST_CASE("a node of a job with restarts serves when the process before it frees the port") {
  const scratch_folder folder;
  const auto port = free_ports(1);
  program before{{RRFP_NODE, "run", job_in(folder), "--metrics", ":" + std::to_string(port)}};
  REQUIRE(eventually([&] { return get(port, "/healthz").code == 200; }, std::chrono::seconds{60}));
  program node{{RRFP_NODE, "join", job_in(folder), "--set", "recovery.max_restarts=1", "--nnodes",
                "1", "--node-rank", "0", "--rendezvous",
                "127.0.0.1:" + std::to_string(free_ports(1)), "--metrics",
                ":" + std::to_string(port)}};
  const auto note = "--metrics 127.0.0.1:" + std::to_string(port) +
                    ": cannot listen: Address already in use; serving when it is free";
  REQUIRE(eventually([&] { return node.err().find(note) != std::string::npos; },
                     std::chrono::seconds{60}));
  before.signal(SIGKILL);
  before.wait();
  CHECK(eventually([&] { return get(port, "/healthz").code == 200; }, std::chrono::seconds{60}));
}

TEST_CASE("an address that cannot be served gives one line and exit code 2, and nothing trains") {
  const scratch_folder folder;
  const taken_port taken;
  const auto number = std::to_string(taken.port());
  struct wrong {
    std::vector<std::string> arguments;
    std::string expected;
    std::string with_ipv6{};  ///< expected where the HTTP server supports IPv6, if other
  };
  const std::vector<wrong> all{
      {{"--metrics", ":" + number},
       "--metrics 127.0.0.1:" + number + ": cannot listen: Address already in use"},
      {{"--metrics", ":" + std::to_string(taken.port() - 1), "--local-nodes", "2"},
       ": cannot listen: Address already in use"},
      {{"--metrics", "9464"}, "no port, expected HOST:PORT, or :PORT for loopback"},
      {{"--metrics", ":0"}, "not a port from 1 to 65535"},
      {{"--metrics", ":http"}, "not a port from 1 to 65535"},
      {{"--metrics", ":65535", "--local-nodes", "2"}, "2 nodes use ports up to 65536"},
      {{"--metrics", "[2001:db8::7]:9464"},
       "--metrics [2001:db8::7]:9464: cannot listen: the HTTP server of this system does not "
       "support IPv6",
       "--metrics [2001:db8::7]:9464: cannot listen: Cannot assign requested address"},
      {{"--metrics", "203.0.113.7:9464"}, "cannot listen: Cannot assign requested address"},
      {{"--reports", folder / "absent"}, "no such folder"}};
  for (const auto& w : all) {
    std::vector<std::string> arguments{RRFP_NODE, "run", job_in(folder)};
    arguments.insert(arguments.end(), w.arguments.begin(), w.arguments.end());
    const auto o = run_program(arguments);
    INFO(w.expected << "\n" << o.out << o.err);
    CHECK(o.code == 2);
    CHECK(o.out.empty());
    CHECK_THAT(o.err,
               Contains(w.expected) || Contains(w.with_ipv6.empty() ? w.expected : w.with_ipv6));
    CHECK(std::count(o.err.begin(), o.err.end(), '\n') == 1);
  }
}

TEST_CASE(
    "/healthz turns bad with the reason when no stage makes progress, and every node writes a "
    "report") {
  const scratch_folder folder;
  std::ofstream{folder / "delays.csv"} << "step,stage,chunk,mb,kind,ms\n3,2,0,3,act,100000000\n";
  const auto job = job_in(folder, "[jitter]\ndelays = \"delays.csv\"\n[run]\nhang_timeout_s = 3\n");
  const auto port = free_ports(1);
  program run{{RRFP_NODE, "run", job, "--json", folder / "run.jsonl", "--metrics",
               ":" + std::to_string(port)}};
  reply bad;
  CHECK(eventually(
      [&] {
        bad = get(port, "/healthz");
        return bad.code == 503;
      },
      std::chrono::seconds{60}));
  CHECK_THAT(bad.body, Contains("watched: no progress for 3.") && Contains("run.hang_timeout_s"));
  const auto o = run.wait();
  INFO(o.err);
  CHECK(o.code == 1);
  const std::string cause =
      "cause: the activation for F3 left stage 1 and has not arrived at stage 2 rank 0, step 3";
  CHECK_THAT(o.err, Contains(cause));
  const auto saved = files_in(folder / "");
  REQUIRE(saved.size() == 1);
  CHECK_THAT(saved[0], Contains("rrfp-report-node-0-2"));
  CHECK_THAT(text_of(saved[0]), Contains(cause) && Contains("launch 0 F0: "));
}

TEST_CASE(
    "several nodes serve on consecutive ports, and one signal makes all of them write reports") {
  const scratch_folder folder;
  const auto port = free_ports(2);
  const auto second = static_cast<std::uint16_t>(port + 1);
  program run{{RRFP_NODE, "run", job_in(folder), "--local-nodes", "2", "--metrics",
               ":" + std::to_string(port), "--reports", folder / "", "--set", "train.steps=150"}};
  const auto done = [&](std::uint16_t at, int stage) {
    const auto node = at == port ? "0" : "1";
    const auto page = get(at, "/metrics");
    if (page.code != 200) return 0.0;
    return samples_of(
        page.body)["rrfp_stage_steps_total{node=\"" + std::string{node} +
                   "\",run=\"watched\",replica=\"0\",stage=\"" + std::to_string(stage) + "\"}"];
  };
  REQUIRE(eventually([&] { return done(port, 0) >= 3 && done(second, 3) >= 3; },
                     std::chrono::seconds{60}));
  const auto other = get(second, "/metrics").body;
  CHECK_THAT(other, !Contains("rrfp_steps_total") && !Contains("stage=\"0\""));
  CHECK(samples_of(other)["rrfp_transport_sent_bytes_total{node=\"1\",run=\"watched\"}"] > 0);
  CHECK(get(second, "/healthz").code == 200);
  run.signal(SIGUSR1);
  CHECK(eventually([&] { return files_in(folder / "").size() == 2; }, std::chrono::seconds{20}));
  const auto o = run.wait();
  INFO(o.err);
  CHECK(o.code == 0);
  CHECK_THAT(o.err, Contains("report of node 0 at") && Contains("report of node 1 at") &&
                        Contains("requested by SIGUSR1"));
  const auto saved = files_in(folder / "");
  REQUIRE(saved.size() == 2);
  CHECK_THAT(text_of(saved[1]), Contains("stage 2: step ") && Contains("stage 3: step "));
}
