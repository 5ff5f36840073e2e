#include "program.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <sstream>
#include <string_view>
#include <system_error>
#include <vector>

#include <rrfp/base/printable.hpp>
#include <rrfp/job/closest.hpp>

#include "console.hpp"

/// Of the address sanitizer, where there is one.
extern "C" __attribute__((weak)) void __lsan_do_leak_check();

namespace rrfp::apps {

namespace {

const char* name_of_program = "rrfp";

void open_standard_descriptors() {
  int opened = 0;
  do {
    opened = ::open("/dev/null", O_RDWR);
  } while (opened >= 0 && opened <= STDERR_FILENO);
  if (opened >= 0) ::close(opened);
}

/// The soft limit protects programs that use select(); none of ours does.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

/// Async-signal-safe code: no allocation, no stdio.
namespace in_handler {

void write_stderr(std::string_view text) {
  static_cast<void>(!::write(STDERR_FILENO, text.data(), text.size()));
}

/// A line of /proc/self/maps: "7f00-7f10 r--p 00000000 08:01 1234       /path/of the/file".
/// Returns the path if the address lies in the mapping; else an empty text.
std::string_view path_if_at(std::string_view line, std::uintptr_t address) {
  std::uintptr_t begin = 0, end = 0;
  const auto* const line_end = line.data() + line.size();
  const auto* const dash = std::from_chars(line.data(), line_end, begin, 16).ptr;
  if (dash != line_end) std::from_chars(dash + 1, line_end, end, 16);
  if (address < begin || address >= end) return {};
  const auto slash = line.find('/');
  return slash == std::string_view::npos ? std::string_view{} : line.substr(slash);
}

/// Names the mapped file whose access failed: reading beyond the end of a file raises SIGBUS.
void on_bus_error(int, siginfo_t* info, void*) {
  static char maps[1 << 16];
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  std::string_view path;
  const int file = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  std::size_t held = 0;
  for (ssize_t got = 1; path.empty() && file >= 0 && got > 0;) {
    got = ::read(file, maps + held, sizeof maps - held);
    if (got > 0) held += static_cast<std::size_t>(got);
    std::string_view rest{maps, held};
    for (auto end = rest.find('\n'); path.empty() && end != rest.npos; end = rest.find('\n')) {
      path = path_if_at(rest.substr(0, end), address);
      rest.remove_prefix(end + 1);
    }
    if (path.empty()) {
      std::memmove(maps, rest.data(), rest.size());
      held = rest.size();
    }
  }
  if (path.empty()) {
    // Not a mapped file: restore the default action, which the repeated access triggers.
    ::signal(SIGBUS, SIG_DFL);
    return;
  }
  const bool is_shared = path.substr(0, 9) == "/dev/shm/";
  write_stderr(name_of_program);
  write_stderr(": ");
  write_stderr(path);
  write_stderr(
      is_shared
          ? ": /dev/shm is full: enlarge it (mount -o remount,size=1G /dev/shm; docker run "
            "--shm-size=1g)\n"
          : ": cannot read: the file was truncated, or its disk failed, while it was in use\n");
  ::_exit(exit_bad_input);
}

}  // namespace in_handler

void set_signals() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  struct sigaction bus {};
  bus.sa_sigaction = &in_handler::on_bus_error;
  bus.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &bus, nullptr);
}

/// Help that fits 80 columns: an option shows its value and whether it is required. Errors name the
/// options that it excludes.
class narrow_help : public CLI::Formatter {
 public:
  narrow_help() { column_width(26); }
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_type_size() == 0) return "";
    const auto type = option->get_type_name();  // NAME:CHECK:CHECK
    auto text = " " + type.substr(0, type.find(':'));
    if (option->get_expected_max() == CLI::detail::expected_max_vector_size) text += " ...";
    if (option->get_required()) text += " (required)";
    return text;
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    const auto preset = option->get_default_str();
    return option->get_description() + (preset.empty() ? "" : "\n(default: " + preset + ")");
  }
};

void set_help(CLI::App& app, const std::shared_ptr<narrow_help>& help) {
  app.formatter(help);
  for (auto* const command : app.get_subcommands([](const CLI::App*) { return true; }))
    set_help(*command, help);
}

/// ", did you mean NAME?", or nothing if no name is close.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& names,
                         std::string_view prefix = "") {
  const auto near = job::closest(word, std::vector<std::string_view>{names.begin(), names.end()});
  return near ? fmt::format(", did you mean {}{}?", prefix, *near) : "";
}

/// The suggestion for the first unknown option, if that is what was wrong.
std::string option_meant(const CLI::App& parsed) {
  std::vector<std::string> names;
  for (const auto* const option : parsed.get_options())
    if (!option->get_group().empty())  // not a hidden one
      names.insert(names.end(), option->get_lnames().begin(), option->get_lnames().end());
  for (const auto& extra : parsed.remaining(true))
    if (extra.starts_with('-')) {
      const auto word = extra.substr(std::min(extra.find_first_not_of('-'), extra.size()));
      return did_you_mean(word.substr(0, word.find('=')), names, "--");
    }
  return "";
}

/// One line: what was wrong, and which help has the usage.
std::string describe(const CLI::App& app, const CLI::ParseError& e, int argc, char** argv) {
  std::string why = e.what();
  std::string help = name_of_program;
  const CLI::App* parsed = &app;
  const auto commands =
      app.get_subcommands([](const CLI::App* a) { return !a->get_name().empty(); });
  if (argc > 1 && !commands.empty()) {
    const std::string given = argv[1];
    std::vector<std::string> names;
    for (const auto* const command : commands) names.push_back(command->get_name());
    const auto found = std::find(names.begin(), names.end(), given);
    if (found != names.end()) {
      help += " " + given;
      parsed = commands[static_cast<std::size_t>(found - names.begin())];
    } else if (!given.starts_with('-')) {
      return "expected the command " + alternatives(names) + ", got '" + given + "'" +
             did_you_mean(given, names) + "; see " + help + " --help";
    }
  }
  return why + option_meant(*parsed) + "; see " + help + " --help";
}

/// "--json" after `--json ""`, as from a variable of the shell that is not set.
std::string option_without_text(const CLI::App& app) {
  for (const auto* option : app.get_options())
    for (const auto& text : option->results())
      if (text.empty() && option->get_name() != "--title") return option->get_name();
  for (const auto* command : app.get_subcommands())
    if (auto found = option_without_text(*command); !found.empty()) return found;
  return {};
}

}  // namespace

void run_program(const char* name, int argc, char** argv,
                 const std::function<int(int, char**)>& work) {
  open_standard_descriptors();
  name_of_program = name;
  set_signals();
  raise_descriptor_limit();
  int code = exit_failed;
  try {
    code = work(argc, argv);
  } catch (const std::system_error& e) {
    code = e.code() == std::errc::resource_unavailable_try_again
               ? end_with({"threads: cannot start one: raise the limit of this user (ulimit -u)"})
               : end_with({e.what(), error_kind::failed});
  } catch (const std::exception& e) {
    end_with({e.what(), error_kind::failed});
  }
  end_program(code);
}

void end_program(int code) {
  std::fflush(nullptr);
  if (__lsan_do_leak_check != nullptr) __lsan_do_leak_check();
  std::_Exit(code == exit_done && has_output_failed() ? exit_failed : code);
}

const char* program_name() { return name_of_program; }

int end_with(const error& why) {
  print_error("{}: {}\n", name_of_program, why.message);
  return exit_code_of(why.kind);
}

std::optional<int> parse_arguments(CLI::App& app, int argc, char** argv) {
  set_help(app, std::make_shared<narrow_help>());
  app.name(argv[0]);
  if (argc == 1 && app.get_require_subcommand_min() > 0) {
    write_error(app.help());
    return exit_bad_input;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() != 0) return end_with({describe(app, e, argc, argv)});
    std::ostringstream out, err;
    app.exit(e, out, err);  // --help, --version
    write_out(out.str());
    return exit_done;
  }
  if (const auto empty = option_without_text(app); !empty.empty())
    return end_with({empty + ": expected a value, got an empty text"});
  return std::nullopt;
}

}  // namespace rrfp::apps
