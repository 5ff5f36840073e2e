#include "json_file.hpp"

#include <filesystem>
#include <utility>

#include <rrfp/hugging_face/config.hpp>
#include <rrfp/io/text_file.hpp>

namespace rrfp::hugging_face {

std::string config_file(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code unknown;
  return fs::is_directory(path, unknown) ? (fs::path(path) / "config.json").string() : path;
}

result<std::string> read_config_text(const std::string& file) {
  return io::read_text_file(file, config_bytes_max, "a config file");
}

result<nlohmann::ordered_json> parse_object(std::string_view text, const std::string& source) {
  auto parsed = parse_json<nlohmann::ordered_json>(text);
  if (const auto* fault = std::get_if<json_fault>(&parsed)) return error{fault->message_in(source)};
  auto& read = std::get<nlohmann::ordered_json>(parsed);
  if (!read.is_object()) return error{source + ": expected a JSON object"};
  return std::move(read);
}

}  // namespace rrfp::hugging_face
