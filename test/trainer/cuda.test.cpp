/// Modules of one's own on CUDA devices. The cases run on a GPU or on the host-side fake:
///
///   trainer_test "[cuda]"
#include <cstdlib>

#include <rrfp/accelerator/load.hpp>
#include <rrfp/pack.hpp>

#include "small_model.hpp"

#include <catch2/catch.hpp>

namespace rrfp::testing {
namespace {

using Catch::Matchers::Contains;

void require_device() {
  if (const auto cuda = accelerator::load_cuda(true); !cuda) {
    std::printf("skipped: %s\n", cuda.message().c_str());
    std::exit(77);
  }
}

job::job on_device(const std::string& text = {}) {
  auto j = job_of("[device]\nkind = \"cuda\"\n" + text);
  return j;
}

/// Remembers the weights, so that the test sees where they are and what they become.
pipeline_options watched(std::vector<at::Tensor>& weights) {
  auto o = small_options();
  weights.clear();
  o.make_stage = [&weights](const stage_place& at) {
    auto s = part_at(at);
    for (const auto& p : s.parameters) weights.push_back(p.second);
    return s;
  };
  return o;
}

}  // namespace

TEST_CASE("own modules train on a device, to the same bits in every order", "[.][cuda]") {
  require_device();
  std::vector<double> losses;
  std::vector<at::Tensor> expected;
  const auto plain = train_plainly(5, 3);
  for (const std::string how : {"[dispatch]\nmode = \"in-order\"\npolicy = \"one_f_one_b\"\n", "",
                                "[dispatch]\npolicy = \"zb_h1\"\n",
                                "[jitter]\ncompute = \"lognormal\"\ncompute_sigma = 0.5\n"}) {
    for (const std::uint32_t stages : {1, 2, 4}) {
      INFO(stages << " stages " << how);
      auto j = on_device(how);
      j.pipeline.stages = stages;
      std::vector<at::Tensor> weights;
      auto p = pipeline::open(j, watched(weights)).value();
      for (const auto& w : weights) CHECK(w.is_cuda());
      std::vector<double> seen;
      for (std::uint64_t step = 0; step < 3; ++step) {
        const auto r = p->step(batch_of(step), {.return_outputs = true}).value();
        seen.push_back(r.loss);
        CHECK(r.loss == Approx(plain.losses[step]).epsilon(1e-5));
        for (const auto& o : r.outputs) CHECK(o.is_cpu());
      }
      CHECK(p->finish().ok());
      if (losses.empty()) losses = seen;
      CHECK(seen == losses);
      for (auto& w : weights) w = w.detach().cpu();
      if (expected.empty()) expected = weights;
      REQUIRE(weights.size() == expected.size());
      for (std::size_t i = 0; i < weights.size(); ++i) CHECK(at::equal(weights[i], expected[i]));
    }
  }
}

TEST_CASE("buffers and lists of tensors on a device", "[.][cuda]") {
  require_device();
  std::vector<double> losses;
  for (const std::uint32_t stages : {1, 2, 4}) {
    auto j = on_device("[jitter]\ncompute = \"lognormal\"\ncompute_sigma = 0.5\n");
    j.pipeline.stages = stages;
    auto options = small_options();
    std::vector<at::Tensor> counts;
    options.make_stage = [&](const stage_place& at) {
      auto s = part_at(at);
      const auto count = at::zeros({});
      s.buffers = {{"count." + std::to_string(at.index), count}};
      s.forwards_in_order = true;
      counts.push_back(count);
      // Between parts: the value, a mask of integers and nothing.
      s.forward = [inner = s.forward, at, count](const at::Tensor& x) {
        auto value = x;
        if (!at.is_first()) {
          const auto list = unpack(x).tensors;
          TORCH_CHECK(list.size() == 3 && !list[2].defined() && list[1].is_cuda());
          value = list[0] * list[1];
        }
        count.add_(1);
        value = inner(value);
        if (at.is_last()) return value;
        return pack(
            {{value, at::ones({value.size(0), 1}, value.options().dtype(at::kLong)), {}}, "note"});
      };
      return s;
    };
    auto p = pipeline::open(j, options).value();
    std::vector<double> seen;
    for (std::uint64_t step = 0; step < 3; ++step)
      seen.push_back(p->step(batch_of(step)).value().loss);
    CHECK(p->finish().ok());
    if (losses.empty()) losses = seen;
    CHECK(seen == losses);
    for (const auto& c : counts) {
      CHECK(c.is_cuda());
      CHECK(c.cpu().item<float>() == 15);
    }
  }
}

TEST_CASE("the CUDA library is named by a variable") {
  ::setenv("RRFP_CUDA_LIBRARY", "/nonexistent/librrfp_cuda.so", 1);
  const auto loaded = pipeline::open(on_device(), small_options());
  ::unsetenv("RRFP_CUDA_LIBRARY");
  CHECK_THAT(loaded.message(), Contains("cannot load /nonexistent/librrfp_cuda.so"));
}

}  // namespace rrfp::testing
