#include "json_file.hpp"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include <rrfp/hugging_face/config.hpp>

namespace rrfp::hugging_face {

std::string config_file(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code unknown;
  return fs::is_directory(path, unknown) ? (fs::path(path) / "config.json").string() : path;
}

result<std::string> read_text_file(const std::string& file) {
  std::error_code failure;
  const auto size = std::filesystem::file_size(file, failure);
  if (failure) return error{file + ": cannot be read: " + failure.message()};
  if (size > config_bytes_max)
    return error{file + ": expected at most " + std::to_string(config_bytes_max) + " bytes, got " +
                 std::to_string(size)};
  const std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) return error{file + ": cannot be read"};
  return text.str();
}

result<nlohmann::ordered_json> parse_object(std::string_view text, const std::string& source) {
  auto parsed = parse_json<nlohmann::ordered_json>(text);
  if (const auto* fault = std::get_if<json_fault>(&parsed)) return error{fault->message_in(source)};
  auto& read = std::get<nlohmann::ordered_json>(parsed);
  if (!read.is_object()) return error{source + ": expected a JSON object"};
  return std::move(read);
}

}  // namespace rrfp::hugging_face
