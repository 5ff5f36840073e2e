/// Tensor files: the input as a file; and as a header, for which the first line gives the number of
/// bytes that follow it.
#include <charconv>

#include <rrfp/safetensors/file.hpp>
#include <rrfp/safetensors/header.hpp>

#include "promises.hpp"

using namespace rrfp;
using fuzz::promise;

namespace {

constexpr std::uint64_t data_bytes_max = 4096;

void open(std::string_view bytes) {
  static const fuzz::memory_file made;
  made.write(bytes);
  const auto file = safetensors::file::open(made.path());
  if (!file) return fuzz::promise_error(file.failure(), made.path());
  std::uint64_t covered = 0;
  for (const auto& t : (*file)->tensors()) {
    const auto data = (*file)->bytes(t);
    covered += data.size();
    promise((*file)->find(t.name) != nullptr, "a tensor has a name");
    promise(data.empty() || (static_cast<void>(data.front()), static_cast<void>(data.back()), true),
            "the bytes of a tensor are there");
  }
  promise(covered <= bytes.size(), "tensors do not overlap");
}

void read_header(std::string_view text, std::uint64_t data_bytes) {
  const auto header = safetensors::parse_header(text, data_bytes);
  if (!header) return fuzz::promise_line(header.message());
  const auto written = safetensors::compose_header(header->tensors, header->metadata);
  promise(written.ok(), "a header can be written");
  const auto again = safetensors::parse_header(*written, data_bytes);
  promise(again.ok() && again->metadata == header->metadata &&
              again->tensors.size() == header->tensors.size(),
          "a header is read as it was written", *written);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto input = fuzz::text_of(data, size);
  open(input);
  std::uint64_t data_bytes = 0;
  const auto* const end = input.data() + input.size();
  const auto number = std::from_chars(input.data(), end, data_bytes);
  if (number.ec != std::errc{} || number.ptr == end || *number.ptr != '\n') return 0;
  const std::string_view header{number.ptr + 1, end};
  read_header(header, data_bytes);
  if (data_bytes > data_bytes_max) return 0;
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i));
  open(file.append(header).append(data_bytes, 'x'));
  return 0;
}
