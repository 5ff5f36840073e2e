#pragma once

#include <utility>

#include <rrfp/torch/stage_module.hpp>

namespace rrfp::compute::test {

/// A view of a loaded microbatch, for training loops without the runtime.
class loaded_microbatch final : public microbatch_view {
 public:
  explicit loaded_microbatch(microbatch mb) : mb_(std::move(mb)), layout_(layout_of(mb_)) {}

  const microbatch& whole() override { return mb_; }
  const microbatch& text() override { return mb_; }
  const microbatch_layout& layout() override { return layout_; }

 private:
  microbatch mb_;
  microbatch_layout layout_;
};

}  // namespace rrfp::compute::test
