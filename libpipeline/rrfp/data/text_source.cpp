#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <rrfp/compute/keyed_hash.hpp>
#include <rrfp/data/text_source.hpp>

namespace rrfp::data {

namespace {

namespace fs = std::filesystem;

/// The regular files under a folder, in order of path.
result<std::vector<fs::path>> files_under(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code failure;
  fs::recursive_directory_iterator it(folder, failure);
  for (; !failure && it != fs::recursive_directory_iterator(); it.increment(failure)) {
    std::error_code gone;
    if (it->is_regular_file(gone)) files.push_back(it->path());
  }
  if (failure)
    return error{"folder '" + folder.string() + "' cannot be read: " + failure.message()};
  if (files.empty()) return error{"folder '" + folder.string() + "' holds no regular file"};
  std::ranges::sort(files);
  return files;
}

result<std::vector<fs::path>> all_files(const std::vector<std::string>& paths) {
  std::vector<fs::path> files;
  for (const auto& text : paths) {
    const fs::path path(text);
    std::error_code failure;
    const auto file_status = fs::status(path, failure);
    if (file_status.type() == fs::file_type::not_found)
      return error{"'" + text + "' does not exist"};
    if (fs::is_directory(file_status)) {
      auto under = files_under(path);
      if (!under) return under.failure();
      files.insert(files.end(), under->begin(), under->end());
    } else if (fs::is_regular_file(file_status)) {
      files.push_back(path);
    } else {
      return error{"'" + text + "' is neither a regular file nor a folder" +
                   (failure ? ": " + failure.message() : std::string())};
    }
  }
  return files;
}

/// Appends a file to the corpus.
status read_file(const fs::path& path, std::uint32_t vocabulary, std::uint64_t bytes_max,
                 std::vector<std::uint8_t>& corpus) {
  const auto unreadable = [&](const std::string& why) {
    return error{"'" + path.string() + "' cannot be read: " + why};
  };
  std::error_code failure;
  const auto size = fs::file_size(path, failure);
  if (failure) return unreadable(failure.message());
  if (size > bytes_max || corpus.size() > bytes_max - size)
    return error{"with '" + path.string() + "' the text is longer than the limit of " +
                 std::to_string(bytes_max) + " bytes"};
  std::ifstream file(path, std::ios::binary);
  if (!file) return unreadable("cannot open it (permissions?)");
  const auto begin = corpus.size();
  corpus.resize(begin + size);
  file.read(reinterpret_cast<char*>(corpus.data() + begin), static_cast<std::streamsize>(size));
  if (static_cast<std::uintmax_t>(file.gcount()) != size)
    return unreadable("the file became shorter");
  const auto bad = std::find_if(corpus.begin() + static_cast<std::ptrdiff_t>(begin), corpus.end(),
                                [&](std::uint8_t byte) { return byte >= vocabulary; });
  if (bad == corpus.end()) return success();
  return error{"'" + path.string() + "' holds the byte " + std::to_string(*bad) +
               ", but model.vocabulary is " + std::to_string(vocabulary)};
}

class text_source final : public source {
 public:
  text_source(const source_config& config, std::vector<std::uint8_t> corpus)
      : config_(config), corpus_(std::move(corpus)) {}

  compute::microbatch load(step_id step, microbatch_id mb) const override {
    const std::int64_t sequences = config_.data.microbatch_size;
    const std::int64_t length = config_.data.sequence_length;
    compute::microbatch batch;
    batch.inputs = at::empty({sequences, length}, at::kLong);
    batch.targets = at::empty({sequences, length}, at::kLong);
    batch.tokens = sequences * length;
    auto* inputs = batch.inputs.mutable_data_ptr<std::int64_t>();
    auto* targets = batch.targets.mutable_data_ptr<std::int64_t>();
    const auto windows = corpus_.size() - static_cast<std::uint64_t>(length);
    for (std::int64_t s = 0; s < sequences; ++s) {
      const auto hash = compute::keyed_hash(
          {static_cast<std::uint64_t>(compute::random_use::text_window), config_.seed, step.value(),
           mb.value(), static_cast<std::uint64_t>(s)});
      // The upper half of hash * windows is uniform over [0, windows); the corpus is far below
      // 2^32, so the upper 32 bits of the hash are enough and the product fits.
      const auto first = ((hash >> 32) * windows) >> 32;
      const auto* bytes = corpus_.data() + first;
      for (std::int64_t t = 0; t < length; ++t) {
        *inputs++ = bytes[t];
        *targets++ = bytes[t + 1];
      }
    }
    return batch;
  }

  compute::microbatch_layout layout(step_id /*step*/, microbatch_id /*mb*/) const override {
    compute::microbatch_layout layout;
    layout.lengths.assign(config_.data.microbatch_size, config_.data.sequence_length);
    return layout;
  }

  std::int64_t step_tokens(step_id /*step*/) const override {
    return std::int64_t{config_.microbatches} * config_.data.microbatch_size *
           config_.data.sequence_length;
  }

  std::uint64_t fingerprint() const override { return XXH64(corpus_.data(), corpus_.size(), 0); }
  /// Empty: no text is left out.
  std::string report() const override { return {}; }

 private:
  const source_config config_;
  const std::vector<std::uint8_t> corpus_;
};

}  // namespace

result<std::shared_ptr<const source>> open_text(const source_config& config,
                                                std::uint64_t bytes_max) {
  if (config.data.text.empty()) return error{"names no file or folder"};
  auto files = all_files(config.data.text);
  if (!files) return files.failure();
  std::vector<std::uint8_t> corpus;
  for (const auto& path : *files)
    if (auto read = read_file(path, config.vocabulary, bytes_max, corpus); !read)
      return read.failure();
  // The target of the last token is the byte after it.
  const auto least = std::uint64_t{config.data.sequence_length} + 1;
  if (corpus.size() < least)
    return error{"'" + config.data.text.front() + "'" +
                 (files->size() > 1 ? " and the others hold " : " holds ") +
                 std::to_string(corpus.size()) +
                 " bytes; data.sequence_length = " + std::to_string(config.data.sequence_length) +
                 " needs at least " + std::to_string(least)};
  return std::shared_ptr<const source>{
      std::make_shared<const text_source>(config, std::move(corpus))};
}

}  // namespace rrfp::data
