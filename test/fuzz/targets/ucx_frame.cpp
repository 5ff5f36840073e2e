/// The headers of UCX messages: as they come, and with their checksum corrected.
#include <cstring>
#include <vector>

#include <rrfp/transport/ucx/wire_format.hpp>

#include "promises.hpp"

namespace {

using namespace rrfp;
using namespace rrfp::actors::ucx;

template <class Header>
void read(std::span<const std::byte> bytes, const result<Header>& header) {
  if (!header) return fuzz::promise_line(header.message());
  header_buffer again{};
  const auto size = encode(*header, again);
  fuzz::promise(size == bytes.size() && std::memcmp(again.data(), bytes.data(), size) == 0,
                "a header is what its bytes say");
}

void read_all(std::span<const std::byte> bytes) {
  read(bytes, decode<tensor_header>(bytes));
  read(bytes, decode<bytes_header>(bytes));
  read(bytes, decode<actor_message_header>(bytes));
  read(bytes, decode<disconnect_header>(bytes));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::byte> bytes(size);
  if (size > 0) std::memcpy(bytes.data(), data, size);
  read_all(bytes);
  const auto seal = hash_of(bytes);
  bytes.resize(size + sizeof seal);
  std::memcpy(bytes.data() + size, &seal, sizeof seal);
  read_all(bytes);
  return 0;
}
