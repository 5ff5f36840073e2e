/// Feeds mutated inputs to the programs and checks how they end.
///
///   fuzz BIN FORK_SERVER [--inputs N] [--seed N | --new-seed] [--kind NAME] [--only NUMBER]
///
/// Exit code 0 is good, and so is 2 with a message on stderr. A signal, more than 20 s of CPU time
/// or 120 s of wall-clock time, another code, or 2 without a message is a finding: the fuzzer
/// prints a line, keeps the input and its command, and ends with exit code 1. Code 1, an internal
/// error, is good only for a failed allocation, because a file may request any amount of memory.
/// `--only` repeats one input.
#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

#include "fuzz_target.hpp"
#include "kinds.hpp"
#include "program.hpp"

namespace {

namespace fs = std::filesystem;
using namespace rrfp::fuzz;
using rrfp::test::cpu_seconds_max;
using rrfp::test::ending;

struct options {
  std::string programs;
  std::string fork_server;
  std::uint64_t inputs = 400;
  std::uint64_t seed = 1;
  std::string kind;
  std::optional<std::uint64_t> only;
  std::string keep = "findings";
  bool verbose = false;
};

bool is_about_memory(const std::string& err) {
  for (const auto* word : {"bad_alloc", "memory", "allocate"})
    if (err.find(word) != std::string::npos) return true;
  return false;
}

/// Why an end is a finding; empty if it is good.
std::string fault_of(const outcome& o) {
  if (o.ended.how == ending::hung) return "timeout after " + std::to_string(cpu_seconds_max) + " s";
  if (o.ended.how == ending::signal) return "signal " + std::to_string(o.ended.number);
  const auto code = o.ended.number;
  if (code == 0) return "";
  if (o.err.empty()) return "code " + std::to_string(code) + " without a message";
  if (code == 2 || (code == 1 && is_about_memory(o.err))) return "";
  return "code " + std::to_string(code);
}

std::string shown(const command& c) {
  std::string text = c.program;
  for (const auto& word : c.arguments)
    text += " '" + (word.size() > 200 ? word.substr(0, 200) + "..." : word) + "'";
  return text;
}

class fuzzer {
 public:
  explicit fuzzer(const options& wanted) : wanted_(wanted) {
    for (auto& k : all_kinds())
      if (wanted.kind.empty() || wanted.kind == k.name) kinds_.push_back(std::move(k));
    if (kinds_.empty()) throw std::runtime_error("--kind: there is no kind " + wanted.kind);
    for (const auto& k : kinds_) prepare(k);
  }

  /// Returns the number of findings.
  std::uint64_t run() {
    const auto first = wanted_.only.value_or(0);
    const auto end = wanted_.only ? first + 1 : wanted_.inputs;
    for (auto number = first; number < end; ++number) try_one(number);
    for (const auto& [name, ends] : ends_) {
      std::printf("%-11s", name.c_str());
      for (const auto& [how, count] : ends)
        std::printf("  %s: %llu", how.c_str(), static_cast<unsigned long long>(count));
      std::printf("\n");
    }
    return findings_;
  }

 private:
  outcome run_program(const std::string& folder, const command& c, bool whole_end = true) {
    auto& program = programs_[c.program];
    if (!program)
      program =
          std::make_unique<fuzz_target>(wanted_.programs + "/" + c.program, wanted_.fork_server);
    return program->run(folder, c.arguments, scratch_ / "err", whole_end);
  }

  void require_success(const std::string& folder, const command& c) {
    const auto o = run_program(folder, c);
    if (o.ended.how == ending::code && o.ended.number == 0) return;
    throw std::runtime_error("unchanged input: " + shown(c) + ": " + fault_of(o) + ": " + o.err);
  }

  std::string pristine(const kind& k) const { return scratch_ / k.name; }

  void prepare(const kind& k) {
    fs::create_directory(pristine(k));
    k.prepare(pristine(k),
              [&](const std::string& at, const command& c) { require_success(at, c); });
    for (const auto& c : k.unchanged) {
      copy(k);
      require_success(scratch_ / "input", c);
    }
  }

  void copy(const kind& k) {
    fs::remove_all(scratch_ / "input");
    fs::copy(pristine(k), scratch_ / "input", fs::copy_options::recursive);
  }

  void try_one(std::uint64_t number) {
    const auto& k = kinds_[number % kinds_.size()];
    copy(k);
    mutator m{wanted_.seed * 1'000'003 + number};
    const auto changed = k.change(scratch_ / "input", m);
    // The run may write files; keep a copy of its input.
    fs::remove_all(scratch_ / "given");
    fs::copy(scratch_ / "input", scratch_ / "given",
             fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    const auto begun = std::chrono::steady_clock::now();
    const auto o = run_program(scratch_ / "input", changed, wanted_.only || number % 16 == 0);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
    const auto fault = fault_of(o);
    ++ends_[k.name][!fault.empty() ? fault : "code " + std::to_string(o.ended.number)];
    if (wanted_.verbose || !fault.empty() || wanted_.only)
      std::printf("%llu %s: %s: %s (%.1f s): %s\n", static_cast<unsigned long long>(number),
                  k.name.c_str(), fault.empty() ? "good" : fault.c_str(), shown(changed).c_str(),
                  took.count(), o.err.substr(0, 400).c_str());
    if (fault.empty()) return;
    ++findings_;
    const auto kept = fs::path{wanted_.keep} / (std::to_string(wanted_.seed) + "-" +
                                                (wanted_.kind.empty() ? "all" : wanted_.kind) +
                                                "-" + std::to_string(number));
    fs::remove_all(kept);
    fs::create_directories(kept.parent_path());
    fs::copy(scratch_ / "given", kept,
             fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    std::ofstream{kept / "command"} << shown(changed) << "\n" << fault << "\n" << o.err;
    std::printf("  kept in %s; again: --seed %llu%s --only %llu\n", kept.c_str(),
                static_cast<unsigned long long>(wanted_.seed),
                wanted_.kind.empty() ? "" : (" --kind " + wanted_.kind).c_str(),
                static_cast<unsigned long long>(number));
  }

  const options& wanted_;
  rrfp::test::scratch_folder scratch_;
  std::vector<kind> kinds_;
  std::map<std::string, std::unique_ptr<fuzz_target>> programs_;
  std::map<std::string, std::map<std::string, std::uint64_t>> ends_;
  std::uint64_t findings_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  options wanted;
  CLI::App app{"Feeds mutated inputs to the programs and checks how they end"};
  app.add_option("programs", wanted.programs, "The folder of the programs")->required();
  app.add_option("fork_server", wanted.fork_server, "The library to preload")->required();
  app.add_option("--inputs", wanted.inputs, "Number of inputs");
  app.add_option("--seed", wanted.seed, "Seed of the inputs");
  app.add_flag_callback(
      "--new-seed",
      [&] {
        const auto now = std::chrono::system_clock::now().time_since_epoch();
        wanted.seed = static_cast<std::uint64_t>(now / std::chrono::milliseconds{1});
      },
      "Take the seed from the clock");
  app.add_option("--kind", wanted.kind, "Only inputs of this kind");
  app.add_option("--only", wanted.only, "Only the input with this number");
  app.add_option("--keep", wanted.keep, "Folder for the inputs of findings");
  app.add_flag("--verbose", wanted.verbose, "Print a line for every input");
  CLI11_PARSE(app, argc, argv);
  try {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    std::printf("seed %llu\n", static_cast<unsigned long long>(wanted.seed));
    fuzzer f{wanted};
    const auto findings = f.run();
    std::printf("%llu findings\n", static_cast<unsigned long long>(findings));
    return findings == 0 ? 0 : 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "fuzz: %s\n", e.what());
    return 1;
  }
}
