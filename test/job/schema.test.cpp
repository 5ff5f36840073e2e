/// The properties of the table of keys: each key sets its own member, the dump restores the job,
/// and the reference is complete.
#include <rrfp/job/schema.hpp>

#include <set>

#include <catch2/catch.hpp>

#include <rrfp/job/closest.hpp>
#include <rrfp/job/value.hpp>
#include "job_texts.hpp"

namespace rrfp::testing {
namespace {

using job::key;
using job::value;

/// A valid value of the key that is not its default.
value other_value(const key& k) {
  const job::job defaults;
  const auto now = k.get(defaults);
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
                                 value{std::string{"lognormal"}},
                                 value{std::string{"uniform"}},
                                 value{std::string{"stalls"}},
                                 value{std::int64_t{5}}}) {
    job::job scratch;
    if (k.set(scratch, candidate) && to_toml(k.get(scratch)) != to_toml(now)) return candidate;
  }
  FAIL("no other value for " << k.path);
  return now;
}

TEST_CASE("Each key sets its own member and no other") {
  const job::job defaults;
  for (const auto& k : job::runtime_schema().keys()) {
    if (!k.get) continue;
    CAPTURE(k.path);
    job::job changed;
    REQUIRE(k.set(changed, other_value(k)));
    for (const auto& other : job::runtime_schema().keys()) {
      if (!other.get) continue;
      CAPTURE(other.path);
      const bool same = to_toml(other.get(changed)) == to_toml(other.get(defaults));
      CHECK(same == (&other != &k));
    }
    CHECK_FALSE(changed == defaults);
  }
}

TEST_CASE("Keys are unique, belong to a known section and are grouped by section") {
  std::set<std::string> seen;
  std::vector<std::string_view> order;
  for (const auto& k : job::runtime_schema().keys()) {
    CAPTURE(k.path);
    CHECK(seen.insert(k.path).second);
    CHECK(job::runtime_schema().find(k.path) == &k);
    CHECK_FALSE(k.meaning.empty());
    CHECK_FALSE(k.type.empty());
    if (k.section().empty()) continue;
    CHECK(job::runtime_schema().table().is_section(k.section()));
    if (order.empty() || order.back() != k.section()) order.push_back(k.section());
  }
  const auto& sections = job::runtime_schema().table().sections;
  REQUIRE(order.size() == sections.size());
  for (std::size_t i = 0; i < order.size(); ++i) CHECK(order[i] == sections[i].name);
}

TEST_CASE("There are few enough keys to know") {
  CHECK(job::runtime_schema().keys().size() <= 140);
}

TEST_CASE("The default of a key is a valid value") {
  const job::job defaults = good("");
  for (const auto& k : job::runtime_schema().keys()) {
    if (!k.get) continue;
    CAPTURE(k.path);
    job::job again;
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
  const auto text = "\n" + job::to_toml(good("pipeline.stages = 3"));
  CHECK(text.starts_with(
      "\nname = \"x\"\n\n[pipeline]\nstages = 3\nchunks = 1\nplacement = \"auto\""));
  for (const auto& k : job::runtime_schema().keys()) {
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
  const auto page = job::job_reference_markdown();
  const auto lines = job::job_reference_text();
  for (const auto& k : job::runtime_schema().keys()) {
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
