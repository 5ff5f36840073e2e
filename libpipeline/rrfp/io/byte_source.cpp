#include <rrfp/io/byte_source.hpp>

#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace rrfp::io {

namespace {

constexpr std::size_t piece_bytes = std::size_t{256} << 10;

}  // namespace

byte_source::byte_source(gzFile_s* opened) : file_(opened, gzclose), piece_(piece_bytes) {
  gzbuffer(opened, piece_bytes);
}

result<byte_source> byte_source::open(const std::string& file) {
  std::error_code unknown;
  if (std::filesystem::is_directory(file, unknown))
    return error{file + ": expected a file, got a folder"};
  // zlib reads a file that is not compressed as it is.
  const auto opened = gzopen(file.c_str(), "rb");
  if (opened == nullptr) return error{file + ": cannot read: " + std::strerror(errno)};
  return byte_source{opened};
}

std::string_view byte_source::next() {
  if (!fault_.empty()) return {};
  const int got = gzread(file_.get(), piece_.data(), static_cast<unsigned>(piece_.size()));
  if (got > 0) return {piece_.data(), static_cast<std::size_t>(got)};
  int code = Z_OK;
  const char* const why = gzerror(file_.get(), &code);
  if (code == Z_BUF_ERROR)
    fault_ = "a gzip file that ends too early";
  else if (code == Z_ERRNO)
    fault_ = std::string{"cannot read: "} + std::strerror(errno);
  else if (got < 0 || code != Z_OK)
    fault_ = std::string{"a broken gzip file: "} + why;
  return {};
}

result<std::string> head_of(const std::string& file, std::size_t bytes_max) {
  auto source = byte_source::open(file);
  if (!source) return source.failure();
  std::string head;
  for (auto piece = source->next(); !piece.empty() && head.size() < bytes_max;
       piece = source->next())
    head += piece;
  if (!source->fault().empty())
    return error{file + ": expected a whole file, got " + source->fault()};
  head.resize(std::min(head.size(), bytes_max));
  return head;
}

}  // namespace rrfp::io
