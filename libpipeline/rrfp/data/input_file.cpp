#include "input_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <vector>

#include <xxhash.h>

namespace rrfp::data {

namespace {

constexpr std::uint64_t block_bytes = std::uint64_t{1} << 20;

error unreadable(const std::string& why) { return error{"cannot be read: " + why}; }

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r") == std::string_view::npos;
}

}  // namespace

result<std::shared_ptr<const input_file>> input_file::open(const std::string& path) {
  // Without O_NONBLOCK, opening a pipe would block until it has a writer.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return unreadable(std::strerror(errno));
  struct ::stat about {};
  const bool known = ::fstat(descriptor, &about) == 0;
  if (known && S_ISREG(about.st_mode))
    return std::shared_ptr<const input_file>{
        new input_file(path, descriptor, static_cast<std::uint64_t>(about.st_size))};
  const auto why =
      known ? S_ISDIR(about.st_mode) ? "expected a file, got a folder" : "expected a regular file"
            : std::strerror(errno);
  auto failure = unreadable(why);
  ::close(descriptor);
  return failure;
}

input_file::~input_file() { ::close(descriptor_); }

status input_file::read(std::uint64_t offset, std::span<std::uint8_t> to) const {
  while (!to.empty()) {
    const auto got = ::pread(descriptor_, to.data(), to.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return unreadable(std::strerror(errno));
    if (got == 0) return unreadable("the file became shorter");
    offset += static_cast<std::uint64_t>(got);
    to = to.subspan(static_cast<std::size_t>(got));
  }
  return success();
}

status for_each_line(const input_file& file,
                     const std::function<status(std::string_view, line_place)>& use) {
  std::vector<std::uint8_t> block(std::min(block_bytes, file.size()));
  std::string held;  // the beginning of a line that continues in the next block
  std::uint64_t line_begin = 0;
  std::uint64_t number = 1;
  const auto use_line = [&](std::string_view text) -> status {
    if (is_blank(text)) return success();
    return use(text, {line_begin, number, static_cast<std::uint32_t>(text.size())});
  };
  const auto check_length = [&](std::uint64_t more) -> status {
    if (held.size() + more <= line_bytes_max) return success();
    return error{file.path() + ":" + std::to_string(number) + ": expected a line of at most " +
                 std::to_string(line_bytes_max) + " bytes, got more"};
  };
  for (std::uint64_t offset = 0; offset < file.size(); offset += block.size()) {
    block.resize(std::min(block_bytes, file.size() - offset));
    if (auto got = file.read(offset, block); !got) return error{file.path() + ": " + got.message()};
    std::string_view rest{reinterpret_cast<const char*>(block.data()), block.size()};
    for (auto end = rest.find('\n'); end != rest.npos; end = rest.find('\n')) {
      if (auto fits = check_length(end); !fits) return fits;
      std::string_view text = rest.substr(0, end);
      if (!held.empty()) text = held.append(text);
      if (auto used = use_line(text); !used) return used;
      line_begin += text.size() + 1;
      ++number;
      held.clear();
      rest.remove_prefix(end + 1);
    }
    if (auto fits = check_length(rest.size()); !fits) return fits;
    held.append(rest);
  }
  return use_line(held);
}

status line_index::read(const std::vector<std::string>& paths,
                        const std::function<status(std::string_view, line_place)>& use) {
  for (const auto& path : paths) {
    auto file = input_file::open(path);
    if (!file) return error{path + ": " + file.message()};
    const auto number = static_cast<std::uint32_t>(files_.size());
    files_.push_back(std::move(*file));
    auto read = for_each_line(*files_.back(), [&](std::string_view text, line_place place) {
      hash_ = XXH64(text.data(), text.size(), hash_);
      place.file = number;
      return use(text, place);
    });
    if (!read) return read;
  }
  return success();
}

std::string line_index::where(const line_place& place) const {
  return path(place) + ":" + std::to_string(place.number);
}

std::string line_index::load(const line_place& place) const {
  std::string line(place.bytes, '\0');
  const auto got = files_[place.file]->read(
      place.offset, {reinterpret_cast<std::uint8_t*>(line.data()), line.size()});
  if (!got) throw std::runtime_error(where(place) + ": " + got.message());
  return line;
}

}  // namespace rrfp::data
