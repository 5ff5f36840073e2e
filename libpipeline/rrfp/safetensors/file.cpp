#include <rrfp/safetensors/file.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include <rrfp/base/bytes.hpp>
#include <rrfp/base/check.hpp>

#include "header.hpp"

namespace rrfp::safetensors {

namespace {

constexpr std::size_t length_bytes = sizeof(std::uint64_t);

struct descriptor {
  const int number;
  ~descriptor() {
    if (number >= 0) ::close(number);
  }
};

/// Maps a whole regular file. Returns an empty span for an empty file.
result<std::span<const std::byte>> map_file(const std::string& path) {
  const auto refused = [&](const std::string& why) {
    return error{path + ": cannot read: " + why};
  };
  // Without O_NONBLOCK, opening a pipe would block until it has a writer.
  const descriptor opened{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  struct stat about {};
  if (opened.number < 0 || ::fstat(opened.number, &about) != 0)
    return refused(std::strerror(errno));
  if (S_ISDIR(about.st_mode)) return refused("expected a file, got a folder");
  if (!S_ISREG(about.st_mode)) return refused("expected a file, got a device or pipe");
  const auto size = static_cast<std::size_t>(about.st_size);
  if (size == 0) return std::span<const std::byte>{};
  void* const at = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, opened.number, 0);
  if (at == MAP_FAILED) return refused(std::strerror(errno));
  return std::span{static_cast<const std::byte*>(at), size};
}

}  // namespace

file::file(std::string path, std::span<const std::byte> mapped)
    : path_(std::move(path)), mapped_(mapped) {}

file::~file() {
  if (!mapped_.empty())
    ::munmap(const_cast<void*>(static_cast<const void*>(mapped_.data())), mapped_.size());
}

result<std::shared_ptr<const file>> file::open(const std::string& path) {
  const auto mapped = map_file(path);
  if (!mapped) return mapped.failure();
  const std::shared_ptr<file> made{new file{path, *mapped}};
  if (auto read = made->read_header(); !read) return error{path + ": " + read.message()};
  return std::shared_ptr<const file>{made};
}

status file::read_header() {
  if (mapped_.size() < length_bytes)
    return error{"not a safetensors file: expected at least 8 bytes, got " +
                 std::to_string(mapped_.size())};
  std::uint64_t length = 0;
  byte_reader{{reinterpret_cast<const char*>(mapped_.data()), length_bytes}}.get(length);
  if (length > header_bytes_max)
    return error{"a header of " + std::to_string(length) + " bytes: expected at most " +
                 std::to_string(header_bytes_max)};
  const auto rest = mapped_.subspan(length_bytes);
  if (length > rest.size())
    return error{"a header of " + std::to_string(length) + " bytes, but only " +
                 std::to_string(rest.size()) + " follow: truncated, or not a safetensors file"};
  const auto text = rest.first(length);
  data_ = rest.subspan(length);
  auto read = parse_header({reinterpret_cast<const char*>(text.data()), text.size()}, data_.size());
  if (!read) return read.failure();
  tensors_ = std::move(read->tensors);
  metadata_ = std::move(read->metadata);
  for (const auto& t : tensors_) by_name_[t.name] = &t;
  return success();
}

const tensor_info* file::find(std::string_view name) const {
  const auto at = by_name_.find(name);
  return at == by_name_.end() ? nullptr : at->second;
}

std::span<const std::byte> file::bytes(const tensor_info& t) const {
  RRFP_CHECK(t.begin <= t.end && t.end <= data_.size(), "a tensor of this file");
  return data_.subspan(t.begin, t.size());
}

}  // namespace rrfp::safetensors
