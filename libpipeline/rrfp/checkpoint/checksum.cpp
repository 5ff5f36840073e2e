#include <rrfp/checkpoint/checksum.hpp>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include <rrfp/base/check.hpp>

namespace rrfp::checkpoint {

namespace {

constexpr std::size_t buffer_bytes = std::size_t{1} << 20;

}  // namespace

checksum::checksum() {
  RRFP_CHECK(state_ != nullptr, "no memory for the state of a checksum");
  XXH64_reset(state_.get(), 0);
}

void checksum::add(std::span<const std::byte> bytes) {
  XXH64_update(state_.get(), bytes.data(), bytes.size());
  bytes_ += bytes.size();
}

std::uint64_t checksum_of(std::string_view text) { return XXH64(text.data(), text.size(), 0); }

std::string hex(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

result<file_sum> sum_of_file(const std::string& path) {
  const auto refused = [&] { return error{path + ": cannot read: " + std::strerror(errno)}; };
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file{std::fopen(path.c_str(), "rbe"),
                                                             std::fclose};
  if (!file) return refused();
  checksum sum;
  std::vector<std::byte> buffer(buffer_bytes);
  while (const auto got = std::fread(buffer.data(), 1, buffer.size(), file.get()))
    sum.add(std::span{buffer}.first(got));
  if (std::ferror(file.get()) != 0) return refused();
  return file_sum{sum.bytes(), sum.value()};
}

}  // namespace rrfp::checkpoint
