/// Files made by hand, byte by byte, and tensors to write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include <rrfp/safetensors/file.hpp>
#include <rrfp/safetensors/writer.hpp>

#include "program.hpp"

namespace rrfp::safetensors::test {

using rrfp::test::scratch_folder;
using rrfp::test::text_of;

inline constexpr dtype all_dtypes[] = {
    dtype::boolean, dtype::uint8,    dtype::int8,  dtype::int16,  dtype::uint16,
    dtype::float16, dtype::bfloat16, dtype::int32, dtype::uint32, dtype::float32,
    dtype::float64, dtype::int64,    dtype::uint64};

inline std::string little_endian(std::uint64_t value) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>((value >> (8 * i)) & 0xff);
  return bytes;
}

/// Other files in the folder whose names begin with that of `path`, such as temporary ones.
inline std::size_t files_beside(const std::string& path) {
  const auto name = std::filesystem::path{path}.filename().string() + ".";
  std::size_t count = 0;
  for (const auto& f :
       std::filesystem::directory_iterator{std::filesystem::path{path}.parent_path()})
    count += f.path().filename().string().starts_with(name) ? 1 : 0;
  return count;
}

/// The bytes of a file with this header and data.
inline std::string file_text(const std::string& header, const std::string& data = {}) {
  return little_endian(header.size()) + header + data;
}

inline std::string write_text(const std::string& path, const std::string& text) {
  std::ofstream{path, std::ios::binary} << text;
  return path;
}

/// Bytes that differ by tensor and by position; only 0 and 1 for booleans.
inline std::vector<std::byte> bytes_for(const tensor_info& t) {
  std::vector<std::byte> bytes(t.size());
  std::uint32_t x = 2166136261U;
  for (const char c : t.name) x = (x ^ static_cast<unsigned char>(c)) * 16777619U;
  for (auto& b : bytes) {
    x = x * 1664525U + 1013904223U;
    b = static_cast<std::byte>(t.type == dtype::boolean ? (x >> 24) & 1U : x >> 24);
  }
  return bytes;
}

inline std::vector<std::byte> as_vector(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

/// Writes all tensors with bytes_for(). Returns the error message, or an empty string.
inline std::string write_all(const std::string& path, const std::vector<tensor_spec>& tensors,
                             const string_map& metadata = {}) {
  auto w = writer::create(path, tensors, metadata);
  if (!w) return w.message();
  for (const auto& t : (*w)->tensors())
    if (auto written = (*w)->write(t.name, bytes_for(t)); !written) return written.message();
  if (auto done = (*w)->finish(); !done) return done.message();
  return {};
}

}  // namespace rrfp::safetensors::test
