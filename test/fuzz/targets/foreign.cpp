/// Traces of other frameworks, and what is forecast from them. A zero byte separates two ranks.
#include <rrfp/forecast/forecast.hpp>
#include <rrfp/foreign/read_traces.hpp>
#include <rrfp/policies/registry.hpp>
#include <rrfp/report/timeline.hpp>

#include "promises.hpp"

using namespace rrfp;
using fuzz::promise;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text{reinterpret_cast<const char*>(data), size};
  const auto zero = text.find('\0');
  const fuzz::memory_file first{text.substr(0, zero)};
  const fuzz::memory_file second{zero == text.npos ? std::string_view{} : text.substr(zero + 1)};
  std::vector<std::string> files{first.path()};
  if (zero != text.npos) files.push_back(second.path());
  const auto read = foreign::read_traces(files);
  if (!read) {
    fuzz::promise_line(read.message());
    return 0;
  }
  for (const auto& found : *read) {
    promise(!found.run.tasks.empty(), "a run has tasks");
    const report::traced_task* before = nullptr;
    for (const auto& t : found.run.tasks) {
      promise(0 <= t.decided && t.decided <= t.begin && t.begin <= t.end, "a task is well-formed");
      if (before != nullptr && before->replica == t.replica && before->stage == t.stage &&
          before->rank == t.rank)
        promise(before->end <= t.begin, "tasks of a rank do not overlap");
      before = &t;
    }
    const auto steps = report::steps_of(found.run);
    promise(report::make_timeline(found.run, steps.front(), steps.back()).ok(),
            "a run has a timeline");
    const auto f = forecast::make_forecast(found.run, policies::registry(), 0.5);
    if (!f) fuzz::promise_line(f.message());
  }
  return 0;
}
