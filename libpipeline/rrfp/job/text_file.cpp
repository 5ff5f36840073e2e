#include <rrfp/job/text_file.hpp>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include <rrfp/job/job.hpp>

namespace rrfp::job {

result<std::string> read_text_file(const std::string& path, std::string_view what) {
  const auto why = [&] { return error{path + ": cannot be read: " + std::strerror(errno)}; };
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file{std::fopen(path.c_str(), "rb"),
                                                             std::fclose};
  if (!file) return why();
  std::string text(job_bytes_max + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get()) != 0) return why();
  if (text.size() > job_bytes_max)
    return error{path + ": expected " + std::string{what} + " of at most " +
                 std::to_string(job_bytes_max) + " bytes, got more"};
  return text;
}

std::string absolute_path(const std::filesystem::path& folder, const std::string& path) {
  std::error_code failed;
  const auto joined = folder / path;
  const auto whole = std::filesystem::absolute(joined, failed);
  return (failed ? joined : whole).lexically_normal().string();
}

}  // namespace rrfp::job
