/// Traces, and what rrfp-report computes from them.
#include <rrfp/report/breakdown.hpp>
#include <rrfp/report/critical_path.hpp>
#include <rrfp/report/profile.hpp>
#include <rrfp/simulate/duration_table.hpp>

#include <tuple>

#include "promises.hpp"

using namespace rrfp;
using fuzz::promise;

namespace {

void check_tasks(const report::traced_run& run) {
  const report::traced_task* before = nullptr;
  for (const auto& t : run.tasks) {
    promise(0 <= t.decided && t.decided <= t.begin && t.begin <= t.end, "a task is well-formed");
    if (before != nullptr && std::tie(before->replica, before->stage, before->rank) ==
                                 std::tie(t.replica, t.stage, t.rank))
      promise(before->end <= t.begin, "tasks of a rank do not overlap");
    before = &t;
  }
}

void check_profile(const report::traced_run& run, step_id first, step_id last) {
  const auto p = report::profile_of(run, first, last);
  if (!p) return fuzz::promise_line(p.message());
  promise(!report::cost_toml(*p, "t.json", 0.5).empty(), "a profile has costs");
  if (!p->shape.validate()) return;
  const auto csv = report::durations_csv(*p);
  const auto again = simulate::duration_table::parse(csv, "profile.csv", p->shape);
  promise(again.ok(), "a profile is a table of durations", again ? csv : again.message());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto read = report::parse_trace(fuzz::text_of(data, size), "t.json");
  if (!read) {
    fuzz::promise_error(read.failure(), "t.json");
    return 0;
  }
  promise(!read->runs.empty(), "a trace has a run");
  for (const auto& run : read->runs) {
    check_tasks(run);
    const auto steps = report::steps_of(run);
    const auto line = report::make_timeline(run, steps.front(), steps.back());
    promise(line.ok(), "a run has a timeline");
    for (const auto& sums : report::breakdown_by_stage(*line))
      promise(sums.busy() + sums.idle() == sums.wall, "busy and idle time add up");
    promise(report::find_critical_path(*line).length() == line->wall(),
            "the critical path is as long as the window");
    check_profile(run, steps.front(), steps.back());
  }
  (void)report::typical_step(read->runs, step_id{0}, step_id{UINT64_MAX});
  return 0;
}
