/// Tables of schedules, for pipelines of several shapes.
#include <rrfp/core/sequence.hpp>
#include <rrfp/policies/table_csv.hpp>

#include "promises.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace rrfp;
  const auto text = fuzz::text_of(data, size);
  for (const auto& shape :
       {pipeline_shape{1, 1, 2}, pipeline_shape{2, 1, 4},
        pipeline_shape{2, 2, 4, placement::interleaved}, pipeline_shape{2, 2, 3, placement::v}}) {
    const auto read = policies::read_csv(text, shape, "t.csv");
    if (!read) {
      fuzz::promise_error(read.failure(), "t.csv");
      continue;
    }
    if (const auto feasible = check_sequences(shape, *read); !feasible) {
      fuzz::promise_line(feasible.message());
      continue;
    }
    const auto again = policies::read_csv(policies::write_csv(*read, shape), shape, "again.csv");
    fuzz::promise(again.ok() && *again == *read, "a table is read as it was written");
  }
  return 0;
}
