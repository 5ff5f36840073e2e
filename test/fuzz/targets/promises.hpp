/// What every reader of bytes from outside promises, beyond surviving them. A broken promise
/// aborts, so that libFuzzer keeps the input.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include <rrfp/base/printable.hpp>
#include <rrfp/base/result.hpp>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace rrfp::fuzz {

inline void promise(bool kept, const char* what, std::string_view shown = {}) {
  if (kept) return;
  std::fprintf(stderr, "broken promise: %s\n%.*s\n", what, static_cast<int>(shown.size()),
               shown.data());
  std::abort();
}

/// A message is one line that a terminal can show.
inline void promise_line(std::string_view message) {
  promise(!message.empty(), "an error has a message");
  promise(printable(message, SIZE_MAX) == message, "a message is one printable line", message);
}

/// An error about a file begins with its name.
inline void promise_error(const error& e, std::string_view file) {
  promise_line(e.message);
  promise(e.message.starts_with(file) && e.message.substr(file.size()).starts_with(":"),
          "an error names the file", e.message);
}

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// A file in memory, for readers that take a path.
class memory_file {
 public:
  memory_file() : descriptor_(::memfd_create("input", MFD_CLOEXEC)) {
    promise(descriptor_ >= 0, "there is memory for a file");
  }
  explicit memory_file(std::string_view bytes) : memory_file() { write(bytes); }
  memory_file(const memory_file&) = delete;
  memory_file& operator=(const memory_file&) = delete;
  ~memory_file() { ::close(descriptor_); }

  /// Replaces what the file holds.
  void write(std::string_view bytes) const {
    promise(::ftruncate(descriptor_, 0) == 0 && ::lseek(descriptor_, 0, SEEK_SET) == 0,
            "a file in memory can be emptied");
    while (!bytes.empty()) {
      const auto written = ::write(descriptor_, bytes.data(), bytes.size());
      promise(written > 0, "there is memory for a file");
      bytes.remove_prefix(static_cast<std::size_t>(written));
    }
  }
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  const int descriptor_;
};

}  // namespace rrfp::fuzz
