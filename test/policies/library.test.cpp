/// Policies in shared libraries: the example, and libraries that are no policy or break a rule.
#include <filesystem>
#include <fstream>

#include <catch2/catch.hpp>

#include "virtual_run.hpp"

using namespace rrfp;
using namespace rrfp::policies;
using namespace rrfp::policies::testing;

namespace {

const std::string libraries = RRFP_LIBRARIES;

std::string in_libraries(const std::string& name) { return libraries + "/" + name + ".so"; }

std::string refusal(const std::string& path) {
  const auto made = registry().make("lib:" + path, linear(3, 7));
  return made ? "" : made.message();
}

std::string failure_of_run(const std::string& name) {
  const auto set = policies_of("lib:" + in_libraries(name), linear(3, 7));
  simulate::plan plan;
  plan.shape = linear(3, 7);
  plan.rule = {[set](const pipeline_shape&, stage_id stage) { return set->make(stage); },
               dispatch_mode::ready};
  const auto ran = simulate::run(plan, uniform_costs{{1, 1, 1}});
  return ran ? "" : ran.message();
}

}  // namespace

TEST_CASE("a policy in a shared library runs under the name that selects it") {
  const auto name = "lib:" + in_libraries("own_policy");
  const auto set = policies_of(name, linear(3, 7));
  CHECK(set->name() == name);
  CHECK(set->sequences() == nullptr);
  CHECK(set->make(stage_id{1})->name() == name);
  const auto report = run(name, linear(4, 12), {1, 1, 1}, dispatch_mode::ready, {.slots = 4});
  for (const auto& stage : report.stages) {
    CHECK(stage.order.size() == 3 * 12);
    CHECK(stage.memory.slots_peak <= 4);
  }
  // While slots last, W waits for the end of the forwards, unlike in BFW.
  const auto first_weight = [](const simulate::report& r) {
    const auto& order = r.stages[0].order;
    return std::find_if(order.begin(), order.end(),
                        [](const task& t) { return t.kind == task_kind::weight; }) -
           order.begin();
  };
  CHECK(first_weight(run(name, linear(4, 12), {1, 1, 1}, dispatch_mode::ready)) >=
        first_weight(run("bfw", linear(4, 12), {1, 1, 1}, dispatch_mode::ready)));
}

TEST_CASE("a file without a slash is one of the current folder") {
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(libraries);
  CHECK(refusal("own_policy.so").empty());
  std::filesystem::current_path(before);
}

TEST_CASE("a file that is no library of a policy is refused with the reason") {
  CHECK(refusal("") == "lib: expected a file, got none");
  CHECK(refusal("/none/own.so") ==
        "/none/own.so: cannot be loaded as a library: cannot open shared object file: No such file "
        "or directory");
  std::ofstream{"text.so"} << "not a library";
  CHECK(refusal("text.so") == "text.so: cannot be loaded as a library: file too short");
  CHECK(refusal(in_libraries("no_symbol")) ==
        in_libraries("no_symbol") +
            ": expected a library with RRFP_POLICY_LIBRARY(function), found no "
            "rrfp_policy_library");
  CHECK(
      refusal(in_libraries("other_version")) ==
      in_libraries("other_version") +
          ": expected version 1 of the interface of policies, got 2: build it with the headers of "
          "this rrfp");
}

TEST_CASE("a library whose policies throw or break a rule is refused") {
  const auto expected = [](const std::string& name, const std::string& where,
                           const std::string& why) {
    CHECK(refusal(in_libraries(name)) == where + "policy 'lib:" + in_libraries(name) + "': " + why);
  };
  expected("make_throws", "", "the function of RRFP_POLICY_LIBRARY threw: no such shape");
  expected("make_returns_null", "", "the function of RRFP_POLICY_LIBRARY returned null");
  expected("too_many_lanes", "stage 0: ", "lanes(): expected 1 to 4, got 9");
  expected("rank_throws", "", "rank() threw: no such task");
  expected("no_pieces", "", "weight_pieces(): expected 1 to 64, got 0");
}

TEST_CASE("a policy of a library that throws or breaks a rule while it runs ends the run") {
  const auto expected = [](const std::string& name, const std::string& why) {
    CHECK(failure_of_run(name) == "policy 'lib:" + in_libraries(name) + "': " + why);
  };
  expected("order_throws", "order() threw: no such lane");
  expected("order_repeats", "order(): expected different lanes from 0 to 3");
  expected("launched_throws", "launched() threw an object that is not a std::exception");
}
