#include "schema_parts.hpp"

#include <rrfp/io/text_file.hpp>

namespace rrfp::job {

result<std::vector<setting>> read_profile(const std::string& path) {
  const auto text = io::read_text_file(path, job_bytes_max, "a profile");
  if (!text) return text.failure();
  const auto doc = read_toml(*text, path, {});
  if (!doc) return doc.failure();
  std::vector<setting> all;
  for (const auto& e : doc->entries) {
    const auto from = at_line(path, e.line);
    const auto k = runtime_schema().table().key_of(e, from);
    const bool is_time = e.path[0] == "cost" && (e.path.size() == 1 || e.name().ends_with("_ms"));
    if (!is_time) return from.blame(e.name(), "expected only the times of [cost] in a profile");
    if (!k) return k.failure();
    if (*k == nullptr) continue;
    if (auto read = runtime_schema().read_settings(**k, e.content, {}, from, all); !read)
      return read.failure();
  }
  if (all.empty()) return error{path + ": expected at least one key of [cost], got none"};
  return all;
}

}  // namespace rrfp::job
