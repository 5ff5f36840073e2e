#include "core_transcripts.hpp"
#include "transcript.hpp"

namespace rrfp::testing {

TEST_CASE("A membership core answers every event of a transcript with the actions that follow it") {
  check_transcripts(RRFP_TESTDATA, 12, replayed);
}

TEST_CASE("A line that is no event of a membership is answered with what was expected") {
  CHECK(replayed("node 0 of 2\nhello\n") == "node 0 of 2\nhello\n  error: unknown event 'hello'\n");
  CHECK(replayed("node 0 of 2\nreceived 1 tea\n") ==
        "node 0 of 2\nreceived 1 tea\n  error: unknown message 'tea'\n");
}

}  // namespace rrfp::testing
