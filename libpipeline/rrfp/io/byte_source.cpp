#include <rrfp/io/byte_source.hpp>

#include <zlib.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace rrfp::files {

namespace {

constexpr std::size_t piece_bytes = std::size_t{256} << 10;

}  // namespace

struct byte_source::state {
  gzFile file = nullptr;
  std::string fault;
  std::array<char, piece_bytes> piece{};

  ~state() {
    if (file != nullptr) gzclose(file);
  }
};

byte_source::byte_source(std::unique_ptr<state> s) : state_(std::move(s)) {}
byte_source::byte_source(byte_source&&) noexcept = default;
byte_source& byte_source::operator=(byte_source&&) noexcept = default;
byte_source::~byte_source() = default;

result<byte_source> byte_source::open(const std::string& file) {
  std::error_code unknown;
  if (std::filesystem::is_directory(file, unknown))
    return error{file + ": expected a file, got a folder"};
  auto s = std::make_unique<state>();
  // zlib reads a file that is not compressed as it is.
  s->file = gzopen(file.c_str(), "rb");
  if (s->file == nullptr) return error{file + ": cannot read: " + std::strerror(errno)};
  gzbuffer(s->file, piece_bytes);
  return byte_source{std::move(s)};
}

std::string_view byte_source::next() {
  auto& s = *state_;
  if (!s.fault.empty()) return {};
  const int got = gzread(s.file, s.piece.data(), static_cast<unsigned>(s.piece.size()));
  if (got > 0) return {s.piece.data(), static_cast<std::size_t>(got)};
  int code = Z_OK;
  const char* const why = gzerror(s.file, &code);
  if (code == Z_BUF_ERROR)
    s.fault = "a gzip file that ends too early";
  else if (code == Z_ERRNO)
    s.fault = std::string{"cannot read: "} + std::strerror(errno);
  else if (got < 0 || code != Z_OK)
    s.fault = std::string{"a broken gzip file: "} + why;
  return {};
}

const std::string& byte_source::fault() const { return state_->fault; }

result<std::string> head_of(const std::string& file, std::size_t bytes_max) {
  auto source = byte_source::open(file);
  if (!source) return source.failure();
  std::string head;
  for (auto piece = source->next(); !piece.empty() && head.size() < bytes_max;
       piece = source->next())
    head += piece;
  head.resize(std::min(head.size(), bytes_max));
  return head;
}

}  // namespace rrfp::files
