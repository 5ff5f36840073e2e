/// Job files, with the keys of studies. The first key may be a comment `#embed`: then the job is
/// read for an embedding program, else for a simulation.
#include <rrfp/job/job.hpp>
#include <rrfp/policies/registry.hpp>
#include <rrfp/study/options.hpp>

#include "promises.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace rrfp;
  const auto text = fuzz::text_of(data, size);
  const auto use = text.starts_with("#embed") ? job::job_use::embed : job::job_use::simulate;
  const auto read = job::parse_job(text, "j.toml", policies::registry(), {}, use, study::schema());
  if (!read) {
    fuzz::promise_error(read.failure(), "j.toml");
    return 0;
  }
  for (const auto& note : read->notes) fuzz::promise_line(note);
  const auto dump = job::to_toml(*read);
  const auto again =
      job::parse_job(dump, "dump.toml", policies::registry(), {}, use, study::schema());
  fuzz::promise(again.ok(), "the dump of a job is a job", again ? dump : again.message());
  fuzz::promise(*again == *read, "the dump of a job is the same job", dump);
  (void)job::variants(*read);
  return 0;
}
