/// Converts between Hugging Face's config.json and job::model_options.
///
/// Reads model_type gpt2, llama, qwen3, and llava (a vit in front of llama or qwen3), as
/// transformers writes them. A setting that rrfp does not support and that would change the results
/// (sliding windows, other kinds of rotary positions, ...) is an error. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/base/result.hpp>
#include <rrfp/job/options.hpp>

namespace rrfp::hugging_face {

/// Largest config.json, in bytes.
inline constexpr std::size_t config_bytes_max = std::size_t{1} << 20;

/// config.json of a folder; any other path is that of the file itself.
std::string config_file(const std::string& path);

/// `path` is a config.json or a folder with one. Leaves `pretrained` empty. Errors name file and
/// key, and give the expected and the actual value.
result<job::model_options> read_config(const std::string& path);

/// The same for a text in memory; `source` stands for the path in errors.
result<job::model_options> parse_config(std::string_view json, const std::string& source);

/// Error: transformers has no such model; names the job key, the expected and the actual value.
status check_expressible(const job::model_options& model);

/// A parameter that transformers' model has, but no computation uses.
struct unused_parameter {
  std::string name;
  std::vector<std::int64_t> sizes;
  float value = 0;  ///< of all elements
};
/// Files of a model that was not trained from pretrained files must contain these, too.
std::vector<unused_parameter> unused_parameters(const job::model_options& model);

/// A config.json with which transformers builds the same model; parse_config() reads it back.
/// `dtype` is that of the weights: "float32", "bfloat16" or "float16".
std::string to_config(const job::model_options& model, std::string_view dtype = "float32");

/// The folder's config.json with another dtype and otherwise unchanged. Error, naming the file: it
/// is missing or invalid, or describes another model than `model`.
result<std::string> config_with_dtype(const std::string& folder, const job::model_options& model,
                                      std::string_view dtype);

}  // namespace rrfp::hugging_face
