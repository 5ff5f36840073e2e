#include <rrfp/safetensors/collection.hpp>

#include <filesystem>

#include <rrfp/base/printable.hpp>
#include <rrfp/io/text_file.hpp>

#include "header.hpp"

namespace rrfp::safetensors {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Whether the path stays within the folder. Symbolic links are allowed, since model hubs keep
/// their files elsewhere and link to them.
bool stays_inside(const fs::path& name) {
  const auto plain = name.lexically_normal();
  return !plain.empty() && !plain.is_absolute() && *plain.begin() != ".." && plain != ".";
}

}  // namespace

result<collection> collection::open(const std::string& path) {
  std::error_code unknown;
  if (!fs::is_directory(path, unknown)) return open_file(path);
  const auto single = fs::path{path} / single_file_name;
  if (fs::exists(single, unknown)) return open_file(single.string());
  const auto index = fs::path{path} / index_file_name;
  if (fs::exists(index, unknown)) return open_index(index.string());
  const auto expected = path + ": expected " + std::string{single_file_name} + " or " +
                        std::string{index_file_name} + " in the folder, found ";
  for (const auto* other : {"pytorch_model.bin", "pytorch_model.bin.index.json"})
    if (fs::exists(fs::path{path} / other, unknown))
      return error{
          expected + other +
          ", which rrfp does not read: save_pretrained() of transformers writes safetensors"};
  return error{expected + "neither"};
}

result<collection> collection::open_file(const std::string& path) {
  auto opened = file::open(path);
  if (!opened) return opened.failure();
  collection c;
  for (const auto& t : (*opened)->tensors()) c.tensors_[t.name] = {*opened, &t};
  c.files_.push_back(std::move(*opened));
  return c;
}

result<collection> collection::open_index(const std::string& path) {
  const auto wrong = [&](const std::string& message) { return error{path + ": " + message}; };
  const auto text = io::read_text_file(path, header_bytes_max, "an index");
  if (!text) return text.failure();
  const auto index = parse_strict(*text);
  if (!index) return wrong(index.message());
  const auto map = index->is_object() ? index->find("weight_map") : index->end();
  if (map == index->end() || !map->is_object())
    return wrong("expected an object 'weight_map' with the file of each tensor");

  const auto folder = fs::path{path}.parent_path();
  collection c;
  std::map<std::string, std::shared_ptr<const file>> files;
  for (const auto& [name, entry] : map->items()) {
    if (!entry.is_string())
      return wrong("tensor '" + printable(name) + "': expected a file name, got " +
                   printable(entry.dump()));
    const auto& shard = entry.get_ref<const std::string&>();
    auto& in = files[shard];
    if (in == nullptr) {
      if (!stays_inside(shard))
        return wrong("tensor '" + printable(name) + "': expected a file in the folder, got '" +
                     printable(shard) + "'");
      auto opened = file::open((folder / shard).string());
      if (!opened) return wrong("tensor '" + printable(name) + "': " + opened.message());
      in = std::move(*opened);
    }
    const auto* const found = in->find(name);
    if (found == nullptr)
      return wrong("tensor '" + printable(name) + "': expected in " + shard +
                   ", which does not have it");
    c.tensors_[name] = {in, found};
  }
  for (auto& [name, opened] : files) c.files_.push_back(std::move(opened));
  return c;
}

const located_tensor* collection::find(std::string_view name) const {
  const auto at = tensors_.find(name);
  return at == tensors_.end() ? nullptr : &at->second;
}

}  // namespace rrfp::safetensors
