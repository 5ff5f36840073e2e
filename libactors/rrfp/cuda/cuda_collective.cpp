#include "cuda_collective.hpp"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDAStream.h>

#include <rrfp/nccl/nccl_collective.hpp>

#include "cuda_call.hpp"

namespace rrfp::cuda {

namespace {

using tp_coord::element;

at::ScalarType scalar_type_of(element e) {
  switch (e) {
    case element::float32: return at::kFloat;
    case element::float64: return at::kDouble;
    case element::int64: return at::kLong;
  }
  return at::kFloat;
}

class torch_streams final : public nccl::stream_host {
 public:
  explicit torch_streams(std::shared_ptr<accelerator::lane> rank_lane)
      : rank_lane_(std::move(rank_lane)) {}

  int device() const override { return rank_lane_->device().index(); }
  cudaStream_t stream() override {
    return c10::cuda::getCurrentCUDAStream(rank_lane_->device().index()).stream();
  }

  result<std::shared_ptr<void>> scratch(std::size_t bytes) override {
    try {
      const auto memory = std::make_shared<at::Tensor>(
          at::empty({static_cast<std::int64_t>(bytes)},
                    at::TensorOptions{at::kByte}.device(rank_lane_->device())));
      return std::shared_ptr<void>{memory, memory->mutable_data_ptr()};
    } catch (const std::exception& e) {
      return failure_of(e);
    }
  }

  status sum_in_order(void* sum, const void* parts, std::size_t count, std::uint32_t ranks,
                      element type) override {
    try {
      const at::NoGradGuard no_grad;
      const auto options = at::TensorOptions{scalar_type_of(type)}.device(rank_lane_->device());
      const auto length = static_cast<std::int64_t>(count);
      auto total = at::from_blob(sum, {length}, options);
      // `parts` is only read.
      const auto all = at::from_blob(const_cast<void*>(parts), {ranks, length}, options);
      total.copy_(all[0]);
      for (std::uint32_t r = 1; r < ranks; ++r) total.add_(all[r]);
      return success();
    } catch (const std::exception& e) {
      return failure_of(e);
    }
  }

 private:
  const std::shared_ptr<accelerator::lane> rank_lane_;
};

}  // namespace

std::shared_ptr<tp_coord::collective> make_cuda_collective(
    std::shared_ptr<tp_coord::collective> control, std::shared_ptr<accelerator::lane> rank_lane,
    const tp_coord::collective_options& options) {
  return nccl::make_nccl_collective(std::move(control),
                                    std::make_unique<torch_streams>(std::move(rank_lane)), options);
}

}  // namespace rrfp::cuda
