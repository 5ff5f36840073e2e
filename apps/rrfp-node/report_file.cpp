#include "report_file.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <vector>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <rrfp/io/atomic_file.hpp>

#include "../common/console.hpp"

namespace rrfp::apps {

namespace {

/// The indentation of decisions in a hang report.
constexpr std::string_view decision_indent = "      ";
constexpr std::size_t decisions_shown_max = 8;

/// "20260131T120000.123Z"
std::string utc_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  return fmt::format("{:%Y%m%dT%H%M%S}.{:03}Z", fmt::gmtime(std::time_t{ms / 1000}), ms % 1000);
}

/// The report with only the last few decisions of each stage.
std::string shortened(std::string_view report) {
  std::string text;
  std::vector<std::string_view> decisions;
  const auto add_decisions = [&] {
    const auto skipped = decisions.size() - std::min(decisions.size(), decisions_shown_max);
    if (skipped > 0) text += fmt::format("{}({} more in the file)\n", decision_indent, skipped);
    for (auto i = skipped; i < decisions.size(); ++i) text += decisions[i];
    decisions.clear();
  };
  while (!report.empty()) {
    const auto end = std::min(report.find('\n'), report.size() - 1) + 1;
    const auto line = report.substr(0, end);
    report.remove_prefix(end);
    if (line.starts_with(decision_indent)) {
      decisions.push_back(line);
      continue;
    }
    add_decisions();
    text += line;
  }
  add_decisions();
  return text;
}

}  // namespace

result<std::string> reports_folder(const command_options& options) {
  if (options.reports.empty()) {
    if (options.json.empty()) return std::string{};
    const auto parent = std::filesystem::path{options.json}.parent_path().string();
    // The launcher passes the folder to its nodes, so it must exist.
    std::error_code why;
    if (!parent.empty() && !std::filesystem::is_directory(parent, why)) {
      if (!why) why = std::make_error_code(std::errc::not_a_directory);
      return error{fmt::format("--json {}: cannot create: {}", options.json, why.message())};
    }
    return parent.empty() ? std::string{"."} : parent;
  }
  const auto& folder = options.reports;
  std::error_code why;
  if (!std::filesystem::is_directory(folder, why)) {
    const bool is_absent = !why || why == std::errc::no_such_file_or_directory;
    return error{
        fmt::format("--reports {}: {}", folder, is_absent ? "no such folder" : why.message())};
  }
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    return error{fmt::format("--reports {}: {}", folder, std::strerror(errno))};
  return folder;
}

void write_hang_report(const std::string& folder, node_id node, const std::string& report) {
  const auto time = utc_now();
  const auto* const name = program_name();
  const auto whole =
      fmt::format("{}: hang report of node {} at {}: {}", name, node.value(), time, report);
  auto text = whole;
  if (!folder.empty()) {
    const auto path = fmt::format("{}/rrfp-report-node-{}-{}.txt", folder, node.value(), time);
    if (auto written = io::write_atomically(path, whole); written)
      text = shortened(whole) + fmt::format("{}: the hang report is saved in {}\n", name, path);
    else
      text += fmt::format("{}: the hang report cannot be saved: {}\n", name, written.message());
  }
  // In one write: several nodes may share the terminal.
  write_error(text);
}

}  // namespace rrfp::apps
