/// Random numbers that do not depend on the order in which microbatches run.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace rrfp {

/// Which numbers a forward draws.
struct draw_key {
  std::uint64_t seed = 0;  ///< train.seed
  std::uint64_t step = 0;  ///< from 1
  std::uint64_t microbatch = 0;
  std::uint64_t part = 0;  ///< position along the model
};

/// Seeds libtorch's CPU generator for its lifetime, and then restores its state. That generator
/// belongs to the process, so the next object waits for the end of this one. A plain training loop
/// that runs each forward of a part within one gets the numbers of the pipeline.
class keyed_generator {
 public:
  explicit keyed_generator(std::uint64_t seed);
  explicit keyed_generator(const draw_key& key);
  keyed_generator(const keyed_generator&) = delete;
  keyed_generator& operator=(const keyed_generator&) = delete;
  ~keyed_generator();

  /// Whether anything was drawn since construction.
  bool was_used() const;

 private:
  std::unique_lock<std::recursive_mutex> turn_;
  at::Generator generator_;
  at::Tensor before_;
  at::Tensor seeded_;
};

/// Runs the forwards of one part: within a keyed_generator, but without one if the first forward of
/// its kind (training or not) drew nothing. Not thread-safe.
class keyed_draws {
 public:
  template <class Work>
  auto run(const draw_key& key, bool training, Work work) {
    auto& draws = draws_[training ? 1 : 0];
    if (draws == false) return work();
    const keyed_generator generator{key};
    auto result = work();
    if (!draws) draws = generator.was_used();
    return result;
  }

 private:
  std::array<std::optional<bool>, 2> draws_;
};

}  // namespace rrfp
