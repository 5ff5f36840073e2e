#include <rrfp/foreign/read_traces.hpp>

#include <algorithm>

#include <fmt/format.h>

#include <rrfp/io/byte_source.hpp>
#include "any_csv.hpp"
#include "assemble.hpp"

namespace rrfp::foreign {

namespace {

enum class file_kind : std::uint8_t { own, profiler, csv };

/// The profiler writes these members before its events, rrfp none of them.
constexpr std::string_view profiler_members[] = {"\"schemaVersion\"", "\"deviceProperties\"",
                                                 "\"distributedInfo\"", "\"baseTimeNanoseconds\"",
                                                 "\"trace_id\""};

result<file_kind> kind_of(const std::string& file) {
  constexpr std::size_t looked_at_bytes = 64 << 10;
  const auto head = files::head_of(file, looked_at_bytes);
  if (!head) return head.failure();
  if (is_csv_header(std::string_view{*head}.substr(0, head->find('\n')))) return file_kind::csv;
  for (const auto member : profiler_members)
    if (head->find(member) != std::string::npos) return file_kind::profiler;
  const auto first = head->find_first_not_of(" \t\r\n");
  const bool is_gzip = file.ends_with(".gz");
  if (is_gzip) return file_kind::profiler;
  if (first != std::string::npos && (*head)[first] == '{') return file_kind::own;
  return error{
      fmt::format("{}: expected a trace of rrfp-node run --trace, of torch.profiler (.json or "
                  ".json.gz), or CSV "
                  "with the columns stage, microbatch, kind, start and end, got {}",
                  file, first == std::string::npos ? "an empty file" : "text that is not JSON")};
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

result<rank_of_run> read_rank(const std::string& file, std::size_t files) {
  auto trace = read_kineto(file);
  if (!trace) return trace.failure();
  auto found = find_tasks(*trace);
  if (!found) return found.failure();
  if (!trace->rank && files > 1)
    return error{file + ": expected the rank in the file (distributedInfo) or in its name (rank3)"};
  return rank_of_run{file, trace->rank.value_or(0), std::move(trace->pipeline), *std::move(found)};
}

}  // namespace

result<std::vector<found_run>> read_traces(const std::vector<std::string>& files) {
  std::vector<found_run> runs;
  std::vector<std::string> ranks;
  for (const auto& file : files) {
    const auto kind = kind_of(file);
    if (!kind) return kind.failure();
    switch (*kind) {
      case file_kind::own:
        if (auto read = read_own(file, runs); !read) return read.failure();
        break;
      case file_kind::profiler: ranks.push_back(file); break;
      case file_kind::csv:
        auto read = read_csv_trace(file);
        if (!read) return read.failure();
        runs.push_back(*std::move(read));
        break;
    }
  }
  if (ranks.empty()) return runs;
  // Of each file only its tasks stay in memory.
  std::vector<rank_of_run> all;
  for (const auto& file : ranks) {
    auto rank = read_rank(file, ranks.size());
    if (!rank) return rank.failure();
    all.push_back(*std::move(rank));
  }
  auto run = assemble(std::move(all));
  if (!run) return run.failure();
  runs.push_back(*std::move(run));
  return runs;
}

}  // namespace rrfp::foreign
