/// The streams of one rank on one CUDA device.
#pragma once

#include <c10/cuda/CUDAStream.h>

#include <rrfp/accelerator/platform.hpp>

namespace rrfp::cuda {

class cuda_lane final : public accelerator::lane {
 public:
  static result<std::shared_ptr<accelerator::lane>> open(c10::DeviceIndex device);

  at::Device device() const override { return compute_.device(); }
  void run(accelerator::stream s, const std::function<void()>& work) override;
  result<std::unique_ptr<accelerator::event>> make_event(bool timed) override;
  status record(accelerator::event& e, accelerator::stream s) override;
  result<double> milliseconds_between(accelerator::event& from, accelerator::event& to) override;
  status delay(std::chrono::nanoseconds time) override;
  void claim(const at::Tensor& t) override;
  status copy_out(const at::Tensor& from, std::byte* to) override;
  result<at::Tensor> copy_in(const at::Tensor& from) override;
  result<at::Tensor> make_receive_buffer(at::IntArrayRef shape, at::ScalarType type) override;
  compute::memory_counts memory() const override;

 private:
  cuda_lane(c10::cuda::CUDAStream compute, c10::cuda::CUDAStream copy,
            c10::cuda::CUDAStream receive_buffers, int clock_khz)
      : compute_(compute), copy_(copy), receive_buffers_(receive_buffers), clock_khz_(clock_khz) {}

  const c10::cuda::CUDAStream& stream_of(accelerator::stream s) const {
    return s == accelerator::stream::compute ? compute_ : copy_;
  }
  int index() const { return compute_.device_index(); }

  const c10::cuda::CUDAStream compute_;
  const c10::cuda::CUDAStream copy_;
  const c10::cuda::CUDAStream receive_buffers_;
  const int clock_khz_;
};

}  // namespace rrfp::cuda
