#include <rrfp/io/text_file.hpp>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

namespace rrfp::io {

result<std::string> read_text_file(const std::string& path, std::size_t bytes_max,
                                   std::string_view what) {
  const auto why = [&] { return error{path + ": cannot be read: " + std::strerror(errno)}; };
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file{std::fopen(path.c_str(), "rb"),
                                                             std::fclose};
  if (!file) return why();
  std::string text;
  char block[1 << 16];
  while (const auto n = std::fread(block, 1, sizeof block, file.get())) {
    text.append(block, n);
    if (text.size() > bytes_max)
      return error{path + ": expected " + std::string{what} + " of at most " +
                   std::to_string(bytes_max) + " bytes, got more"};
  }
  if (std::ferror(file.get()) != 0) return why();
  return text;
}

}  // namespace rrfp::io
