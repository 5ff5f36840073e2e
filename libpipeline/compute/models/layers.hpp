/// What transformers are made of, with weights that the tensor-parallel ranks of a stage share as
/// Megatron-LM does. Rows are [rows, width]; which rows belong together is the packing's business.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <ATen/ATen.h>

#include <rrfp/compute/parallel_operators.hpp>
#include <rrfp/job/options.hpp>

#include "packing.hpp"
#include "parameter_maker.hpp"

namespace rrfp::compute {

constexpr double initial_deviation = 0.02;

/// What all layers of a chunk share during one forward.
struct layer_context {
  weight_stash* stash;
  const shared_group& group;
  const packing& rows;
  /// Rotary positions, [rows, 1, width of a head] each; undefined where positions are learned.
  at::Tensor cosines = {};
  at::Tensor sines = {};
};

struct linear_traits {
  double deviation = initial_deviation;
  bool has_bias = true;
  /// Files hold the weight as [in, out].
  bool stored_transposed = false;
};

/// Every rank holds all of it: [rows, in] -> [rows, out], both the same on every rank.
struct whole_linear {
  at::Tensor weight, bias;

  whole_linear(parameter_maker& make, const std::string& name, std::int64_t in, std::int64_t out,
               stored_form stored = {});
  at::Tensor operator()(const at::Tensor& x, const layer_context& c) const;
};

/// Each rank has some of the outputs: [rows, in] -> [rows, out / ranks]. `x` has been through
/// copy_to_group(), once for all layers that read it.
struct column_linear {
  at::Tensor weight, bias;

  column_linear(parameter_maker& make, const std::string& name, std::int64_t in, std::int64_t out,
                const linear_traits& traits, std::int64_t blocks = 1);
  at::Tensor operator()(const at::Tensor& x, const layer_context& c) const;
};

/// Each rank takes some of the inputs: [rows, in / ranks] -> [rows, out], the same on every rank.
struct row_linear {
  at::Tensor weight, bias;

  row_linear(parameter_maker& make, const std::string& name, std::int64_t in, std::int64_t out,
             const linear_traits& traits);
  at::Tensor operator()(const at::Tensor& x, const layer_context& c) const;
};

enum class norm_kind : std::uint8_t { layer, rms };

struct norm_layer {
  at::Tensor weight, bias;  // no bias: root mean square
  double epsilon;

  norm_layer(parameter_maker& make, const std::string& name, std::int64_t width, norm_kind kind,
             double epsilon);
  at::Tensor operator()(const at::Tensor& x) const;
};

/// A parameter, or anything like it, in the type that is computed in. Undefined stays so.
at::Tensor as(const at::Tensor& parameter, const at::Tensor& x);

at::Tensor activate(job::activation_kind kind, const at::Tensor& x);

/// Cosines and sines of rotary positions (Su et al., RoFormer, 2021), as LLaMA 3 scales them.
class rotary_positions {
 public:
  /// Of heads of `width` elements.
  rotary_positions(const job::model_options& m, std::int64_t width);

  /// `positions` int64 [rows]; both results float [rows, 1, width].
  std::pair<at::Tensor, at::Tensor> at_positions(const at::Tensor& positions) const;

 private:
  mutable at::Tensor frequencies_;  // float [width / 2], where it was needed last
};

/// `x` [rows, heads, width], turned by the context's angles, halves paired.
at::Tensor rotate(const at::Tensor& x, const layer_context& c);

}  // namespace rrfp::compute
