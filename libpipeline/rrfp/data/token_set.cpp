#include "sample_set.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <xxhash.h>

#include "bad_sample.hpp"
#include "epoch_order.hpp"
#include "token_file.hpp"

namespace rrfp::data {

namespace {

struct document_span {
  std::uint64_t begin = 0;
  std::uint32_t tokens = 0;
};

/// The samples of one file.
struct part {
  std::unique_ptr<const token_file> file;
  /// Number of the first sample among those of all files.
  std::uint64_t first = 0;
  std::uint64_t samples = 0;
  /// Documents in use; empty: the samples are windows.
  std::vector<document_span> documents;
};

class token_set final : public sample_set {
 public:
  explicit token_set(const source_config& config)
      : window_(config.data.sequence_length), filter_(config.data) {}

  status read(const std::vector<std::string>& paths, std::uint32_t vocabulary) {
    for (const auto& path : paths) {
      auto file = token_file::open(path, vocabulary);
      if (!file) return file.failure();
      const auto hash = (*file)->hash();
      fingerprint_ = XXH64(&hash, sizeof hash, fingerprint_);
      part p;
      p.file = std::move(*file);
      p.first = samples_;
      if (auto cut = p.file->documents().empty() ? cut_windows(p) : cut_documents(p); !cut)
        return cut;
      samples_ += p.samples;
      if (samples_ > samples_max)
        return error{path + ": expected at most " + std::to_string(samples_max) + " samples, got " +
                     std::to_string(samples_)};
      if (p.samples > 0) parts_.push_back(std::move(p));
    }
    if (parts_.empty()) return filter_.no_samples_error(paths);
    return success();
  }

  std::uint32_t count() const override { return static_cast<std::uint32_t>(samples_); }

  sample_size size(std::uint32_t sample) const override {
    const auto& p = part_of(sample);
    if (p.documents.empty()) return {window_, window_};
    const auto tokens = p.documents[sample - p.first].tokens;
    return {tokens, tokens - 1};
  }

  void load(std::uint32_t sample, std::span<std::int64_t> inputs, std::span<std::int64_t> targets,
            std::vector<at::Tensor>* /*images*/) const override {
    const auto& p = part_of(sample);
    if (p.documents.empty()) {
      const auto begin = (sample - p.first) * window_;
      copy(*p.file, begin, inputs);
      copy(*p.file, begin + 1, targets);
    } else {
      copy(*p.file, p.documents[sample - p.first].begin, inputs);
      set_targets(inputs, targets, -1);
    }
  }

  bool are_windows() const override {
    return std::ranges::all_of(parts_, [](const part& p) { return p.documents.empty(); });
  }
  std::uint64_t fingerprint() const override { return fingerprint_; }
  std::string report() const override {
    std::uint64_t tokens = 0;
    for (const auto& p : parts_) tokens += p.file->tokens();
    return filter_.report(count_of(tokens, "token") + ", " + count_of(samples_, "sample"));
  }

 private:
  static void copy(const token_file& from, std::uint64_t first, std::span<std::int64_t> to) {
    if (const auto copied = from.copy(first, to); !copied)
      throw std::runtime_error(copied.message());
  }

  /// The target of the last token of a window is the token after it.
  status cut_windows(part& p) const {
    p.samples = (p.file->tokens() - 1) / window_;
    if (p.samples > 0) return success();
    return error{p.file->path() + ": holds " + std::to_string(p.file->tokens()) +
                 " tokens; data.sequence_length = " + std::to_string(window_) + " needs at least " +
                 std::to_string(std::uint64_t{window_} + 1)};
  }

  status cut_documents(part& p) {
    const auto& begins = p.file->documents();
    for (std::size_t d = 0; d < begins.size(); ++d) {
      const auto where = p.file->path() + ": document " + std::to_string(d);
      const auto end = d + 1 < begins.size() ? begins[d + 1] : p.file->tokens();
      const auto length = end - begins[d];
      auto tokens = filter_.fit(where, length);
      if (!tokens) return tokens.failure();
      if (*tokens == 1) {
        const bad_sample lone{bad_reason::empty_text, "expected at least 2 tokens, got 1"};
        if (auto skipped = filter_.refuse(where, lone); !skipped) return skipped;
      } else if (*tokens > 1) {
        if (*tokens < length) filter_.count_cut();
        p.documents.push_back({begins[d], static_cast<std::uint32_t>(*tokens)});
      }
    }
    p.samples = p.documents.size();
    return success();
  }

  const part& part_of(std::uint32_t sample) const {
    return *std::prev(std::ranges::upper_bound(parts_, sample, {}, &part::first));
  }

  const std::uint32_t window_;
  sample_filter filter_;
  std::vector<part> parts_;
  std::uint64_t samples_ = 0;
  std::uint64_t fingerprint_ = 0;
};

}  // namespace

result<std::unique_ptr<const sample_set>> open_tokens(const source_config& config) {
  auto set = std::make_unique<token_set>(config);
  if (auto read = set->read(config.data.tokens, config.vocabulary); !read) return read.failure();
  return std::unique_ptr<const sample_set>{std::move(set)};
}

}  // namespace rrfp::data
