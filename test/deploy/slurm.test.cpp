/// Submits deploy/slurm/rrfp.sbatch: munged, slurmctld and three slurmd run on this machine, in a
/// network namespace with only loopback. If they are not installed or cannot run, the program ends
/// with code 77: skipped.
#include <catch2/catch.hpp>

#include <sched.h>

#include <csignal>
#include <memory>

#include "eventually.hpp"
#include "json_lines.hpp"
#include "program.hpp"

namespace {

using namespace rrfp::test;
using Catch::Matchers::Contains;

const std::string job_text = R"(name = "allocated"
[pipeline]
stages = 4
microbatches = 4
[model]
layers = 4
hidden = 32
heads = 4
context = 32
[data]
text = ["/usr/share/common-licenses/GPL-3"]
microbatch_size = 1
sequence_length = 32
[train]
steps = 5
)";

[[noreturn]] void skip(const std::string& why) {
  std::fprintf(stderr, "skipped: %s\n", why.c_str());
  std::exit(77);
}

outcome shell(const std::string& command) { return run_program({"/bin/bash", "-c", command}); }

/// Moves this process and its children into a network namespace with only a loopback device and its
/// own ports. Slurm resolves names only if there is an address outside of 127.0.0.0/8.
void enter_own_network() {
  if (::unshare(CLONE_NEWNET) != 0) skip("no network namespace can be made (needs root)");
  if (shell("ip link set lo up && ip address add 10.213.78.1/32 dev lo").code != 0)
    skip("a network namespace cannot be set up (needs ip)");
}

/// A cluster of three nodes, rrfp-a to rrfp-c. The destructor stops everything.
class cluster {
 public:
  cluster() {
    for (const auto* tool : {"munged", "slurmctld", "slurmd", "sbatch", "scancel"})
      if (shell(std::string{"PATH=$PATH:/usr/sbin command -v "} + tool).code != 0)
        skip(std::string{tool} + " is not installed (scripts/setup installs it where it can)");
    enter_own_network();
    std::filesystem::create_directory(folder_ / "state");
    std::ofstream{folder_ / "slurm.conf"} << configuration();
    ::setenv("SLURM_CONF", (folder_ / "slurm.conf").c_str(), 1);
    ::setenv("RRFP_NODE", RRFP_NODE, 1);
    REQUIRE(shell("head -c 1024 /dev/urandom > " + (folder_ / "munge.key") + " && chmod 600 " +
                  (folder_ / "munge.key"))
                .code == 0);
    start({"/usr/sbin/munged", "--foreground", "--force", "--key-file=" + (folder_ / "munge.key"),
           "--socket=" + (folder_ / "munge.sock"), "--pid-file=" + (folder_ / "munged.pid"),
           "--log-file=" + (folder_ / "munged.log"), "--seed-file=" + (folder_ / "munged.seed")});
    if (!eventually([&] { return std::filesystem::exists(folder_ / "munge.sock"); },
                    std::chrono::seconds{20}))
      give_up("munged does not run here: ");
    start({"/usr/sbin/slurmctld", "-D", "-i"});
    for (const std::string node : {"rrfp-a", "rrfp-b", "rrfp-c"})
      start({"/usr/sbin/slurmd", "-D", "-N", node});
    if (!eventually([] { return shell("sinfo -h -o %t:%D").out == "idle:3\n"; },
                    std::chrono::seconds{60}))
      give_up("slurmctld and slurmd do not run here: ");
  }
  cluster(const cluster&) = delete;
  cluster& operator=(const cluster&) = delete;
  ~cluster() {
    shell("squeue -h -o %A | xargs -r scancel --signal=KILL --full");
    eventually([] { return shell("squeue -h").out.empty(); }, std::chrono::seconds{20});
    shell("scontrol shutdown");
    for (auto& d : daemons_) d->signal(SIGTERM);
    for (auto& d : daemons_) d->wait(std::chrono::seconds{10});
  }

  /// Submits the script with these arguments; returns the job number.
  std::string submit(const std::string& log, const std::string& arguments,
                     const std::string& options = "") const {
    const auto o = shell("sbatch --parsable --output=" + log + " " + options +
                         " " RRFP_SOURCE "/deploy/slurm/rrfp.sbatch " + arguments);
    INFO(o.err);
    REQUIRE(o.code == 0);
    return o.out.substr(0, o.out.find('\n'));
  }
  bool is_over(std::chrono::seconds limit) const {
    return eventually([] { return shell("squeue -h").out.empty(); }, limit);
  }
  std::string state(const std::string& job) const { return shell("scontrol show job " + job).out; }

  /// As if the machine of a node lost its power: slurmd, the daemons of its steps and its tasks end
  /// without a word.
  void lose(const std::string& node, const std::string& job_file) const {
    shell("kill -KILL $(cat " + (folder_ / ("slurmd-" + node + ".pid")) +
          "); for p in $(pgrep -f ' " + job_file + "'); do grep -qz '^SLURMD_NODENAME=" + node +
          "$' /proc/$p/environ && for q in $(ps -o ppid= $p) $p; do "
          "case $(cat /proc/$q/comm) in slurmstepd | bash | rrfp-node) kill -KILL $q ;; esac; "
          "done; done");
  }

 private:
  /// Starts a daemon that dies with the test.
  void start(const std::vector<std::string>& arguments) {
    std::vector<std::string> all{"/usr/bin/setpriv", "--pdeathsig", "KILL"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    daemons_.push_back(std::make_unique<program>(all));
  }
  [[noreturn]] void give_up(const std::string& why) {
    const auto message = why + daemons_.back()->err();
    daemons_.clear();
    skip(message);
  }

  std::string configuration() const {
    const auto at = [&](const char* name) { return folder_ / name; };
    const auto host = shell("hostname -s").out;
    const auto name = host.substr(0, host.find('\n'));
    return "ClusterName=rrfp\nSlurmctldHost=" + name + "(127.0.0.1)\nSlurmctldPort=26817\n" +
           "AuthType=auth/munge\nAuthInfo=socket=" + at("munge.sock") + "\nCredType=cred/munge\n" +
           "SlurmUser=root\nSlurmdUser=root\nStateSaveLocation=" + at("state") +
           "\nSlurmdSpoolDir=" + at("spool-%n") + "\nSlurmctldPidFile=" + at("slurmctld.pid") +
           "\nSlurmdPidFile=" + at("slurmd-%n.pid") + "\nSlurmctldLogFile=" + at("slurmctld.log") +
           "\nSlurmdLogFile=" + at("slurmd-%n.log") +
           "\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none\n"
           "SelectType=select/linear\nJobAcctGatherType=jobacct_gather/none\n"
           "AccountingStorageType=accounting_storage/none\nSlurmdParameters=config_overrides\n"
           "ReturnToService=2\nKillWait=60\nSlurmdTimeout=15\n"
           "NodeName=rrfp-a NodeHostname=" +
           name + " NodeAddr=127.0.0.1 Port=26818 CPUs=1\n" +
           "NodeName=rrfp-b NodeHostname=" + name + " NodeAddr=127.0.0.1 Port=26819 CPUs=1\n" +
           "NodeName=rrfp-c NodeHostname=" + name + " NodeAddr=127.0.0.1 Port=26820 CPUs=1\n" +
           "PartitionName=test Nodes=rrfp-a,rrfp-b,rrfp-c Default=YES MaxTime=INFINITE State=UP\n";
  }

  scratch_folder folder_;
  std::vector<std::unique_ptr<program>> daemons_;
};

}  // namespace

TEST_CASE("Slurm trains a job on two nodes, and scancel ends it with a checkpoint") {
  const scratch_folder folder;
  const auto job = folder / "job.toml";
  std::ofstream{job} << job_text;
  const cluster slurm;

  const auto log = folder / "trained.log";
  const auto trained = slurm.submit(log, job);
  CHECK(slurm.is_over(std::chrono::seconds{120}));
  INFO(text_of(log) << slurm.state(trained));
  CHECK_THAT(slurm.state(trained), Contains("JobState=COMPLETED") && Contains("ExitCode=0:0"));
  CHECK_THAT(text_of(log), Contains("node 1 at 127.0.0.1: stages 2, 3") && Contains("step 5/5"));

  // The nodes also start if the environment was not exported.
  const auto log_of_bare = folder / "bare.log";
  const auto bare =
      slurm.submit(log_of_bare, job, "--export=RRFP_NODE=" RRFP_NODE ",SLURM_CONF=$SLURM_CONF");
  CHECK(slurm.is_over(std::chrono::seconds{120}));
  INFO(text_of(log_of_bare) << slurm.state(bare));
  CHECK_THAT(slurm.state(bare), Contains("JobState=COMPLETED") && Contains("ExitCode=0:0"));
  CHECK_THAT(text_of(log_of_bare), Contains("step 5/5"));

  // A step of one second, so that the job must wait for its end before it saves.
  const auto log_of_cancelled = folder / "cancelled.log";
  std::ofstream{folder / "delays.csv"} << "step,stage,chunk,mb,kind,ms\n1,1,0,1,F,1000\n";
  const auto saved = folder / "saved";
  const auto more = " --set checkpoint.dir=" + saved;
  const auto cancelled = slurm.submit(
      log_of_cancelled,
      job + " --set train.steps=100000 --set jitter.delays=" + (folder / "delays.csv") + more);
  REQUIRE(
      eventually([&] { return text_of(log_of_cancelled).find("  step 1/") != std::string::npos; },
                 std::chrono::seconds{120}));
  REQUIRE(shell("scancel " + cancelled).code == 0);
  CHECK(slurm.is_over(std::chrono::seconds{90}));
  INFO(text_of(log_of_cancelled) << slurm.state(cancelled));
  CHECK_THAT(slurm.state(cancelled), Contains("JobState=CANCELLED"));
  CHECK_THAT(text_of(log_of_cancelled), Contains("interrupted: finishing the step") &&
                                            Contains(" saved, 4 files") &&
                                            Contains("allocated: interrupted after "));

  // Submitted again, the job resumes from there.
  const auto log_of_resumed = folder / "resumed.log";
  const auto steps = shell("ls " + saved + " | sed 's/step-0*//'").out;
  const auto resumed = slurm.submit(
      log_of_resumed, job + more + " --set train.steps=" + std::to_string(std::stoi(steps) + 2));
  CHECK(slurm.is_over(std::chrono::seconds{120}));
  INFO(text_of(log_of_resumed) << slurm.state(resumed));
  CHECK_THAT(slurm.state(resumed), Contains("JobState=COMPLETED"));
  CHECK_THAT(text_of(log_of_resumed),
             Contains("resumes after step " + std::to_string(std::stoi(steps))));

  // Only a signal, as at the time limit: the job saves and ends, but not as a success.
  const auto log_of_signalled = folder / "signalled.log";
  const auto signalled = slurm.submit(log_of_signalled, job + more + " --set train.steps=100000");
  REQUIRE(eventually([&] { return text_of(log_of_signalled).find("  step ") != std::string::npos; },
                     std::chrono::seconds{120}));
  REQUIRE(shell("scancel --signal=TERM " + signalled).code == 0);
  CHECK(slurm.is_over(std::chrono::seconds{90}));
  INFO(text_of(log_of_signalled) << slurm.state(signalled));
  CHECK_THAT(slurm.state(signalled), Contains("JobState=FAILED") && Contains("ExitCode=130:0"));
  CHECK_THAT(text_of(log_of_signalled), Contains(" saved, 4 files"));

  // With restarts, a node alone that is told to end is drained and started again; scancel still
  // ends all.
  const auto log_of_drained = folder / "drained.log";
  const auto restarted =
      slurm.submit(log_of_drained,
                   job + " --set train.steps=100000 --set checkpoint.dir=" + (folder / "drained"),
                   "--export=ALL,RRFP_RESTARTS=3");
  const auto has_said = [&](const std::string& text) {
    return eventually([&] { return text_of(log_of_drained).find(text) != std::string::npos; },
                      std::chrono::seconds{120});
  };
  REQUIRE(has_said("  step "));
  REQUIRE(shell("for p in $(pgrep -f ' join " + job +
                "'); do [ \"$(readlink /proc/$p/exe)\" = " RRFP_NODE
                " ] && grep -qz '^SLURM_NODEID=1$' /proc/$p/environ && kill -TERM $p; done; true")
              .code == 0);
  CHECK(has_said("node 1 leaves the job; waiting"));
  CHECK(has_said("(0 steps repeated"));
  REQUIRE(shell("scancel " + restarted).code == 0);
  CHECK(slurm.is_over(std::chrono::seconds{90}));
  INFO(text_of(log_of_drained) << slurm.state(restarted));
  CHECK_THAT(slurm.state(restarted), Contains("JobState=CANCELLED"));
  CHECK_THAT(text_of(log_of_drained), Contains("allocated: interrupted after "));
}

TEST_CASE("Slurm loses a machine, and the job goes on with a spare node") {
  const scratch_folder folder;
  const auto job = folder / "job.toml";
  std::ofstream{job} << job_text;
  const cluster slurm;

  const auto log = folder / "spare.log";
  const auto submitted = slurm.submit(log, job + " --set train.steps=1000 --set recovery.spares=1",
                                      "--nodes=3 --no-kill --export=ALL,RRFP_RESTARTS=3");
  const bool trains =
      eventually([&] { return text_of(log).find("  step 1/") != std::string::npos; },
                 std::chrono::seconds{60});
  INFO(text_of(log));
  REQUIRE(trains);
  slurm.lose("rrfp-b", job);
  CHECK(slurm.is_over(std::chrono::seconds{120}));
  INFO(text_of(log) << slurm.state(submitted) << shell("sinfo -N").out);
  CHECK_THAT(slurm.state(submitted), Contains("JobState=COMPLETED") && Contains("ExitCode=0:0"));
  CHECK_THAT(text_of(log), Contains("continues without node 1") && Contains("step 1000/1000"));
}
