/// The headers of the wire format: their layout as in wire_format.md, and invalid input. More of
/// it: test/fuzz/targets/ucx_frame.cpp.
#include <cstring>

#include <rrfp/transport/ucx/wire_format.hpp>

#include <catch2/catch.hpp>

namespace rrfp::actors::ucx {
namespace {

tensor_header some_tensor() {
  tensor_header h;
  h.job_token = 0x1122334455667788;
  h.epoch = 3;
  h.from_node = node_id{4};
  h.sequence = 0x99aabbccddeeff00;
  h.message = {payload::gradient,
               step_id{0x0102030405060708},
               microbatch_id{6},
               chunk_id{2},
               {stage_id{9}, rank_id{10}, replica_id{11}},
               {stage_id{12}, rank_id{13}, replica_id{14}}};
  h.type = dtype::bfloat16;
  h.dims = 3;
  h.shape = {5, 7, 256};
  h.data_bytes = 5 * 7 * 256 * 2;
  h.has_data_hash = true;
  h.data_hash = 0xfedcba9876543210;
  return h;
}

bytes_header some_bytes() {
  return {0x1122334455667788, 3,    node_id{4},         0xab, rank_id{1}, rank_id{2}, 0xdeadbeef0,
          12'345'678,         true, 0xfedcba9876543210, true};
}

actor_message_header some_actor_message() {
  return {0x1122334455667788, 3, node_id{4}, 0x99aabbccddeeff00, 12'345, true, 0xfedcba9876543210};
}

template <class Header>
std::vector<std::byte> encoded(const Header& h) {
  header_buffer buffer{};
  const auto size = encode(h, buffer);
  return {buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(size)};
}

/// Recomputes the checksum, as if the sender had sent these bytes.
void seal(std::vector<std::byte>& bytes) {
  const auto hash = hash_of(std::span{bytes}.first(bytes.size() - 8));
  std::memcpy(bytes.data() + bytes.size() - 8, &hash, 8);
}

template <class T>
std::vector<std::byte> with(std::vector<std::byte> bytes, std::size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
  seal(bytes);
  return bytes;
}

std::string decode_error(const std::vector<std::byte>& bytes) {
  const auto h = decode<tensor_header>(bytes);
  return h ? "none" : h.message();
}

template <class Decode>
void survives_damage(const std::vector<std::byte>& good, Decode decode) {
  REQUIRE(decode(good).ok());
  for (std::size_t size = 0; size < good.size(); ++size) {
    INFO("cut to " << size);
    CHECK_FALSE(decode(std::span{good}.first(size)).ok());
  }
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    auto bad = good;
    bad[bit / 8] ^= std::byte{1} << (bit % 8);
    INFO("bit " << bit);
    CHECK_FALSE(decode(bad).ok());
  }
  auto longer = good;
  longer.resize(good.size() + 8);
  CHECK_FALSE(decode(longer).ok());
  seal(longer);
  CHECK_FALSE(decode(longer).ok());
  longer.resize(header_bytes_max + 1);
  CHECK_FALSE(decode(longer).ok());
}

}  // namespace

TEST_CASE("A tensor header survives encoding and decoding") {
  auto h = some_tensor();
  const auto dims = GENERATE(range(0, 9));
  h.dims = static_cast<std::uint8_t>(dims);
  h.shape = {};
  h.data_bytes = 2;
  for (int i = 0; i < dims; ++i) h.data_bytes *= static_cast<std::uint64_t>(h.shape[i] = i + 1);
  const auto got = decode<tensor_header>(encoded(h));
  REQUIRE(got.ok());
  CHECK(*got == h);
}

TEST_CASE(
    "Headers of bytes, of actor messages and of disconnect messages survive encoding and "
    "decoding") {
  const auto message = decode<actor_message_header>(encoded(some_actor_message()));
  REQUIRE(message.ok());
  CHECK(*message == some_actor_message());
  const auto bytes = decode<bytes_header>(encoded(some_bytes()));
  REQUIRE(bytes.ok());
  CHECK(*bytes == some_bytes());
  const disconnect_header f{5, 6, node_id{7}, GENERATE(true, false)};
  const auto disconnect = decode<disconnect_header>(encoded(f));
  REQUIRE(disconnect.ok());
  CHECK(*disconnect == f);
}

TEST_CASE("The fields have the offsets that wire_format.md documents") {
  const auto bytes = encoded(some_tensor());
  REQUIRE(bytes.size() == 96 + 3 * 8 + 8);
  const auto at = [&](std::size_t offset, std::size_t size) {
    std::uint64_t value = 0;
    for (std::size_t i = size; i-- > 0;)
      value = value << 8 | std::to_integer<std::uint64_t>(bytes[offset + i]);
    return value;
  };
  CHECK(std::memcmp(bytes.data(), "RFPT", 4) == 0);
  CHECK(at(4, 2) == wire_version);
  CHECK(at(6, 2) == 1);
  CHECK(at(8, 8) == 0x1122334455667788);
  CHECK(at(16, 4) == 3);
  CHECK(at(20, 4) == 4);
  CHECK(at(24, 8) == 0x99aabbccddeeff00);
  for (std::size_t i = 0; i < 6; ++i) CHECK(at(32 + 4 * i, 4) == 9 + i);
  CHECK(at(56, 1) == 1);
  CHECK(at(57, 1) == 7);
  CHECK(at(58, 1) == 3);
  CHECK(at(60, 4) == 6);
  CHECK(at(64, 4) == 2);
  CHECK(at(72, 8) == 0x0102030405060708);
  CHECK(at(80, 8) == 5 * 7 * 256 * 2);
  CHECK(at(88, 8) == 0xfedcba9876543210);
  CHECK(at(96, 8) == 5);
  CHECK(at(112, 8) == 256);
  const auto channel = encoded(some_bytes());
  CHECK(channel.size() == 72);
  CHECK(std::memcmp(channel.data(), "RFPB", 4) == 0);
  const auto message = encoded(some_actor_message());
  CHECK(message.size() == 56);
  CHECK(std::memcmp(message.data(), "RFPM", 4) == 0);
  CHECK(message[24] == std::byte{0x00});
  CHECK(message[25] == std::byte{0xff});
  CHECK(message[32] == std::byte{12'345 & 0xff});
  CHECK(std::memcmp(encoded(disconnect_header{}).data(), "RFPF", 4) == 0);
}

TEST_CASE("Truncated and damaged headers are refused") {
  survives_damage(encoded(some_tensor()), decode<tensor_header>);
  survives_damage(encoded(some_bytes()), decode<bytes_header>);
  survives_damage(encoded(some_actor_message()), decode<actor_message_header>);
  survives_damage(encoded(disconnect_header{1, 2, node_id{3}, true}), decode<disconnect_header>);
  CHECK_FALSE(decode<tensor_header>(encoded(some_bytes())).ok());
  CHECK_FALSE(decode<bytes_header>(encoded(disconnect_header{})).ok());
  CHECK_FALSE(decode<actor_message_header>(encoded(some_bytes())).ok());
}

TEST_CASE("An invalid field is refused and named, even with a correct checksum") {
  const auto good = encoded(some_tensor());
  CHECK(decode_error(good) == "none");
  CHECK(decode_error(with(good, 4, std::uint16_t{1})) ==
        "the sender uses another version of the wire format: expected 3, got 1");
  CHECK(decode_error(with(good, 6, std::uint16_t{8})) == "unknown flags: expected 1, got 8");
  CHECK(decode_error(with(good, 56, std::uint8_t{9})) ==
        "unknown payload kind (highest known): expected 5, got 9");
  CHECK(decode_error(with(good, 57, std::uint8_t{0})) == "unknown dtype code 0");
  CHECK(decode_error(with(good, 57, std::uint8_t{14})) == "unknown dtype code 14");
  CHECK(decode_error(with(good, 58, std::uint8_t{9})) ==
        "too many dimensions (most allowed): expected 8, got 9");
  CHECK(decode_error(with(good, 58, std::uint8_t{2})) ==
        "length of the header: expected 120, got 128");
  CHECK(decode_error(with(good, 59, std::uint8_t{1})) ==
        "a reserved byte is set: expected 0, got 1");
  CHECK(decode_error(with(good, 68, std::uint32_t{1})) ==
        "a reserved field is set: expected 0, got 1");
  CHECK(decode_error(with(good, 80, std::uint64_t{1})) ==
        "bytes of the shape: expected 17920, got 1");
  CHECK(decode_error(with(good, 96, std::int64_t{-5})) == "a dimension is negative: -5");
}

TEST_CASE("Huge sizes cause no overflow") {
  const auto too_large = "the shape has more bytes than a 64-bit number holds";
  const auto good = encoded(some_tensor());
  CHECK(decode_error(with(good, 96, INT64_MAX)) == too_large);
  CHECK(decode_error(with(good, 112, std::int64_t{1} << 58)) == too_large);
  // The product of these is 2^64 x 2, hence 0 in 64 bits.
  auto wraps = with(with(good, 96, std::int64_t{1} << 32), 104, std::int64_t{1} << 32);
  wraps = with(with(wraps, 112, std::int64_t{1}), 80, std::uint64_t{0});
  CHECK(decode_error(wraps) == too_large);
  // An empty dimension makes the tensor empty, but the others are still checked.
  CHECK(decode_error(with(wraps, 112, std::int64_t{0})) == too_large);
  CHECK(decode_error(with(with(good, 96, std::int64_t{0}), 80, std::uint64_t{0})) == "none");
}

}  // namespace rrfp::actors::ucx
