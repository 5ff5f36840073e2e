#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include <rrfp/io/parse_json.hpp>
#include <rrfp/job/job_template.hpp>

#include "../common/console.hpp"
#include "../common/program.hpp"
#include "commands.hpp"

namespace rrfp::apps {

namespace {

namespace fs = std::filesystem;

/// A path in a job file is relative to the file's folder, a path in an option to the current
/// folder.
result<std::string> absolute(const std::string& option, const std::string& path) {
  std::error_code why;
  if (!fs::exists(path, why))
    return error{fmt::format("{}: expected a file or folder, got \"{}\"{}", option, path,
                             why ? ": " + why.message() : ", which does not exist")};
  return fs::absolute(path).lexically_normal().string();
}

/// The first line that is not empty, without a byte order mark; of a regular file.
std::string first_line_of(const std::string& file) {
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored)) return "";
  constexpr std::size_t line_bytes_max = 1 << 20;
  std::ifstream in{file, std::ios::binary};
  std::string line;
  for (char c; line.size() < line_bytes_max && in.get(c) && (c != '\n' || line.empty());)
    if (c != '\n' && c != '\r') line += c;
  if (line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);
  return line;
}

/// Whether the file holds documents as JSON lines, by its name or by its first line.
bool is_json_lines(const std::string& file) {
  auto ending = fs::path{file}.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (ending == ".jsonl" || ending == ".ndjson") return true;
  const auto first = parse_json(first_line_of(file));
  const auto* const document = std::get_if<nlohmann::json>(&first);
  return document != nullptr && document->is_object() && document->contains("text");
}

/// The files of a folder, in the order of their names; else the path itself.
std::vector<std::string> files_of(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return {path};
  std::vector<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator{path, ignored})
    if (entry.is_regular_file(ignored) && !entry.path().filename().string().starts_with('.'))
      files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  return files;
}

/// Text stays as it was named; JSON lines are named file by file.
status read_documents(job::template_request& wanted) {
  std::vector<std::string> documents, texts;
  for (const auto& path : wanted.data)
    for (auto& file : files_of(path))
      (is_json_lines(file) ? documents : texts).push_back(std::move(file));
  if (documents.empty()) return success();
  if (!texts.empty())
    return error{fmt::format("--from: expected text or JSON lines, got both: {} and {}", texts[0],
                             documents[0])};
  wanted.documents = true;
  wanted.data = std::move(documents);
  return success();
}

/// Writes a new file; never overwrites one.
status write_new(const std::string& path, const std::string& text) {
  std::FILE* const file = std::fopen(path.c_str(), "wx");
  if (file == nullptr && errno == EEXIST)
    return error{fmt::format("{}: already exists: choose another file", path)};
  const bool written =
      file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool closed = file != nullptr && std::fclose(file) == 0;
  if (written && closed) return success();
  const std::string why = std::strerror(errno);
  if (file != nullptr) std::remove(path.c_str());
  const auto kind = file == nullptr ? error_kind::bad_input : error_kind::failed;
  return error{fmt::format("{}: cannot write: {}", path, why), kind};
}

result<job::template_request> request_of(const init_options& options) {
  const auto kind = job::template_kind_of(options.data);
  if (!kind)
    return error{
        fmt::format("--data: expected text, images or pretrained, got \"{}\"", options.data)};
  job::template_request wanted;
  wanted.kind = *kind;
  for (const auto& from : options.from) {
    if (*kind == job::template_kind::pretrained && !from.ends_with(".bin"))
      return error{fmt::format(
          "--from: expected NAME.bin, made by scripts/tokenize with the model's tokenizer, got "
          "\"{}\"",
          from)};
    auto path = absolute("--from", from);
    if (!path) return path.failure();
    wanted.data.push_back(std::move(*path));
  }
  if (*kind == job::template_kind::text)
    if (auto read = read_documents(wanted); !read) return read.failure();
  if (options.model.empty()) return wanted;
  if (*kind != job::template_kind::pretrained)
    return error{"--model: expected --data pretrained as well"};
  auto model = absolute("--model", options.model);
  if (!model) return model.failure();
  wanted.model = std::move(*model);
  return wanted;
}

}  // namespace

int init_command(const init_options& options) {
  const auto wanted = request_of(options);
  if (!wanted) return end_with(wanted.failure());
  if (auto written = write_new(options.file, job::job_template(*wanted)); !written)
    return end_with(written.failure());
  print("wrote {}\n", options.file);
  if (wanted->kind == job::template_kind::pretrained) {
    if (wanted->model.empty())
      print("set the folder of the model in the job: pretrained = \"...\"\n");
    if (wanted->data.empty())
      print(
          "make the token file and set its path in the job: tokens = [\"...\"]\n"
          "  scripts/tokenize {}/tokenizer.json tokens.bin FILE...\n",
          wanted->model.empty() ? "MODEL" : wanted->model);
  }
  print("next:\n  {0} check {1}\n  {0} run {1}\n", options.program, options.file);
  return exit_done;
}

}  // namespace rrfp::apps
