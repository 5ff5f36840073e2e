// The work of a sample, from the sizes of a model or from measurements.
#include <rrfp/workload/work_model.hpp>

#include <array>
#include <limits>

#include <catch2/catch.hpp>

#include <rrfp/study/pipeline_cost.hpp>
#include <rrfp/study/presets.hpp>

namespace {

using namespace rrfp;
using namespace rrfp::study;
using namespace rrfp::workload;

measured_work document(double tokens, double seconds) {
  return {.tokens = tokens, .token_squares = tokens * tokens, .seconds = seconds};
}

}  // namespace

TEST_CASE("the work of a sample is that of its tokens and of each image") {
  const work_model model{2, 0.5, 3, 0.25};
  CHECK(model.work_of(10) == 70);
  const std::array<double, 2> patches{4, 8};
  CHECK(model.work_of(10, patches) == 70 + 3 * 12 + 0.25 * (16 + 64));
}

TEST_CASE("the FLOPs of a model are those of its parts in a microbatch") {
  // On a machine whose memory, launches and links cost nothing, time counts FLOPs.
  machine m;
  m.tflops = 1;
  m.memory_gb_s = m.within_gb_s = m.between_gb_s = 1e21;
  m.within_us = m.between_us = 0;
  m.efficiency = 1;
  const auto model = preset("llama3-8b-internvit").value();
  const auto cost = pipeline_cost::make(model, m, layout{}).value();
  for (const double tokens : {300.0, 5000.0}) {
    const load l{.samples = 1, .images = 2, .tokens = tokens, .token_squares = tokens * tokens};
    const std::vector<double> patches(2, model.images->patches);
    CHECK(training_flops(model).work_of(tokens, patches) ==
          Approx(cost.stage(stage_id{0}, l).all_ms() * 1e9));
  }
}

TEST_CASE("measurements give back the coefficients that made them") {
  std::vector<measured_work> measured;
  for (double tokens = 128; tokens <= 32768; tokens *= 2)
    measured.push_back(document(tokens, 0.02 + 3e-6 * tokens + 2e-10 * tokens * tokens));
  auto fitted = fit(measured).value();
  CHECK(fitted.constant_s == Approx(0.02));
  CHECK(fitted.model.per_token == Approx(3e-6));
  CHECK(fitted.model.per_token_square == Approx(2e-10));
  CHECK(fitted.model.per_patch == 0);

  for (double patches = 64; patches <= 1024; patches *= 2)
    measured.push_back({1000, 1e6, 2 * patches, 2 * patches * patches,
                        0.02 + 3e-3 + 2e-4 + 1e-5 * 2 * patches + 4e-9 * 2 * patches * patches});
  fitted = fit(measured).value();
  CHECK(fitted.model.per_token == Approx(3e-6));
  CHECK(fitted.model.per_patch == Approx(1e-5));
  CHECK(fitted.model.per_patch_square == Approx(4e-9));
}

TEST_CASE("no coefficient of a fit is negative") {
  // Seconds that grow slower than the tokens would have a negative square.
  std::vector<measured_work> measured;
  for (double tokens = 100; tokens <= 1000; tokens += 100)
    measured.push_back(document(tokens, std::sqrt(tokens)));
  const auto fitted = fit(measured).value();
  CHECK(fitted.model.per_token_square == 0);
  CHECK(fitted.model.per_token > 0);
  CHECK(fitted.constant_s > 0);
  const auto one = fit(std::array{document(10, 5)}).value();
  CHECK(one.model.work_of(10) + one.constant_s == Approx(5));
  CHECK(fit(std::array{document(10, 0)}).value().model == work_model{0, 0, 0, 0});
}

TEST_CASE("a measurement out of range is refused by its number") {
  CHECK(fit({}).message() == "expected at least one measurement, got none");
  CHECK(fit(std::array{document(1, 1), document(1, -2)}).message() ==
        "measurement 1: expected finite seconds >= 0, got -2.000000");
  const auto infinite = std::numeric_limits<double>::infinity();
  CHECK(fit(std::array{document(infinite, 1)}).message() ==
        "measurement 0: expected finite tokens >= 0, got inf");
}
