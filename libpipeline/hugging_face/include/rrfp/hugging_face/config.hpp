/// Hugging Face's config.json, as job::model_options: which family, which sizes.
///
/// Reads model_type gpt2, llama, qwen3, and llava (a vit before one of them), as transformers
/// writes them. What would change the numbers and is not computed here (sliding windows, other
/// kinds of rotary positions, ...) is an error, not ignored. Pure but for the files; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/job/options.hpp>
#include <rrfp/schedule/result.hpp>

namespace rrfp::hugging_face {

/// Largest config.json, in bytes.
inline constexpr std::size_t config_bytes_max = std::size_t{1} << 20;

/// `path` is a config.json or a folder with one. Leaves `pretrained` empty. Errors name file, key,
/// what was expected and what came.
result<job::model_options> read_config(const std::string& path);

/// The same for a text in memory; `source` stands for the path in errors.
result<job::model_options> parse_config(std::string_view json, const std::string& source);

/// Error: transformers has no model like it; names the key of the job, what was expected and what
/// came.
status check_expressible(const job::model_options& model);

/// A parameter that transformers' model has and that nothing is computed with.
struct unused_parameter {
  std::string name;
  std::vector<std::int64_t> sizes;
  float value = 0;  ///< of all elements
};
/// Those of the files of a model that was not made from such files.
std::vector<unused_parameter> unused_parameters(const job::model_options& model);

/// A config.json with which transformers builds the same model; parse_config() reads it back.
/// `dtype` is what its weights are: "float32", "bfloat16" or "float16".
std::string to_config(const job::model_options& model, std::string_view dtype = "float32");

/// The config.json of the folder with another dtype and all else as it stands there. Error: it is
/// none, or one of another model than `model`; names the file.
result<std::string> config_with_dtype(const std::string& folder, const job::model_options& model,
                                      std::string_view dtype);

}  // namespace rrfp::hugging_face
