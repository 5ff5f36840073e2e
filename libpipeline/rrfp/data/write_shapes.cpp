#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include <rrfp/data/shapes.hpp>

#include "image_file.hpp"

namespace rrfp::data {

namespace {

namespace fs = std::filesystem;

error error_at(const fs::path& path, const std::string& why) {
  return error{path.string() + ": " + why};
}

status write(const fs::path& path, const char* bytes, std::size_t size) {
  errno = 0;
  std::ofstream file{path, std::ios::binary};
  file.write(bytes, static_cast<std::streamsize>(size));
  file.close();
  if (file) return success();
  return error_at(path, std::string{"cannot be written: "} +
                            (errno != 0 ? std::strerror(errno) : "unknown reason"));
}

/// "images/000123-0.png"
std::string name_of(std::uint32_t sample, std::size_t image) {
  char name[48];
  std::snprintf(name, sizeof name, "images/%06u-%zu.png", sample, image);
  return name;
}

status write_all(const fs::path& root, std::uint64_t seed, std::uint32_t samples,
                 std::uint32_t patch) {
  std::error_code failure;
  fs::create_directory(root / "images", failure);
  if (failure) return error_at(root / "images", "cannot be created: " + failure.message());
  std::string lines;
  for (std::uint32_t n = 0; n < samples; ++n) {
    const auto sample = draw_shapes(seed, n, patch);
    // Names and texts contain no characters that JSON must escape.
    lines += "{\"images\": [";
    for (std::size_t i = 0; i < sample.images.size(); ++i) {
      const auto name = name_of(n, i);
      const auto file = encode_png(sample.images[i]);
      if (!file) return error_at(root / name, file.message());
      if (auto written =
              write(root / name, reinterpret_cast<const char*>(file->data()), file->size());
          !written)
        return written;
      lines += (i == 0 ? "\"" : ", \"") + name + "\"";
    }
    lines += "], \"text\": \"" + sample.text + "\"}\n";
  }
  return write(root / "train.jsonl", lines.data(), lines.size());
}

}  // namespace

status make_shapes_folder(const std::string& path) {
  const fs::path folder{path};
  std::error_code failure;
  if (fs::exists(folder, failure)) {
    if (!fs::is_directory(folder, failure))
      return error_at(folder, "expected a folder, got a file");
    const bool empty = fs::is_empty(folder, failure);
    if (failure) return error_at(folder, "cannot be read: " + failure.message());
    if (!empty)
      return error_at(folder, "expected an empty folder or none, got one with files in it");
  }
  if (!failure) fs::create_directories(folder, failure);
  if (failure) return error_at(folder, "cannot be created: " + failure.message());
  return success();
}

status write_shapes(const std::string& folder, std::uint64_t seed, std::uint32_t samples,
                    std::uint32_t patch) {
  if (auto made = make_shapes_folder(folder); !made) return made;
  const fs::path root{folder};
  auto written = write_all(root, seed, samples, patch);
  if (written) return written;
  std::error_code ignored;
  fs::remove_all(root / "images", ignored);
  fs::remove(root / "train.jsonl", ignored);
  return written;
}

}  // namespace rrfp::data
