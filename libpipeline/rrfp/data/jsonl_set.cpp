#include "sample_set.hpp"

#include <functional>
#include <stdexcept>
#include <utility>

#include "bad_sample.hpp"
#include "epoch_order.hpp"
#include "input_file.hpp"
#include "json_line.hpp"

namespace rrfp::data {

namespace {

struct document {
  line_place place;
  std::uint32_t tokens = 0;
};

class jsonl_set final : public sample_set {
 public:
  explicit jsonl_set(const source_config& config)
      : text_key_(config.data.text_key), end_token_(config.end_token), filter_(config.data) {}

  status read(const std::vector<std::string>& paths) {
    if (auto all = lines_.read(paths, std::bind_front(&jsonl_set::add, this)); !all) return all;
    if (documents_.empty()) return filter_.no_samples_error(paths);
    return success();
  }

  std::uint32_t count() const override { return static_cast<std::uint32_t>(documents_.size()); }
  sample_size size(std::uint32_t sample) const override {
    const auto tokens = documents_[sample].tokens;
    return {tokens, tokens - 1};
  }

  void load(std::uint32_t sample, std::span<std::int64_t> inputs, std::span<std::int64_t> targets,
            std::vector<at::Tensor>* /*images*/) const override {
    const auto& place = documents_[sample].place;
    const auto read = read_document(lines_.load(place), text_key_);
    const auto* text = std::get_if<std::string>(&read);
    // The text may be longer than the sample, which may have been cut.
    if (text == nullptr || text->size() + 1 < inputs.size())
      throw std::runtime_error(lines_.where(place) + ": has changed since it was opened");
    for (std::size_t i = 0; i < inputs.size(); ++i)
      inputs[i] = i < text->size() ? static_cast<unsigned char>((*text)[i]) : end_token_;
    set_targets(inputs, targets, -1);
  }

  std::uint64_t fingerprint() const override { return lines_.hash(); }
  std::string report() const override {
    return filter_.report(count_of(documents_.size(), "document") + " in " +
                          count_of(lines_.files(), "file"));
  }

 private:
  status add(std::string_view line, const line_place& place) {
    const auto where = lines_.where(place);
    auto text = read_document(line, text_key_);
    if (std::holds_alternative<std::string>(text) && std::get<std::string>(text).empty())
      text = bad_sample{bad_reason::empty_text, "\"" + text_key_ + "\": expected text, got none"};
    if (const auto* bad = fault_of(text)) return filter_.refuse(where, *bad);
    const auto whole = std::get<std::string>(text).size() + 1;
    const auto tokens = filter_.fit(where, whole);
    if (!tokens) return tokens.failure();
    if (*tokens == 0) return success();
    if (*tokens == 1)  // cut to a single byte
      return filter_.refuse(
          where, {bad_reason::too_long, "cut to one token, which leaves nothing to predict"});
    if (documents_.size() == samples_max)
      return error{where + ": expected at most " + std::to_string(samples_max) + " samples"};
    if (*tokens < whole) filter_.count_cut();
    documents_.push_back({place, static_cast<std::uint32_t>(*tokens)});
    return success();
  }

  const std::string text_key_;
  const std::int64_t end_token_;
  sample_filter filter_;
  line_index lines_;
  std::vector<document> documents_;
};

}  // namespace

result<std::unique_ptr<const sample_set>> open_jsonl(const source_config& config) {
  auto set = std::make_unique<jsonl_set>(config);
  if (auto read = set->read(config.data.jsonl); !read) return read.failure();
  return std::unique_ptr<const sample_set>{std::move(set)};
}

}  // namespace rrfp::data
