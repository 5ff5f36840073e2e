#include "core_transcripts.hpp"
#include "transcript.hpp"

namespace rrfp::testing {

TEST_CASE("The job core answers every event of a transcript with the actions that follow it") {
  check_transcripts(RRFP_TESTDATA, 16, replayed);
}

TEST_CASE("A line that is not an event is answered with what was expected") {
  CHECK(replayed("job stages 1\nhello\n") ==
        "job stages 1\nhello\n  error: unknown event 'hello'\n");
  CHECK(replayed("job stages 1\ndemanded tea\n") ==
        "job stages 1\ndemanded tea\n  error: unknown word 'tea'\n");
  CHECK(replayed("job depth 1\n") == "job depth 1\n  error: unknown option 'depth'\n");
}

}  // namespace rrfp::testing
