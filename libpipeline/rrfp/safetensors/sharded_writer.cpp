#include <rrfp/safetensors/sharded_writer.hpp>

#include <cstdio>
#include <filesystem>
#include <utility>

#include <nlohmann/json.hpp>

#include <rrfp/base/check.hpp>
#include <rrfp/io/atomic_file.hpp>
#include <rrfp/safetensors/collection.hpp>

namespace rrfp::safetensors {

namespace fs = std::filesystem;

namespace {

/// "model-00002-of-00010.safetensors"
std::string shard_name(std::size_t number, std::size_t count) {
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", number + 1, count);
  return name;
}

status create_empty_folder(const std::string& folder) {
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) return error{folder + ": cannot create the folder: " + failed.message()};
  for (const auto name : {single_file_name, index_file_name})
    if (fs::exists(fs::path{folder} / name, failed))
      return error{folder + ": expected a folder without a model, found " + std::string{name}};
  return success();
}

}  // namespace

sharded_writer::sharded_writer(std::string folder, string_map metadata, shards all)
    : folder_(std::move(folder)), metadata_(std::move(metadata)), shards_(std::move(all)) {
  for (std::size_t i = 0; i < shards_.size(); ++i)
    for (const auto& t : shards_[i].tensors) {
      order_.push_back(t.name);
      shard_of_[t.name] = i;
      bytes_ += t.size();
    }
}

sharded_writer::~sharded_writer() {
  open_.reset();
  if (finished_) return;
  for (const auto& path : committed_paths_) std::remove(path.c_str());
}

result<sharded_writer::shards> sharded_writer::divide(std::vector<tensor_spec> tensors,
                                                      std::uint64_t shard_bytes_max) {
  // Check all tensors together first: two of one name could end up in different shards.
  if (auto placed = lay_out(tensors); !placed) return placed.failure();
  std::vector<std::vector<tensor_spec>> parts(1);
  std::uint64_t bytes = 0;
  for (auto& t : tensors) {
    const auto size = *byte_size(t.type, t.shape);
    if (!parts.back().empty() && bytes + size > shard_bytes_max) {
      parts.emplace_back();
      bytes = 0;
    }
    parts.back().push_back(std::move(t));
    bytes += size;
  }
  shards all;
  for (auto& part : parts) {
    const auto name =
        parts.size() == 1 ? std::string{single_file_name} : shard_name(all.size(), parts.size());
    all.push_back({name, *lay_out(std::move(part))});
  }
  return all;
}

result<std::unique_ptr<sharded_writer>> sharded_writer::create(const std::string& folder,
                                                               std::vector<tensor_spec> tensors,
                                                               string_map metadata,
                                                               std::uint64_t shard_bytes_max) {
  auto divided = divide(std::move(tensors), shard_bytes_max);
  if (!divided) return error{folder + ": " + divided.message()};
  if (auto made = create_empty_folder(folder); !made) return made.failure();
  return std::unique_ptr<sharded_writer>{
      new sharded_writer{folder, std::move(metadata), std::move(*divided)}};
}

std::string sharded_writer::path_of(std::string_view file) const {
  return (fs::path{folder_} / file).string();
}

status sharded_writer::finish_shard() {
  if (open_ == nullptr) return success();
  if (auto done = open_->finish(); !done) return done;
  committed_paths_.push_back(path_of(shards_[shards_begun_ - 1].file));
  open_.reset();
  return success();
}

status sharded_writer::advance_to(std::size_t number) {
  RRFP_CHECK(number + 1 >= shards_begun_, "tensors are written in the order that the writer gives");
  while (shards_begun_ < number + 1) {
    if (auto done = finish_shard(); !done) return done;
    const auto& next = shards_[shards_begun_++];
    auto opened =
        writer::create(path_of(next.file), {next.tensors.begin(), next.tensors.end()}, metadata_);
    if (!opened) return opened.failure();
    open_ = std::move(*opened);
  }
  return success();
}

status sharded_writer::write(std::string_view name, std::span<const std::byte> bytes) {
  const auto at = shard_of_.find(name);
  RRFP_CHECK(at != shard_of_.end(), "a tensor that was declared");
  if (auto there = advance_to(at->second); !there) return there;
  return open_->write(name, bytes);
}

status sharded_writer::finish() {
  if (auto there = advance_to(shards_.size() - 1); !there) return there;
  if (auto done = finish_shard(); !done) return done;
  if (shards_.size() > 1) {
    const auto index = path_of(index_file_name);
    if (auto written = io::write_atomically(index, index_text()); !written) return written;
  }
  finished_ = true;
  return success();
}

std::string sharded_writer::index_text() const {
  nlohmann::json index{{"metadata", {{"total_size", bytes_}}}};
  auto& map = index["weight_map"] = nlohmann::json::object();
  for (const auto& s : shards_)
    for (const auto& t : s.tensors) map[t.name] = s.file;
  return index.dump(2) + "\n";
}

}  // namespace rrfp::safetensors
