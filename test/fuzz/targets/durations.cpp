/// Tables of durations, as the cost of a run and as its delays.
#include <rrfp/base/step_name.hpp>
#include <rrfp/simulate/duration_table.hpp>

#include "promises.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace rrfp;
  const auto text = fuzz::text_of(data, size);
  for (const auto& shape :
       {pipeline_shape{2, 1, 4}, pipeline_shape{2, 2, 4, placement::interleaved}}) {
    const auto read = simulate::duration_table::parse(text, "d.csv", shape);
    if (!read) {
      fuzz::promise_error(read.failure(), "d.csv");
      continue;
    }
    const auto written = read->text();
    const auto again = simulate::duration_table::parse(written, "again.csv", shape);
    fuzz::promise(again.ok() && again->text() == written, "a table is read as it was written");
    const simulate::given_delays delays{*read};
    for (const std::uint64_t step : {std::uint64_t{0}, std::uint64_t{3}, first_evaluation - 1})
      for (const auto kind : {task_kind::forward, task_kind::backward_weight}) {
        const task t{kind, microbatch_id{3}, chunk_id{0}};
        fuzz::promise(delays.compute(step_id{step}, stage_id{1}, t) >= 0,
                      "a delay is not negative");
        fuzz::promise(delays.link(step_id{step}, virtual_stage_id{1}, t) >= 0,
                      "a delay is not negative");
      }
  }
  return 0;
}
