/// The properties of the table of keys: each key sets its own member, the dump restores the job,
/// and the reference is complete.
#include <rrfp/job/schema.hpp>

#include <set>

#include <catch2/catch.hpp>

#include <rrfp/job/closest.hpp>
#include <rrfp/job/value.hpp>
#include <rrfp/study/options.hpp>
#include "job_texts.hpp"

namespace rrfp::testing {
namespace {

using job::key;
using job::value;

/// A valid value of the key that is not its default.
value other_value(const key& k, const job::schema& known) {
  static const scratch_folder folder;
  const auto now = k.get(known.defaults());
  for (const value& candidate : {value{true},
                                 value{false},
                                 value{std::int64_t{3}},
                                 value{0.75},
                                 value{1.25},
                                 value{std::string{"v"}},
                                 value{std::string{"in-order"}},
                                 value{std::string{"sgd"}},
                                 value{std::string{"paper"}},
                                 value{std::string{"pareto"}},
                                 value{std::string{"cuda"}},
                                 value{std::string{"nccl"}},
                                 value{std::string{"lines"}},
                                 value{std::string{"small_large_small"}},
                                 value{std::string{"cost"}},
                                 value{std::string{"apart"}},
                                 value{std::string{"chunk"}},
                                 value{std::string{"layers"}},
                                 value{std::string{"/a"}},
                                 value{std::string{"llama"}},
                                 value{std::string{"silu"}},
                                 value{std::string{"measured"}},
                                 value{std::string{"bf16"}},
                                 value{std::string{"skip"}},
                                 value{std::string{"reroute"}},
                                 value{std::string{"file"}},
                                 value{std::string{"never"}},
                                 value{std::string{"bytes"}},
                                 value{std::string{"blocking"}},
                                 value{std::string{"even"}},
                                 value{std::string{"lognormal"}},
                                 value{std::string{"uniform"}},
                                 value{folder.write("h.csv", "tokens,count\n1,1\n")},
                                 value{std::string{"stalls"}},
                                 value{std::string{"fixed"}},
                                 value{std::string{"gpt3-large"}},
                                 value{std::int64_t{5}}}) {
    auto scratch = known.defaults();
    if (k.set(scratch, candidate) && to_toml(k.get(scratch)) != to_toml(now)) return candidate;
  }
  FAIL("no other value for " << k.path);
  return now;
}

/// The keys of the runtime, and these with those of studies.
const job::schema& any_schema() {
  return GENERATE(false, true) ? study::schema() : job::runtime_schema();
}

TEST_CASE("Each key sets its own member and no other") {
  const auto& known = any_schema();
  const auto defaults = known.defaults();
  for (const auto& k : known.keys()) {
    if (!k.get) continue;
    CAPTURE(k.path);
    auto changed = known.defaults();
    REQUIRE(k.set(changed, other_value(k, known)));
    for (const auto& other : known.keys()) {
      if (!other.get) continue;
      CAPTURE(other.path);
      const bool same = to_toml(other.get(changed)) == to_toml(other.get(defaults));
      CHECK(same == (&other != &k));
    }
    CHECK_FALSE(changed == defaults);
  }
}

TEST_CASE("Keys are unique, belong to a known section and are grouped by section") {
  const auto& known = any_schema();
  std::set<std::string> seen;
  std::vector<std::string_view> order;
  for (const auto& k : known.keys()) {
    CAPTURE(k.path);
    CHECK(seen.insert(k.path).second);
    CHECK(known.find(k.path) == &k);
    CHECK_FALSE(k.meaning.empty());
    CHECK_FALSE(k.type.empty());
    if (k.section().empty()) continue;
    CHECK(known.table().is_section(k.section()));
    if (order.empty() || order.back() != k.section()) order.push_back(k.section());
  }
  const auto& sections = known.table().sections;
  REQUIRE(order.size() == sections.size());
  for (std::size_t i = 0; i < order.size(); ++i) CHECK(order[i] == sections[i].name);
}

TEST_CASE("There are few enough keys to know") {
  CHECK(job::runtime_schema().keys().size() <= 140);
}

TEST_CASE("The default of a key is a valid value") {
  const auto& known = any_schema();
  const auto defaults = good("", {}, job::job_use::simulate, known);
  for (const auto& k : known.keys()) {
    if (!k.get) continue;
    CAPTURE(k.path);
    auto again = known.defaults();
    CHECK(k.set(again, k.get(defaults)));
  }
}

TEST_CASE("The dump of a job is parsed to the same job") {
  const auto again = [](const job::job& j) { return good(job::to_toml(j)); };
  const auto plain = good("");
  CHECK(again(plain) == plain);
  const auto full = good(R"(
name = "a \"name\" \\ with ünïcode"
[pipeline]
stages = 3
[dispatch]
slots = "none"
[data]
text = ["a", "/b c/d"]
[train]
lr = 0.1
seed = 9223372036854775807
[jitter]
level = "J3"
[cost]
forward_ms = [0.1, 1e-9, 3]
[[compare]]
name = "in # order"
dispatch.mode = "in-order"
dispatch.policy = "gpipe"
cost.weight_ms = 2
jitter.level = "J1"
data.text = "c"
[[compare]]
name = "plain"
)");
  const auto read = again(full);
  CHECK(read == full);
  CHECK(read.train.seed == full.train.seed);
  CHECK(read.cost.forward_ms == full.cost.forward_ms);
  CHECK(read.data.text == full.data.text);
  CHECK(job::to_toml(read) == job::to_toml(full));
  REQUIRE(job::variants(read).size() == 2);
  CHECK(job::variants(read)[0] == job::variants(full)[0]);
  CHECK(job::variants(read)[0].data.text ==
        texts{(std::filesystem::current_path() / "c").string()});
}

TEST_CASE("The dump holds every key except the short forms") {
  const auto& known = any_schema();
  const auto text =
      "\n" + job::to_toml(good("pipeline.stages = 3", {}, job::job_use::simulate, known));
  CHECK(text.starts_with(
      "\nname = \"x\"\n\n[pipeline]\nstages = 3\nchunks = 1\nplacement = \"auto\""));
  for (const auto& k : known.keys()) {
    CAPTURE(k.path);
    const bool listed = text.find("\n" + std::string{k.leaf()} + " = ") != std::string::npos;
    CHECK(listed == (k.get != nullptr));
  }
}

TEST_CASE("Jobs differ if their variants do") {
  const std::string base = "[[compare]]\nname = \"a\"\n";
  CHECK(good(base) == good(base));
  CHECK_FALSE(good(base) == good(""));
  CHECK_FALSE(good(base) == good(base + "pipeline.stages = 2"));
}

TEST_CASE("The reference lists every key under its section, with its default") {
  const auto& known = any_schema();
  const auto page = job::job_reference_markdown(known);
  const auto lines = job::job_reference_text(known);
  for (const auto& k : known.keys()) {
    CAPTURE(k.path);
    const auto section =
        k.section().empty() ? 0 : page.find("## [" + std::string{k.section()} + "]");
    REQUIRE(section != std::string::npos);
    const auto end = page.find("\n## ", section + 1);
    CHECK(page.substr(section, end - section).find("| `" + std::string{k.leaf()} + "` | ") !=
          std::string::npos);
    CHECK(("\n" + lines).find("\n" + k.path) != std::string::npos);
  }
  CHECK(page.find("| `lr` | number in [0, 1000] | `0.0003` | Learning rate after the warm-up. |") !=
        std::string::npos);
  CHECK(lines.find("pipeline.stages = 1\n    integer, 1 to 1024\n    Number of physical stages") !=
        std::string::npos);
}

TEST_CASE("The closest name differs in at most a third of the letters") {
  const std::vector<std::string_view> names = {"stages", "chunks", "tp"};
  CHECK(job::closest("stagse", names) == "stages");
  CHECK(job::closest("stage", names) == "stages");
  CHECK(job::closest("chunk", names) == "chunks");
  CHECK(job::closest("tps", names) == "tp");
  CHECK(job::closest("pt", names) == "tp");
  const std::vector<std::string_view> policies = {"bf", "bfw", "bfw_plus"};
  CHECK(job::closest("bwf", policies) == "bfw");
  CHECK(job::closest("b", policies) == "bf");
  CHECK_FALSE(job::closest("placement", names));
  CHECK_FALSE(job::closest("", names));
  CHECK_FALSE(job::closest(std::string(10000, 's'), names));
}

}  // namespace
}  // namespace rrfp::testing
