/// Experiment files.
#include "experiment.hpp"
#include "cell.hpp"

#include "promises.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace rrfp;
  const auto read = experiment::parse_experiment(fuzz::text_of(data, size), "e.toml");
  if (!read) {
    fuzz::promise_error(read.failure(), "e.toml");
    return 0;
  }
  fuzz::promise(read->cells() > 0 && read->cells() <= experiment::cells_max,
                "an experiment has a limited number of cells");
  const auto last = experiment::cell_at(*read, read->cells() - 1, read->engines.front());
  fuzz::promise(!experiment::description_of(last).empty(), "a cell has a description");
  return 0;
}
