#include <rrfp/foreign/read_traces.hpp>

#include <algorithm>

#include <fmt/format.h>

#include <rrfp/io/byte_source.hpp>
#include "any_csv.hpp"
#include "assemble.hpp"
#include "kineto.hpp"
#include "nvtx.hpp"
#include "timer_log.hpp"

namespace rrfp::foreign {

namespace {

/// How a trace of rrfp begins.
constexpr std::string_view own_begin = "{\"traceEvents\":[\n{\"name\":\"process_name\",";

enum class file_kind : std::uint8_t { own, profiler, csv, nvtx_ranges, nvtx_kernels, log };

/// The profiler writes these members before its events, rrfp none of them.
constexpr std::string_view profiler_members[] = {"\"schemaVersion\"", "\"deviceProperties\"",
                                                 "\"distributedInfo\"", "\"baseTimeNanoseconds\"",
                                                 "\"trace_id\""};

result<file_kind> kind_of(const std::string& file) {
  constexpr std::size_t looked_at_bytes = 64 << 10;
  const auto head = io::head_of(file, looked_at_bytes);
  if (!head) return head.failure();
  if (is_csv_header(std::string_view{*head}.substr(0, head->find('\n')))) return file_kind::csv;
  for (const auto member : profiler_members)
    if (head->find(member) != std::string::npos) return file_kind::profiler;
  const auto first = head->find_first_not_of(" \t\r\n");
  const bool is_json = first != std::string::npos && (*head)[first] == '{';
  if (const auto table = is_json ? std::nullopt : nsys_table_in(*head)) {
    if (*table == nsys_table::other)
      return error{file +
                   ": expected the table nvtx_pushpop_trace or cuda_kern_exec_trace of nsys stats "
                   "(--format csv), got another one"};
    return *table == nsys_table::ranges ? file_kind::nvtx_ranges : file_kind::nvtx_kernels;
  }
  const bool is_empty = first == std::string::npos;
  const bool is_own = head->starts_with(own_begin);
  if (file.ends_with(".gz") && !is_own && (is_json || is_empty)) return file_kind::profiler;
  if (is_json) return file_kind::own;
  return file_kind::log;
}

status read_own(const std::string& file, std::vector<found_run>& runs) {
  auto read = report::read_trace(file);
  if (!read) return read.failure();
  for (auto& run : read->runs) {
    runs.push_back({std::move(run), file, false, {}});
    if (read->dropped > 0)
      runs.back().notes.push_back(fmt::format(
          "{}: the trace recorder dropped {} records beyond its limit; all numbers are of the "
          "recorded ones.",
          file, read->dropped));
  }
  return success();
}

/// The files of one job, each of one or several of its ranks.
struct job_files {
  std::vector<std::string> profiler, ranges, kernels;
};

/// Adds the tasks of a trace; of each trace only its tasks stay in memory.
status add_rank(const rank_trace& trace, std::vector<rank_tasks>& ranks) {
  auto found = find_tasks(trace);
  if (!found) return found.failure();
  ranks.push_back(*std::move(found));
  return success();
}

status add_nvtx(const job_files& files, const std::string& file, std::vector<rank_tasks>& ranks) {
  const auto beside = kernels_beside(file);
  const bool is_there = std::ranges::find(files.kernels, beside) != files.kernels.end();
  auto traces = read_nvtx(file, is_there ? beside : "");
  if (!traces) return traces.failure();
  for (auto& trace : *traces) {
    // Processes of one file count on in the order of their numbers.
    if (traces->size() == 1 && !trace.rank && files.ranges.size() > 1)
      return error{file + ": expected the rank in the name of the file (rank3)"};
    if (traces->size() > 1) trace.rank = static_cast<std::uint32_t>(ranks.size());
    if (auto added = add_rank(trace, ranks); !added) return added;
  }
  return success();
}

result<found_run> read_job(const job_files& files) {
  const auto count = files.profiler.size() + files.ranges.size();
  std::vector<rank_tasks> ranks;
  for (const auto& file : files.profiler) {
    auto trace = read_kineto(file);
    if (!trace) return trace.failure();
    if (!trace->rank && count > 1)
      return error{file +
                   ": expected the rank in the file (distributedInfo) or in its name (rank3)"};
    if (auto added = add_rank(*trace, ranks); !added) return added.failure();
  }
  for (const auto& file : files.ranges)
    if (auto added = add_nvtx(files, file, ranks); !added) return added.failure();
  auto run = assemble(std::move(ranks));
  if (run && !files.ranges.empty() && files.kernels.empty())
    run->notes.push_back(
        "Times are those of the host. On GPUs, add the table cuda_kern_exec_trace for those of the "
        "kernels.");
  return run;
}

}  // namespace

result<std::vector<found_run>> read_traces(const std::vector<std::string>& files,
                                           const read_options& options) {
  std::vector<found_run> runs;
  std::vector<std::string> logs;
  job_files job;
  for (const auto& file : files) {
    const auto kind = kind_of(file);
    if (!kind) return kind.failure();
    switch (*kind) {
      case file_kind::own:
        if (auto read = read_own(file, runs); !read) return read.failure();
        break;
      case file_kind::profiler: job.profiler.push_back(file); break;
      case file_kind::nvtx_ranges: job.ranges.push_back(file); break;
      case file_kind::nvtx_kernels: job.kernels.push_back(file); break;
      case file_kind::log: logs.push_back(file); break;
      case file_kind::csv:
        auto read = read_csv_trace(file);
        if (!read) return read.failure();
        runs.push_back(*std::move(read));
        break;
    }
  }
  for (const auto& kernels : job.kernels)
    if (std::ranges::find(job.ranges, kernels, kernels_beside) == job.ranges.end())
      return error{kernels + ": expected the ranges of the same name (nvtx_pushpop_trace) as well"};
  if (!logs.empty()) {
    auto run = read_timer_logs(logs, options);
    if (!run) return run.failure();
    runs.push_back(*std::move(run));
  }
  if (job.profiler.empty() && job.ranges.empty()) return runs;
  auto run = read_job(job);
  if (!run) return run.failure();
  runs.push_back(*std::move(run));
  return runs;
}

}  // namespace rrfp::foreign
