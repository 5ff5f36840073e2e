#include <rrfp/base/step_name.hpp>
#include <rrfp/simulate/duration_table.hpp>

#include "support.hpp"

namespace rrfp::simulate {

using namespace testing;

namespace {

given_delays delays_of(const std::string& rows, const pipeline_shape& shape) {
  auto parsed = duration_table::parse(durations_header + rows, "delays.csv", shape);
  INFO((parsed ? "" : parsed.message()));
  REQUIRE(parsed.ok());
  return given_delays{*parsed};
}

nanoseconds compute(const given_delays& delays, std::uint64_t step, const task& what) {
  return delays.compute(step_id{step}, stage_id{0}, what);
}

}  // namespace

TEST_CASE("a task or message without a row has no delay") {
  const auto delays = delays_of("1,0,0,1,F,2\n1,0,0,1,grad,3\n", linear(2, 2));
  CHECK(compute(delays, 0, make_task(task_kind::forward, 1)) == 2'000'000);
  CHECK(compute(delays, 0, make_task(task_kind::forward, 0)) == 0);
  CHECK(compute(delays, 0, make_task(task_kind::backward_weight, 1)) == 0);
  CHECK(delays.link(step_id{0}, virtual_stage_id{0}, make_task(task_kind::backward, 1)) ==
        3'000'000);
  CHECK(delays.link(step_id{0}, virtual_stage_id{1}, make_task(task_kind::forward, 1)) == 0);
  CHECK(compute(delays_of("", linear(2, 2)), 7, make_task(task_kind::forward)) == 0);
}

TEST_CASE("a fused backward gets the delays of its parts, unless it has its own row") {
  const auto delays = delays_of(
      "1,0,0,0,B,1\n1,0,0,0,W,2\n"
      "1,0,0,1,B,1\n"
      "1,0,0,2,W,2\n"
      "1,0,0,3,B,1\n1,0,0,3,W,2\n1,0,0,3,BW,5\n",
      linear(1, 4));
  const auto fused = [&](std::uint32_t mb) {
    return compute(delays, 0, make_task(task_kind::backward_weight, mb)) / 1'000'000;
  };
  CHECK(fused(0) == 3);
  CHECK(fused(1) == 1);
  CHECK(fused(2) == 2);
  CHECK(fused(3) == 5);
  CHECK(compute(delays, 0, make_task(task_kind::backward, 3)) == 1'000'000);
}

TEST_CASE("the steps of the file repeat") {
  const auto delays = delays_of("1,0,0,0,F,1\n3,0,0,0,F,3\n", linear(1, 1));
  std::vector<nanoseconds> forward;
  for (std::uint64_t step = 0; step < 6; ++step)
    forward.push_back(compute(delays, step, make_task(task_kind::forward)) / 1'000'000);
  CHECK(forward == std::vector<nanoseconds>{1, 0, 3, 1, 0, 3});
  const auto last = delays_of("4503599627370496,0,0,0,F,1\n", linear(1, 1));
  CHECK(compute(last, first_evaluation - 2, make_task(task_kind::forward)) == 0);
  CHECK(compute(last, first_evaluation - 1, make_task(task_kind::forward)) == 1'000'000);
}

TEST_CASE("given delays are added to the costs and the jitter") {
  const auto shape = linear(2, 2);
  stage_costs_options options;
  options.activation_ms = 0.5;
  options.jitter.compute = simulate::compute_jitter::lognormal;
  const stage_costs without{shape, options};
  options.delays =
      std::make_shared<const given_delays>(delays_of("1,1,0,1,F,7\n1,1,0,1,act,9\n", shape));
  const stage_costs with{shape, options};
  const step_id step{4};
  const auto f1 = make_task(task_kind::forward, 1);
  CHECK(with.compute(step, stage_id{1}, f1) == without.compute(step, stage_id{1}, f1) + 7'000'000);
  CHECK(with.compute(step, stage_id{0}, f1) == without.compute(step, stage_id{0}, f1));
  CHECK(with.link(step, virtual_stage_id{1}, f1) == 9'500'000);
  CHECK(with.undisturbed().compute(step, stage_id{1}, f1) == 1'000'000);
  CHECK(with.undisturbed().link(step, virtual_stage_id{1}, f1) == 500'000);
}

}  // namespace rrfp::simulate
