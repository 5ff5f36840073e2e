/// run_job() as a program of its own uses it. Each node is a process that the test forks, so that
/// it can be killed.
#include <catch2/catch.hpp>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include <rrfp/actors/run_job.hpp>
#include <rrfp/compute/without_parameters.hpp>
#include <rrfp/device/emulated_compute.hpp>
#include <rrfp/policies/registry.hpp>

#include "program.hpp"

#include <sys/wait.h>
#include <unistd.h>

namespace {

using namespace rrfp;
using namespace rrfp::actors;
using Catch::Matchers::Contains;

constexpr std::uint32_t nodes = 3;

job::job small_job(std::uint32_t restarts, std::uint32_t ranks = 1) {
  const test::scratch_folder folder;
  const auto file = folder / "small.toml";
  std::ofstream{file} << R"([pipeline]
stages = 3
microbatches = 3
tp = )" << ranks << R"(
[train]
steps = 24
[device]
kind = "emulated"
[cost]
forward_ms = 3
backward_ms = 3
weight_ms = 3
[transport]
heartbeat_ms = 100
[recovery]
)"
                      << "max_restarts = " << restarts << "\n";
  return job::load_job(file, policies::registry(), {}).value();
}

/// Writes a byte for each step, and what it knows of the end.
class telling_program : public job_program {
 public:
  telling_program(int listen_fd, int steps_fd) : listen_fd_(listen_fd), steps_fd_(steps_fd) {}

  membership_options options_of_join() override {
    membership_options options;
    options.listen_fd = listen_fd_ < 0 ? -1 : ::dup(listen_fd_);
    options.version = "1";
    return options;
  }
  status prepare(const begun_run&, session_setup& setup) override {
    if (listen_fd_ >= 0)
      setup.on_step = [fd = steps_fd_](const step_summary&) { (void)!::write(fd, ".", 1); };
    return success();
  }
  void on_run_end(const run_end& e) override {
    if (e.next == aftermath::joins_again) ++losses_;
    if (e.result.how == ending::done)
      text_ = std::to_string(e.result.summary.weights_xxh64) + " " +
              std::to_string(e.result.summary.losses_xxh64);
  }
  ending write_outputs(ending how) override {
    is_written_ = true;
    return how;
  }

  std::string text(const job_outcome& o) const {
    return text_ + "; written " + std::to_string(is_written_) + "; losses " +
           std::to_string(losses_) + "; " + o.message;
  }

 private:
  const int listen_fd_;
  const int steps_fd_;
  std::string text_;
  int losses_ = 0;
  bool is_written_ = false;
};

class small_cluster {
 public:
  using change = std::function<void(session_setup&)>;

  explicit small_cluster(std::uint32_t restarts, change change_setup = {}, std::uint32_t ranks = 1)
      : job_(small_job(restarts, ranks)), change_(std::move(change_setup)) {
    REQUIRE(::pipe(steps_) == 0);
    for (std::uint32_t n = 0; n < nodes; ++n) start(n);
  }
  ~small_cluster() {
    for (const auto& [_, pid] : pids_) ::kill(pid, SIGKILL);
    ::close(steps_[0]);
    ::close(steps_[1]);
    ::close(rendezvous_.fd);
  }

  void start(std::uint32_t n) {
    pids_[n] = ::fork();
    if (pids_[n] == 0) ::_exit(be_node(n));
  }
  void wait_for_steps(int count) const {
    char one = 0;
    while (count-- > 0) REQUIRE(::read(steps_[0], &one, 1) == 1);
  }
  void kill(std::uint32_t n) {
    ::kill(pids_[n], SIGKILL);
    ::waitpid(pids_[n], nullptr, 0);
    pids_.erase(n);
  }
  /// Returns the exit code.
  int end(std::uint32_t n) {
    int state = 0;
    ::waitpid(pids_[n], &state, 0);
    pids_.erase(n);
    return WIFEXITED(state) ? WEXITSTATUS(state) : -1;
  }
  std::string said(std::uint32_t n) const { return test::text_of(folder_ / std::to_string(n)); }

 private:
  int be_node(std::uint32_t n) const {
    const auto framework = make_no_framework();
    telling_program program{n == 0 ? rendezvous_.fd : -1, steps_[1]};
    launch_place place;
    place.nodes = nodes;
    place.node = node_id{n};
    place.port = rendezvous_.port;
    auto setup = make_session_setup(job_, policies::registry(), nullptr);
    if (change_) change_(*setup);
    const auto o = run_job(
        {job_, {{job_, nullptr, *std::move(setup)}}, place, framework.get(), false}, program);
    std::ofstream{folder_ / std::to_string(n)} << program.text(o);
    return o.how == ending::done ? 0 : 3;
  }

  const test::scratch_folder folder_;
  const job::job job_;
  const change change_;
  const listening_socket rendezvous_ = listen_on_loopback().value();
  int steps_[2] = {-1, -1};
  std::map<std::uint32_t, pid_t> pids_;
};

/// What is the same with and without losses.
std::string bits_of(const std::string& said) { return said.substr(0, said.find(';')); }

TEST_CASE("a job goes on after the loss of any node, to the same bits, and ends on all nodes") {
  std::string undisturbed;
  {
    small_cluster c{0};
    for (std::uint32_t n = 0; n < nodes; ++n) CHECK(c.end(n) == 0);
    undisturbed = bits_of(c.said(0));
    CHECK(c.said(0) == undisturbed + "; written 1; losses 0; ");
  }
  small_cluster c{5};
  for (const std::uint32_t lost : {2, 0}) {
    c.wait_for_steps(5);
    c.kill(lost);
    c.start(lost);
  }
  for (std::uint32_t n = 0; n < nodes; ++n) CHECK(c.end(n) == 0);
  CHECK(bits_of(c.said(0)) == undisturbed);
  CHECK_THAT(c.said(0), Contains("written 1; losses 0"));
  CHECK_THAT(c.said(1), Contains("written 0; losses 2"));
}

/// Each rank of its first stage fails once, in step 6: alone as if another rank did not answer a
/// collective, in a group by a collective whose error it tells as its own, as a program's code
/// does.
class broken_collective final : public compute::without_parameters {
 public:
  broken_collective(const pipeline_shape& shape, const rank_place& place)
      : is_first_(place.address.stage == stage_id{0}),
        group_(place.group),
        whole_(shape, place.address.stage,
               {[](auto&&...) { return 4; }, 0, place.address.replica, {}}) {}

  void begin_step(step_id step, compute::step_purpose purpose,
                  const microbatch_shares& microbatches) override {
    step_ = step;
    whole_.begin_step(step, purpose, microbatches);
  }
  tensor_buffer run(const launch& l, tensor_buffer input) override {
    static std::atomic<std::uint32_t> failures = 0;
    if (is_first_ && step_ == step_id{6} && failures++ < (group_ ? group_->size() : 1)) fail(l);
    return whole_.run(l, std::move(input));
  }
  std::vector<compute::microbatch_loss> losses() const override { return whole_.losses(); }

 private:
  void fail(const launch& l) {
    if (!compute::is_parallel(group_)) throw compute::group_error("no answer");
    group_->set_task(step_, l);
    try {  // each rank with another size
      group_->all_reduce_sum(make_host_buffer(dtype::int64, {1 + group_->rank()}));
    } catch (const compute::group_error& e) {
      throw std::runtime_error(e.what());
    }
  }

  const bool is_first_;
  const std::shared_ptr<compute::rank_group> group_;
  step_id step_{};
  emulated_compute whole_;
};

void break_collective(session_setup& setup) {
  setup.emulated.reset();
  setup.make_compute = [](const session_setup& s, const rank_place& place) {
    return std::shared_ptr<compute::rank_compute>{
        std::make_shared<broken_collective>(s.shape, place)};
  };
}

TEST_CASE("a collective that fails just before a loss is known is its effect") {
  const std::uint32_t ranks = GENERATE(1, 2);
  small_cluster c{1, break_collective, ranks};
  c.wait_for_steps(5);
  std::this_thread::sleep_for(std::chrono::milliseconds{300});
  c.kill(1);
  c.start(1);
  for (std::uint32_t n = 0; n < nodes; ++n) CHECK(c.end(n) == 0);
  CHECK_THAT(c.said(0), Contains("written 1; losses 1"));
}

TEST_CASE("a collective that fails without a loss ends the job on all nodes") {
  small_cluster c{1, break_collective};
  for (std::uint32_t n = 0; n < nodes; ++n) {
    CHECK(c.end(n) == 3);
    CHECK_THAT(c.said(n), Contains("losses 0; stage 0 rank 0: no answer"));
  }
}

TEST_CASE("a job that may not lose a node ends on all nodes with the loss") {
  small_cluster c{0};
  c.wait_for_steps(3);
  c.kill(1);
  for (const std::uint32_t n : {0, 2}) {
    CHECK(c.end(n) == 3);
    CHECK_THAT(c.said(n), Contains("losses 0; node 1 (") && Contains("was lost"));
  }
}

/// Fails to open its files on one node.
class failing_program : public job_program {
 public:
  status prepare(const begun_run&, session_setup&) override { return error{"no file"}; }
};

TEST_CASE("what a program cannot open ends the job") {
  const auto j = small_job(0);
  failing_program program;
  const auto o = run_job(
      {j, {{j, nullptr, *make_session_setup(j, policies::registry(), nullptr)}}, {}, nullptr},
      program);
  CHECK(o.how == ending::bad_input);
  CHECK(o.message == "no file");
}

}  // namespace
