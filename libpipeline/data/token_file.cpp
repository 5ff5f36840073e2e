#include "token_file.hpp"

#include <sys/mman.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>

#include <rrfp/json/parse_json.hpp>

namespace rrfp::data {

namespace {

static_assert(std::endian::native == std::endian::little, "ids are mapped as they lie on disk");

using nlohmann::json;

constexpr std::uint64_t tokens_at_once = std::uint64_t{1} << 20;

std::string text_of(std::uint64_t n) { return std::to_string(n); }

std::string sidecar_of(const std::string& path) {
  return path.substr(0, path.size() - std::string_view{".bin"}.size()) + ".json";
}

/// A whole number of the sidecar; the error names the key.
result<std::uint64_t> number_of(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found != object.end() && found->is_number_unsigned() && found->get<std::uint64_t>() > 0)
    return found->get<std::uint64_t>();
  return error{"\"" + std::string{key} + "\": expected an integer > 0, got " +
               (found == object.end() ? "nothing" : found->dump())};
}

status expect(const json& object, const char* key, const json& wanted) {
  const auto found = object.find(key);
  if (found != object.end() && *found == wanted) return success();
  return error{"\"" + std::string{key} + "\": expected " + wanted.dump() + ", got " +
               (found == object.end() ? "nothing" : found->dump())};
}

result<std::vector<std::uint64_t>> documents_of(const json& object, std::uint64_t tokens) {
  std::vector<std::uint64_t> begins;
  const auto found = object.find("documents");
  if (found == object.end()) return begins;
  if (!found->is_array() || found->empty())
    return error{"\"documents\": expected an array of at least one offset"};
  begins.reserve(found->size());
  for (const auto& begin : *found) {
    const auto least = begins.empty() ? 0 : begins.back() + 1;
    const bool fits = begin.is_number_unsigned() && begin.get<std::uint64_t>() >= least &&
                      begin.get<std::uint64_t>() < tokens;
    if (!fits || (begins.empty() && begin != 0))
      return error{"\"documents\": entry " + text_of(begins.size()) + ": expected " +
                   (begins.empty() ? "0" : text_of(least) + " to " + text_of(tokens - 1)) +
                   ", got " + begin.dump()};
    begins.push_back(begin.get<std::uint64_t>());
  }
  return begins;
}

/// The place of the first id that is not below `limit`.
template <class Id>
std::optional<std::uint64_t> first_beyond(const Id* ids, std::uint64_t count, std::uint64_t limit) {
  for (std::uint64_t begin = 0; begin < count; begin += tokens_at_once) {
    const auto end = std::min(count, begin + tokens_at_once);
    Id largest = 0;
    for (auto i = begin; i < end; ++i) largest = std::max(largest, ids[i]);
    if (largest < limit) continue;
    const auto* bad = std::find_if(ids + begin, ids + end, [&](Id id) { return id >= limit; });
    return static_cast<std::uint64_t>(bad - ids);
  }
  return std::nullopt;
}

template <class Id>
void widen(const void* ids, std::uint64_t first, std::span<std::int64_t> to) {
  const auto* from = static_cast<const Id*>(ids) + first;
  std::copy(from, from + to.size(), to.begin());
}

}  // namespace

result<std::unique_ptr<const token_file>> token_file::open(const std::string& path,
                                                           std::uint32_t model_vocabulary) {
  const auto blame = [](const std::string& file, const std::string& why) {
    return error{file + ": " + why};
  };
  if (!path.ends_with(".bin")) return blame(path, "expected a name that ends in .bin");
  std::unique_ptr<token_file> made{new token_file};
  auto file = input_file::open(path);
  if (!file) return blame(path, file.message());
  made->file_ = std::move(*file);
  const auto sidecar = sidecar_of(path);
  if (auto read = made->read_sidecar(sidecar); !read) return blame(sidecar, read.message());
  if (auto mapped = made->map(); !mapped) return blame(path, mapped.message());
  if (auto good = made->check_ids(model_vocabulary); !good) return blame(path, good.message());
  return std::unique_ptr<const token_file>{std::move(made)};
}

token_file::~token_file() {
  if (ids_ != nullptr) ::munmap(const_cast<void*>(ids_), file_->size());
}

status token_file::read_sidecar(const std::string& path) {
  auto file = input_file::open(path);
  if (!file) return file.failure();
  if ((*file)->size() > sidecar_bytes_max)
    return error{"expected at most " + text_of(sidecar_bytes_max) + " bytes, got " +
                 text_of((*file)->size())};
  std::string text((*file)->size(), '\0');
  const std::span bytes{reinterpret_cast<std::uint8_t*>(text.data()), text.size()};
  if (auto read = (*file)->read(0, bytes); !read) return read;
  const auto parsed = parse_json(text);
  if (const auto* fault = std::get_if<json_fault>(&parsed))
    return error{"expected a JSON object, got a file that is " + fault->message()};
  const auto& object = std::get<json>(parsed);
  if (!object.is_object()) return error{"expected a JSON object"};
  if (auto is = expect(object, "format", "rrfp-tokens"); !is) return is;
  if (auto is = expect(object, "version", 1); !is) return is;
  if (expect(object, "dtype", "uint16"))
    width_ = 2;
  else if (auto is = expect(object, "dtype", "uint32"))
    width_ = 4;
  else
    return error{"\"dtype\": expected \"uint16\" or \"uint32\"" +
                 is.message().substr(is.message().rfind(", got"))};
  const auto tokens = number_of(object, "tokens");
  if (!tokens) return tokens.failure();
  const auto vocabulary = number_of(object, "vocabulary");
  if (!vocabulary) return vocabulary.failure();
  auto documents = documents_of(object, *tokens);
  if (!documents) return documents.failure();
  tokens_ = *tokens;
  vocabulary_ = *vocabulary;
  documents_ = std::move(*documents);
  return success();
}

status token_file::map() {
  if (file_->size() / width_ != tokens_ || file_->size() % width_ != 0)
    return error{"expected " + text_of(tokens_) + " tokens of " + text_of(width_) +
                 " bytes, as the .json beside it says, got " + text_of(file_->size()) + " bytes"};
  void* mapped = ::mmap(nullptr, file_->size(), PROT_READ, MAP_SHARED, file_->descriptor(), 0);
  if (mapped == MAP_FAILED)
    return error{std::string{"cannot be mapped into memory: "} + std::strerror(errno)};
  ids_ = mapped;
  return success();
}

status token_file::check_ids(std::uint32_t model_vocabulary) {
  const auto limit = std::min<std::uint64_t>(vocabulary_, model_vocabulary);
  const auto bad = width_ == 2
                       ? first_beyond(static_cast<const std::uint16_t*>(ids_), tokens_, limit)
                       : first_beyond(static_cast<const std::uint32_t*>(ids_), tokens_, limit);
  if (bad) {
    std::int64_t id = 0;
    copy(*bad, {&id, 1});
    return error{"token " + text_of(*bad) + " is " + std::to_string(id) + ", but " +
                 (limit == vocabulary_ ? "the vocabulary of the .json beside it is "
                                       : "model.vocabulary is ") +
                 text_of(limit)};
  }
  hash_ = XXH64(ids_, file_->size(), width_);
  hash_ = XXH64(documents_.data(), documents_.size() * sizeof(std::uint64_t), hash_);
  return success();
}

void token_file::copy(std::uint64_t first, std::span<std::int64_t> to) const {
  if (width_ == 2)
    widen<std::uint16_t>(ids_, first, to);
  else
    widen<std::uint32_t>(ids_, first, to);
}

}  // namespace rrfp::data
