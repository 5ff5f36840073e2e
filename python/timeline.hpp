/// The picture of a recorded step.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <ranges>
#include <stdexcept>
#include <string>

#include <rrfp/actors/trace.hpp>
#include <rrfp/base/step_name.hpp>
#include <rrfp/report/picture.hpp>
#include <rrfp/report/timeline.hpp>
#include <rrfp/report/trace.hpp>

#include "gil.hpp"

namespace rrfp::python {

class temporary_file {
 public:
  temporary_file() {
    auto pattern = (std::filesystem::temp_directory_path() / "rrfp-trace-XXXXXX").string();
    const int file = mkstemp(pattern.data());
    if (file < 0) throw std::runtime_error("cannot make " + pattern);
    close(file);
    path_ = pattern;
  }
  temporary_file(const temporary_file&) = delete;
  temporary_file& operator=(const temporary_file&) = delete;
  ~temporary_file() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// An SVG of one step, or of the last one.
inline result<std::string> picture_of(const actors::trace_recorder& trace,
                                     std::optional<std::uint64_t> step) {
  const auto is_of_evaluation = [](const auto& t) { return is_evaluation(t.step); };
  if (std::ranges::all_of(trace.records().tasks, is_of_evaluation))
    return error{"report(): expected a finished step, got none"};
  // The reader of traces reads files, as rrfp-report does.
  const temporary_file file;
  if (auto written = actors::write_chrome_json(file.path(), {{"rrfp", &trace}}); !written)
    return written.failure();
  const auto read = report::read_trace(file.path());
  if (!read) return read.failure();
  const auto& run = read->runs.front();
  for (const auto s : report::steps_of(run) | std::views::reverse) {
    if (step && s.value() != *step) continue;  // numbers from 1, as in the file
    const auto line = report::make_timeline(run, s, s);
    if (!line) return line.failure();
    return report::svg_of("rrfp", {*line});
  }
  return error{"report(): the trace has no step " + std::to_string(step.value_or(0))};
}

}  // namespace rrfp::python
