/// Random numbers that do not depend on the order in which microbatches run.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace rrfp {

/// Identifies the random numbers that one forward of one part draws.
struct draw_key {
  std::uint64_t seed = 0;  ///< train.seed
  std::uint64_t step = 0;  ///< from 1
  std::uint64_t microbatch = 0;
  std::uint64_t part = 0;  ///< position along the model
};

/// Locks libtorch's generators: waits until no other thread uses them through this header. Code
/// that sets a generator for a while, as recomputation in a backward does, must hold the lock.
std::unique_lock<std::recursive_mutex> generator_turn();

/// Marks the calling thread, for the lifetime of the object, as one that a pipeline waits for. A
/// pipeline that it called would wait for this thread in turn, so it refuses the call.
class forward_scope {
 public:
  forward_scope() { ++open(); }
  forward_scope(const forward_scope&) = delete;
  forward_scope& operator=(const forward_scope&) = delete;
  ~forward_scope() { --open(); }
  static bool is_open() { return open() > 0; }

 private:
  static int& open();
};

/// Seeds libtorch's CPU generator and that of `device` for its lifetime, and then restores their
/// states. They belong to the process, so the next object waits for the end of this one. A plain
/// training loop that runs each forward of a part within one gets the numbers of the pipeline.
class keyed_generator {
 public:
  explicit keyed_generator(std::uint64_t seed, at::Device device = at::kCPU);
  explicit keyed_generator(const draw_key& key, at::Device device = at::kCPU);
  keyed_generator(const keyed_generator&) = delete;
  keyed_generator& operator=(const keyed_generator&) = delete;
  ~keyed_generator();

  /// Whether anything was drawn since construction.
  bool was_used() const;

 private:
  friend class generator_loan;
  struct seeded {
    at::Generator generator;
    at::Tensor before;
    at::Tensor state;  ///< after seeding
  };
  void seed(at::Generator generator, std::uint64_t seed);

  const forward_scope scope_;
  std::unique_lock<std::recursive_mutex> turn_;
  std::vector<seeded> all_;
  keyed_generator* const outer_;
};

/// Lends the generators to other threads for its lifetime, if the calling thread is within a
/// keyed_generator; afterwards that one continues with its own numbers. For a rank that waits in a
/// collective for another rank of its process, whose forward may draw.
class generator_loan {
 public:
  generator_loan();
  generator_loan(const generator_loan&) = delete;
  generator_loan& operator=(const generator_loan&) = delete;
  ~generator_loan();

 private:
  keyed_generator* const lender_;
  std::vector<at::Tensor> states_;
};

/// Runs the forwards and losses of one part, each within a keyed_generator. One whose first run of
/// its kind drew nothing runs without, unless another part in this process draws: then it may still
/// begin to draw, which must not change the numbers of the other. Not thread-safe.
class keyed_draws {
 public:
  keyed_draws() = default;
  keyed_draws(const keyed_draws&) = delete;
  keyed_draws& operator=(const keyed_draws&) = delete;
  ~keyed_draws() {
    if (is_counted_) --count_drawing();
  }

  template <class Work>
  auto run(const draw_key& key, at::Device device, bool training, Work work, bool is_loss = false) {
    const forward_scope inside;
    auto& draws = draws_[(training ? 1 : 0) + (is_loss ? 2 : 0)];
    if (draws == false && count_drawing() == (is_counted_ ? 1 : 0)) return work();
    const keyed_generator generator{key, device};
    auto result = work();
    if (!draws) draws = generator.was_used();
    if (*draws && !std::exchange(is_counted_, true)) ++count_drawing();
    return result;
  }

 private:
  /// Of this process: the objects whose runs have drawn.
  static std::atomic<int>& count_drawing();

  std::array<std::optional<bool>, 4> draws_;
  bool is_counted_ = false;
};

}  // namespace rrfp
