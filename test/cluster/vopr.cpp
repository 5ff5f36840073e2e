/// rrfp-vopr: simulates whole clusters by seed.
///
///   rrfp-vopr --seed 42 [--trace]        replays one run
///   rrfp-vopr --seeds 1000 [--from 0]    runs many; a failing one prints its command
///   rrfp-vopr --seed 42 --shrink         drops faults while the run still fails
///   rrfp-vopr --scale 16,64,256          prints what clusters of so many nodes send
///   --small                              small shapes, of every dimension a little
///   --for SECONDS                        ends after this time
///   --log FILE                           appends what was run, and goes on after it
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>

#include <sys/wait.h>
#include <unistd.h>

#include "cluster.hpp"
#include "scale.hpp"

namespace {

using namespace rrfp::cluster;

struct options {
  std::uint64_t from = 0;
  std::uint64_t seeds = 1;
  bool traces = false;
  bool shrinks = false;
  size_kind size = size_kind::full;
  double limit_s = 1e9;
  std::string log;
  std::string scale;
};

char command[128];

void remember(std::uint64_t seed, const options& o) {
  std::snprintf(command, sizeof command, "rrfp-vopr --seed %llu%s --trace\n",
                static_cast<unsigned long long>(seed),
                o.size == size_kind::small ? " --small" : "");
}

/// Limit of a seed, which takes milliseconds: an event may not end.
constexpr unsigned seed_time_max_s = 60;

/// A core has found a broken rule, or does not return.
void on_abort(int) {
  static_cast<void>(::write(STDOUT_FILENO, "failed: ", 8));
  static_cast<void>(::write(STDOUT_FILENO, command, std::strlen(command)));
  ::_exit(1);
}

/// Whether it fails; in a process of its own, which a broken rule may abort.
bool fails(const scenario& c) {
  std::cout.flush();
  const auto child = ::fork();
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);
    std::signal(SIGALRM, SIG_DFL);
    ::alarm(seed_time_max_s);
    static_cast<void>(std::freopen("/dev/null", "w", stderr));
    ::_exit(run_scenario(c).failure.empty() ? 0 : 1);
  }
  int state = 0;
  ::waitpid(child, &state, 0);
  return !WIFEXITED(state) || WEXITSTATUS(state) != 0;
}

int shrink(scenario c) {
  if (!fails(c)) {
    std::cout << "seed " << c.seed << " does not fail\n";
    return 0;
  }
  for (bool any = true; any;) {
    any = false;
    for (std::size_t i = 0; i < c.faults.size(); ++i) {
      auto fewer = c;
      fewer.faults.erase(fewer.faults.begin() + static_cast<std::ptrdiff_t>(i));
      if (!fails(fewer)) continue;
      c = fewer;
      any = true;
      break;
    }
  }
  std::cout << to_string(c) << "\nfails with " << c.faults.size() << " faults:\n";
  for (const auto& f : c.faults) std::cout << "  " << to_string(f) << "\n";
  std::cout.flush();
  std::cout << run_scenario(c, stdout).failure << "\n";
  return 1;
}

int usage(const std::string& what) {
  std::cerr << "rrfp-vopr: expected --seed N, --seeds N, --from N, --small, --trace, --shrink, "
               "--for SECONDS, --log FILE or --scale N,N,..., got '"
            << what << "'\n";
  return 2;
}

int run_many(const options& o) {
  const auto began = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  };
  std::uint64_t runs = 0, done = 0, steps = 0, recoveries = 0, events = 0;
  for (auto seed = o.from; seed < o.from + o.seeds && elapsed() < o.limit_s; ++seed) {
    remember(seed, o);
    const auto c = draw_scenario(seed, o.size);
    ::alarm(seed_time_max_s);
    const auto r = run_scenario(c, o.traces ? stdout : nullptr);
    if (!r.failure.empty()) {
      std::cout << "seed " << seed << " failed: " << r.failure << "\n" << command;
      return 1;
    }
    ++runs;
    done += r.is_done;
    steps += r.steps;
    recoveries += r.recoveries;
    events += r.events;
    if (!o.log.empty() && (runs % 1000 == 0 || seed + 1 == o.from + o.seeds))
      std::ofstream{o.log, std::ios::app} << "passed " << seed + 1 << "\n";
  }
  const auto took = elapsed();
  std::cout << runs << " seeds passed, " << done << " of them with a result: " << steps
            << " steps, " << recoveries << " recoveries, " << events << " events; "
            << static_cast<double>(runs) / took << " seeds a second\n";
  return 0;
}

int run_sizes(const std::string& sizes) {
  std::vector<scale_result> results;
  std::stringstream in{sizes};
  for (std::string one; std::getline(in, one, ',');)
    results.push_back(run_at_scale(static_cast<std::uint32_t>(std::stoul(one))));
  std::cout << table_of(results);
  const auto faults = faults_of_scale(results);
  for (const auto& f : faults) std::cout << "failed: " << f << "\n";
  return faults.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  options o;
  for (int i = 1; i < argc; ++i) {
    const std::string what = argv[i];
    const auto value = [&] { return std::strtod(++i < argc ? argv[i] : "0", nullptr); };
    if (what == "--seed" || what == "--from")
      o.from = static_cast<std::uint64_t>(value());
    else if (what == "--seeds")
      o.seeds = static_cast<std::uint64_t>(value());
    else if (what == "--for")
      o.limit_s = value();
    else if (what == "--log" && i + 1 < argc)
      o.log = argv[++i];
    else if (what == "--scale" && i + 1 < argc)
      o.scale = argv[++i];
    else if (what == "--trace")
      o.traces = true;
    else if (what == "--small")
      o.size = size_kind::small;
    else if (what == "--shrink")
      o.shrinks = true;
    else
      return usage(what);
  }
  if (!o.scale.empty()) return run_sizes(o.scale);
  std::signal(SIGABRT, on_abort);
  std::signal(SIGSEGV, on_abort);
  std::signal(SIGALRM, on_abort);
  if (!o.log.empty()) {
    std::ifstream in{o.log};
    std::string word;
    for (std::uint64_t passed = 0; in >> word >> passed;) {
      if (passed <= o.from) continue;
      const auto end = o.from + o.seeds;
      o.from = std::min(passed, end);
      o.seeds = end - o.from;
    }
  }
  remember(o.from, o);
  if (o.traces) std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // complete also after an abort
  return o.shrinks ? shrink(draw_scenario(o.from, o.size)) : run_many(o);
}
