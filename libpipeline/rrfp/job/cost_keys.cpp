/// The keys of [cost].
#include "schema_parts.hpp"

namespace rrfp::job {

void add_cost_keys(std::vector<key>& table) {
  section_keys<cost_options> keys{table, "cost", &job::cost};
  using o = cost_options;
  table.push_back({"cost.profile",
                   "a file",
                   "",
                   "File with the times of [cost], as `rrfp-report --profile FILE.toml` writes it; "
                   "the keys below override it.",
                   true,
                   path_rule::files,
                   [](job& j, const value& v) -> status {
                     const auto path = read_text(v);
                     if (!path) return path.failure();
                     const auto times = read_profile(*path);
                     if (!times) return times.failure();
                     apply_settings(*times, j);
                     return success();
                   },
                   {}});
  keys.numbers("forward_ms", &o::forward_ms, {0, ms_max}, "ms",
               "Duration of the forward of a microbatch; one value, one per stage, one per "
               "virtual stage, or one per layer, with the embedding and the head in the first and "
               "the last one.");
  keys.numbers("backward_ms", &o::backward_ms, {0, ms_max}, "ms",
               "Duration of the input gradient alone, with `pipeline.recompute` after a second "
               "forward; values as for `forward_ms`.");
  keys.numbers("weight_ms", &o::weight_ms, {0, ms_max}, "ms",
               "Duration of the weight gradient alone; values as for `forward_ms`.");
  keys.number("link_ms", &o::link_ms, {0, ms_max}, "ms",
              "Time from the end of a task to the arrival of its result.");
  keys.numbers("speed", &o::speed, {0, 1e6, true, false}, "",
               "Speed of the device of each stage, or of all; it divides the task times above.");
}

}  // namespace rrfp::job
