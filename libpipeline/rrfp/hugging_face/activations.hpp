/// Names of activation functions in config.json.
#pragma once

#include <utility>

#include <rrfp/job/options.hpp>

namespace rrfp::hugging_face {

/// Keyed by the names of transformers.activations.ACT2FN.
inline constexpr std::pair<const char*, job::activation_kind> activations[] = {
    {"gelu", job::activation_kind::gelu},
    {"gelu_new", job::activation_kind::gelu_tanh},
    {"gelu_pytorch_tanh", job::activation_kind::gelu_tanh},
    {"silu", job::activation_kind::silu},
    {"swish", job::activation_kind::silu},
    {"relu", job::activation_kind::relu}};

}  // namespace rrfp::hugging_face
