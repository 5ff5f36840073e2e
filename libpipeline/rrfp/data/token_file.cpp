#include "token_file.hpp"

#include <xxhash.h>

#include <algorithm>
#include <bit>

#include <rrfp/base/printable.hpp>
#include <rrfp/io/parse_json.hpp>

namespace rrfp::data {

namespace {

static_assert(std::endian::native == std::endian::little, "ids on disk are little-endian");

using nlohmann::json;

constexpr std::uint64_t tokens_at_once = std::uint64_t{1} << 20;

std::string sidecar_of(const std::string& path) {
  return path.substr(0, path.size() - std::string_view{".bin"}.size()) + ".json";
}

/// A positive integer of the sidecar; the error names the key.
result<std::uint64_t> number_of(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found != object.end() && found->is_number_unsigned() && found->get<std::uint64_t>() > 0)
    return found->get<std::uint64_t>();
  return error{"\"" + std::string{key} + "\": expected an integer > 0, got " +
               (found == object.end() ? "nothing" : printable(found->dump()))};
}

status expect(const json& object, const char* key, const json& wanted) {
  const auto found = object.find(key);
  if (found != object.end() && *found == wanted) return success();
  return error{"\"" + std::string{key} + "\": expected " + wanted.dump() + ", got " +
               (found == object.end() ? "nothing" : printable(found->dump()))};
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
      return error{
          "\"documents\": entry " + std::to_string(begins.size()) + ": expected " +
          (begins.empty() ? "0" : std::to_string(least) + " to " + std::to_string(tokens - 1)) +
          ", got " + printable(begin.dump())};
    begins.push_back(begin.get<std::uint64_t>());
  }
  return begins;
}

/// Fills `to` with the ids from `first` on.
template <class Id>
status read_ids(const input_file& file, std::uint64_t first, std::span<Id> to) {
  return file.read(first * sizeof(Id),
                   {reinterpret_cast<std::uint8_t*>(to.data()), to.size_bytes()});
}

template <class Id>
status widen(const input_file& file, std::uint64_t first, std::span<std::int64_t> to) {
  std::vector<Id> ids(to.size());
  if (auto read = read_ids(file, first, std::span{ids}); !read)
    return within(file.path(), read.failure());
  std::ranges::copy(ids, to.begin());
  return success();
}

}  // namespace

result<std::unique_ptr<const token_file>> token_file::open(const std::string& path,
                                                           std::uint32_t model_vocabulary) {
  if (!path.ends_with(".bin")) return error{path + ": expected a name that ends in .bin"};
  std::unique_ptr<token_file> made{new token_file};
  auto file = input_file::open(path);
  if (!file) return within(path, file.failure());
  made->file_ = std::move(*file);
  const auto sidecar = sidecar_of(path);
  if (auto read = made->read_sidecar(sidecar); !read) return within(sidecar, read.failure());
  if (auto good = made->check_size(); !good) return within(path, good.failure());
  if (auto good = made->check_ids(model_vocabulary); !good) return within(path, good.failure());
  return std::unique_ptr<const token_file>{std::move(made)};
}

status token_file::read_sidecar(const std::string& path) {
  auto file = input_file::open(path);
  if (!file) return file.failure();
  if ((*file)->size() > sidecar_bytes_max)
    return error{"expected at most " + std::to_string(sidecar_bytes_max) + " bytes, got " +
                 std::to_string((*file)->size())};
  std::string text((*file)->size(), '\0');
  const std::span bytes{reinterpret_cast<std::uint8_t*>(text.data()), text.size()};
  if (auto read = (*file)->read(0, bytes); !read) return read;
  const auto parsed = parse_json(text);
  if (const auto* fault = std::get_if<json_fault>(&parsed))
    return error{"expected a JSON object, got a file that is " + fault->message()};
  const auto& object = std::get<json>(parsed);
  if (!object.is_object()) return error{"expected a JSON object"};
  if (auto good = expect(object, "format", "rrfp-tokens"); !good) return good;
  if (auto good = expect(object, "version", 1); !good) return good;
  if (expect(object, "dtype", "uint16"))
    width_ = 2;
  else if (auto is_wide = expect(object, "dtype", "uint32"))
    width_ = 4;
  else
    return error{"\"dtype\": expected \"uint16\" or \"uint32\"" +
                 is_wide.message().substr(is_wide.message().rfind(", got"))};
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

status token_file::check_size() const {
  if (file_->size() / width_ != tokens_ || file_->size() % width_ != 0)
    return error{"expected " + std::to_string(tokens_) + " tokens of " + std::to_string(width_) +
                 " bytes, as its .json file says, got " + std::to_string(file_->size()) + " bytes"};
  return success();
}

template <class Id>
status token_file::check_ids_of(std::uint64_t limit, std::string_view limit_name) {
  const std::unique_ptr<XXH64_state_t, XXH_errorcode (*)(XXH64_state_t*)> hash{XXH64_createState(),
                                                                               XXH64_freeState};
  XXH64_reset(hash.get(), width_);
  std::vector<Id> block;
  for (std::uint64_t begin = 0; begin < tokens_; begin += block.size()) {
    block.resize(std::min(tokens_at_once, tokens_ - begin));
    if (auto read = read_ids(*file_, begin, std::span{block}); !read) return read;
    const auto bad = std::find_if(block.begin(), block.end(), [&](Id id) { return id >= limit; });
    if (bad != block.end())
      return error{"token " +
                   std::to_string(begin + static_cast<std::uint64_t>(bad - block.begin())) +
                   " is " + std::to_string(*bad) + ", but " + std::string{limit_name} +
                   std::to_string(limit)};
    XXH64_update(hash.get(), block.data(), block.size() * sizeof(Id));
  }
  hash_ = XXH64_digest(hash.get());
  return success();
}

status token_file::check_ids(std::uint32_t model_vocabulary) {
  const auto limit = std::min<std::uint64_t>(vocabulary_, model_vocabulary);
  const std::string_view limit_name =
      limit == vocabulary_ ? "the vocabulary of its .json file is " : "model.vocabulary is ";
  if (auto good = width_ == 2 ? check_ids_of<std::uint16_t>(limit, limit_name)
                              : check_ids_of<std::uint32_t>(limit, limit_name);
      !good)
    return good;
  hash_ = XXH64(documents_.data(), documents_.size() * sizeof(std::uint64_t), hash_);
  return success();
}

status token_file::copy(std::uint64_t first, std::span<std::int64_t> to) const {
  return width_ == 2 ? widen<std::uint16_t>(*file_, first, to)
                     : widen<std::uint32_t>(*file_, first, to);
}

}  // namespace rrfp::data
