/// Invalid files of every kind, each with its exact error message. Files are not trusted: none may
/// crash a reader or be misread.
#include "support.hpp"

#include <sys/stat.h>

#include <random>

namespace rrfp::safetensors::test {
namespace {

/// The error of opening the file, without its name, or "accepted".
std::string refusal(const std::string& text) {
  const scratch_folder folder;
  const auto path = write_text(folder / "x.safetensors", text);
  const auto opened = file::open(path);
  if (opened) return "accepted";
  INFO(opened.message());
  REQUIRE(opened.message().starts_with(path + ": "));
  return opened.message().substr(path.size() + 2);
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
         offsets + "}";
}

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets,
                std::size_t data_bytes) {
  return refusal(
      file_text("{" + tensor("w", dtype, shape, offsets) + "}", std::string(data_bytes, 'x')));
}

TEST_CASE("A truncated file is refused") {
  CHECK(refusal("") == "not a safetensors file: expected at least 8 bytes, got 0");
  CHECK(refusal("1234567") == "not a safetensors file: expected at least 8 bytes, got 7");
  CHECK(refusal(little_endian(3) + "{}") ==
        "a header of 3 bytes, but only 2 follow: truncated, or not a safetensors file");
  CHECK(refusal(little_endian(100'000'001) + "{}") ==
        "a header of 100000001 bytes: expected at most 100000000");
  CHECK(refusal(std::string(8, '\xff')) ==
        "a header of 18446744073709551615 bytes: expected at most 100000000");
}

TEST_CASE("A header that is not a JSON object is refused") {
  CHECK(refusal(file_text("")) == "the header is not a JSON object");
  CHECK(refusal(file_text("[]")) == "the header is not a JSON object");
  CHECK(refusal(file_text(" {}")) == "the header is not a JSON object");
  CHECK(refusal(file_text("{\"a\":")) == "the header: not JSON at byte 6");
  CHECK(refusal(file_text("{} {}")) == "the header: not JSON at byte 4");
  CHECK(refusal(file_text("{\"\xff\":1}")).starts_with("the header: not JSON at byte "));
  std::string deep = "{\"a\":";
  for (int i = 0; i < 100000; ++i) deep += "[";
  CHECK(refusal(file_text(deep)) == "the header: nested deeper than 8 at byte 13");
  CHECK(refusal(file_text("{\"a\":[[[[[[[[[[]]]]]]]]]]}")) ==
        "the header: nested deeper than 8 at byte 13");
}

TEST_CASE("Duplicate keys are refused at every level") {
  const auto w = tensor("w", "U8", "[1]", "[0,1]");
  CHECK(refusal(file_text("{" + w + "," + w + "}", "x")) == "the header: duplicate key 'w'");
  CHECK(refusal(file_text(R"({"__metadata__":{"a":"1","a":"2"}})")) ==
        "the header: duplicate key 'a'");
  CHECK(refusal(file_text(R"({"w":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})",
                          "x")) == "the header: duplicate key 'dtype'");
  CHECK(refusal(file_text(R"({"__metadata__":{},"__metadata__":{}})")) ==
        "the header: duplicate key '__metadata__'");
}

TEST_CASE("Metadata is an object of strings") {
  CHECK(refusal(file_text(R"({"__metadata__":[]})")) ==
        "__metadata__: expected an object of strings, got []");
  CHECK(refusal(file_text(R"({"__metadata__":{"a":1}})")) ==
        R"(__metadata__: expected an object of strings, got {"a":1})");
}

TEST_CASE("An entry with a missing key or a value of the wrong type is refused") {
  const auto entry = [](const std::string& text) {
    return refusal(file_text("{\"w\":" + text + "}", "x"));
  };
  CHECK(entry("3") == "tensor 'w': expected an object, got 3");
  CHECK(entry("{}") == "tensor 'w': has no dtype");
  CHECK(entry(R"({"dtype":"U8"})") == "tensor 'w': has no shape");
  CHECK(entry(R"({"dtype":"U8","shape":[1]})") == "tensor 'w': has no data_offsets");
  CHECK(entry(R"({"dtype":8})") == "tensor 'w': unknown dtype 8");
  CHECK(one("F33", "[1]", "[0,1]", 1) == "tensor 'w': unknown dtype \"F33\"");
  CHECK(one("f32", "[1]", "[0,4]", 4) == "tensor 'w': unknown dtype \"f32\"");
}

TEST_CASE("An impossible shape is refused") {
  const std::string expected = ": expected an array of integers >= 0";
  CHECK(one("U8", "[-1]", "[0,1]", 1) == "tensor 'w': shape [-1]" + expected);
  CHECK(one("U8", "[1.0]", "[0,1]", 1) == "tensor 'w': shape [1.0]" + expected);
  CHECK(one("U8", "[\"1\"]", "[0,1]", 1) == "tensor 'w': shape [\"1\"]" + expected);
  CHECK(one("U8", "1", "[0,1]", 1) == "tensor 'w': shape 1" + expected);
  CHECK(one("U8", "null", "[0,1]", 1) == "tensor 'w': shape null" + expected);
  CHECK(one("U8", "[9223372036854775808]", "[0,1]", 1) ==
        "tensor 'w': shape [9223372036854775808]" + expected);
  CHECK(one("U8", "[18446744073709551616]", "[0,1]", 1).ends_with(expected));
  CHECK(one("F32", "[4294967296,4294967296]", "[0,0]", 0) ==
        "tensor 'w': shape [4294967296, 4294967296]: its size in bytes overflows");
  CHECK(one("F64", "[4611686018427387904]", "[0,0]", 0) ==
        "tensor 'w': shape [4611686018427387904]: its size in bytes overflows");
  CHECK(one("U8", "[0,4294967296,4294967296]", "[0,0]", 0) ==
        "tensor 'w': shape [0, 4294967296, 4294967296]: its size in bytes overflows");
}

TEST_CASE("Offsets that are not a range of the data are refused") {
  const std::string expected = ": expected two integers >= 0, begin and end";
  CHECK(one("U8", "[1]", "[0]", 1) == "tensor 'w': data_offsets [0]" + expected);
  CHECK(one("U8", "[1]", "[-1,0]", 1) == "tensor 'w': data_offsets [-1,0]" + expected);
  CHECK(one("U8", "[1]", "[0,1.0]", 1) == "tensor 'w': data_offsets [0,1.0]" + expected);
  CHECK(one("U8", "[1]", "{}", 1) == "tensor 'w': data_offsets {}" + expected);
  CHECK(one("U8", "[1]", "[1,0]", 1) == "tensor 'w': data_offsets [1,0]: expected begin <= end");
  CHECK(one("U8", "[2]", "[0,2]", 1) ==
        "tensor 'w': data_offsets [0,2] reach beyond the 1 bytes of data");
  CHECK(one("U8", "[1]", "[18446744073709551614,18446744073709551615]", 1) ==
        "tensor 'w': data_offsets [18446744073709551614,18446744073709551615] reach beyond the 1 "
        "bytes of data");
}

TEST_CASE("A range whose size does not match the shape is refused") {
  CHECK(one("F32", "[2,3]", "[0,20]", 20) ==
        "tensor 'w': F32 [2, 3] takes 24 bytes, but its data_offsets span 20");
  CHECK(one("F32", "[]", "[0,0]", 0) ==
        "tensor 'w': F32 [] takes 4 bytes, but its data_offsets span 0");
  CHECK(one("F32", "[0]", "[0,4]", 4) ==
        "tensor 'w': F32 [0] takes 0 bytes, but its data_offsets span 4");
}

TEST_CASE("Data that belongs to no tensor or to two is refused") {
  const auto both = [](const std::string& a, const std::string& b, std::size_t data_bytes) {
    return refusal(file_text("{" + a + "," + b + "}", std::string(data_bytes, 'x')));
  };
  CHECK(both(tensor("a", "U8", "[4]", "[0,4]"), tensor("b", "U8", "[4]", "[2,6]"), 6) ==
        "tensor 'b': begins at byte 2 of the data, inside of tensor 'a', which ends at byte 4");
  CHECK(both(tensor("a", "U8", "[4]", "[0,4]"), tensor("b", "U8", "[4]", "[0,4]"), 4) ==
        "tensor 'b': begins at byte 0 of the data, inside of tensor 'a', which ends at byte 4");
  CHECK(both(tensor("a", "U8", "[4]", "[0,4]"), tensor("b", "U8", "[2]", "[6,8]"), 8) ==
        "tensor 'b': begins at byte 6 of the data, expected 4: the 2 bytes before it belong to no "
        "tensor");
  CHECK(one("U8", "[1]", "[1,2]", 2) ==
        "tensor 'w': begins at byte 1 of the data, expected 0: the 1 bytes before it belong to no "
        "tensor");
  CHECK(one("U8", "[1]", "[0,1]", 3) == "2 trailing bytes belong to no tensor");
  CHECK(refusal(file_text("{}", "x")) == "1 trailing bytes belong to no tensor");
}

TEST_CASE("A path that is not a regular file is refused, and does not hang") {
  const scratch_folder folder;
  const auto refused = [](const std::string& path) {
    const auto opened = file::open(path);
    REQUIRE_FALSE(opened.ok());
    return opened.message();
  };
  CHECK(refused(folder / "none") == folder / "none" + ": cannot read: No such file or directory");
  CHECK(refused(folder / "") == folder / "" + ": cannot read: expected a file, got a folder");
  CHECK(refused("/dev/null") == "/dev/null: cannot read: expected a file, got a device or pipe");
  const auto pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(refused(pipe) == pipe + ": cannot read: expected a file, got a device or pipe");
}

TEST_CASE("Valid files with some changed bytes are read or refused, without a crash") {
  const auto valid =
      file_text("{\"__metadata__\":{\"k\":\"v\"}," + tensor("a", "F32", "[2,2]", "[0,16]") + "," +
                    tensor("b", "I64", "[]", "[16,24]") + "}",
                std::string(24, 'x'));
  REQUIRE(refusal(valid) == "accepted");
  std::mt19937 random{7};
  std::size_t accepted = 0;
  constexpr std::size_t tries = 3000;
  const scratch_folder folder;
  for (std::size_t i = 0; i < tries; ++i) {
    auto text = valid;
    for (auto changes = random() % 3 + 1; changes > 0; --changes)
      text[random() % text.size()] = static_cast<char>(random());
    if (random() % 4 == 0) text.resize(random() % text.size());
    const auto opened = file::open(write_text(folder / "x", text));
    if (!opened) {
      CHECK(opened.message().find('\n') == std::string::npos);
      continue;
    }
    ++accepted;
    for (const auto& t : (*opened)->tensors()) CHECK((*opened)->bytes(t).size() == t.size());
  }
  CHECK(accepted > 0);
  CHECK(accepted < tries / 2);
}

}  // namespace
}  // namespace rrfp::safetensors::test
