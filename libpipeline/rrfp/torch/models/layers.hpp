/// Building blocks of transformers, with weights sharded over the tensor-parallel ranks as in
/// Megatron-LM. Activations are [rows, width]; `packing` maps rows to sequences.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <ATen/ATen.h>

#include <rrfp/job/options.hpp>
#include <rrfp/torch/parallel_operators.hpp>

#include "packing.hpp"
#include "parameter_maker.hpp"

namespace rrfp::compute {

constexpr double initial_deviation = 0.02;

/// Shared by all layers of a chunk during one forward.
struct layer_context {
  weight_stash* stash;
  const shared_group& group;
  const packing& rows;
  /// Rotary positions, [rows, 1, width of a head] each; undefined if positions are learned.
  at::Tensor cosines = {};
  at::Tensor sines = {};
};

/// How the ranks share a linear layer. With `outputs` each rank computes some of the outputs,
/// [rows, in] -> [rows, out / ranks]; the caller passes `x` through copy_to_group(), once for all
/// layers that use it. With `inputs` each rank uses some of the inputs, [rows, in / ranks] ->
/// [rows, out], the same on every rank. With `none` each rank has the whole layer.
enum class divided : std::uint8_t { none, outputs, inputs };

struct linear_traits {
  double deviation = initial_deviation;
  bool has_bias = true;
  stored_form stored = {};
  std::int64_t blocks = 1;  ///< of the outputs, each divided over the ranks
};

class linear_layer {
 public:
  linear_layer(parameter_maker& make, const std::string& name, std::int64_t in, std::int64_t out,
               divided by, const linear_traits& traits = {});
  at::Tensor operator()(const at::Tensor& x, const layer_context& c) const;

 private:
  at::Tensor weight_, bias_;
  bool is_sum_;
};

enum class norm_kind : std::uint8_t { layer, rms };

struct norm_layer {
  at::Tensor weight, bias;  // undefined bias: RMS norm
  double epsilon;

  norm_layer(parameter_maker& make, const std::string& name, std::int64_t width, norm_kind kind,
             double epsilon);
  at::Tensor operator()(const at::Tensor& x) const;
};

at::Tensor activate(job::activation_kind kind, const at::Tensor& x);

/// Cosines and sines of rotary positions (Su et al., RoFormer, 2021), with the scaling of LLaMA 3.
class rotary_positions {
 public:
  /// `width`: elements of a head.
  rotary_positions(const job::model_options& m, std::int64_t width);

  /// `positions` int64 [rows]; both results float [rows, 1, width].
  std::pair<at::Tensor, at::Tensor> at_positions(const at::Tensor& positions) const;

 private:
  mutable at::Tensor frequencies_;  // float [width / 2], on the device of the last use
};

/// `x` [rows, heads, width], rotated by the context's angles; element i is paired with i + width
/// / 2.
at::Tensor rotate(const at::Tensor& x, const layer_context& c);

}  // namespace rrfp::compute
