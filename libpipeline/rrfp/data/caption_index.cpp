#include "caption_index.hpp"

#include <algorithm>
#include <utility>

#include "epoch_order.hpp"

namespace rrfp::data {

namespace {

/// Bytes of the text, or the patches of an image.
struct piece {
  std::string_view text;
  std::uint64_t patches = 0;
};

sample_or<std::vector<piece>> pieces_of(std::string_view text,
                                        std::span<const std::uint64_t> patches) {
  std::vector<std::string_view> texts;
  auto rest = text;
  for (auto mark = rest.find(image_mark); mark != rest.npos; mark = rest.find(image_mark)) {
    texts.push_back(rest.substr(0, mark));
    rest.remove_prefix(mark + image_mark.size());
  }
  texts.push_back(rest);
  const auto marks = texts.size() - 1;
  if (text.size() == marks * image_mark.size())
    return bad_sample{bad_reason::empty_text, "expected text, got none"};
  if (marks != 0 && marks != patches.size())
    return bad_sample{bad_reason::image_count_mismatch,
                      "expected " + std::string{image_mark} + " once for each of " +
                          std::to_string(patches.size()) + " images or nowhere, got it " +
                          std::to_string(marks) + " times"};
  std::vector<piece> pieces;
  std::size_t image = 0;
  if (marks == 0)
    for (; image < patches.size(); ++image) pieces.push_back({{}, patches[image]});
  for (const auto part : texts) {
    pieces.push_back({part});
    if (image < patches.size()) pieces.push_back({{}, patches[image++]});
  }
  return pieces;
}

std::uint64_t tokens_of(const std::vector<piece>& pieces) {
  std::uint64_t tokens = 1;  // the end token
  for (const auto& p : pieces) tokens += p.text.size() + p.patches;
  return tokens;
}

/// The first `kept` tokens; empty if that would cut an image.
std::vector<std::int64_t> first_tokens(const std::vector<piece>& pieces, std::uint64_t kept,
                                       std::int64_t image_token, std::int64_t end_token) {
  std::vector<std::int64_t> tokens;
  for (const auto& p : pieces) {
    if (p.patches > kept - tokens.size()) return {};
    tokens.insert(tokens.end(), p.patches, image_token);
    for (const char c : p.text.substr(0, kept - tokens.size()))
      tokens.push_back(static_cast<unsigned char>(c));
  }
  if (tokens.size() < kept) tokens.push_back(end_token);
  return tokens;
}

}  // namespace

result<caption_index> caption_index::make(const source_config& config) {
  auto scaler = image_scaler::make(config);
  if (!scaler) return scaler.failure();
  return caption_index{config, std::move(*scaler)};
}

caption_index::caption_index(const source_config& config, image_scaler scaler)
    : scaler_(std::move(scaler)),
      image_token_(config.image_token),
      end_token_(config.end_token),
      blind_(config.data.blind) {}

result<bool> caption_index::add(const std::string& where, std::string_view text,
                                std::span<const compute::image_size> images,
                                sample_filter& filter) {
  const auto refused = [&](const bad_sample& bad) -> result<bool> {
    if (auto left_out = filter.refuse(where, bad); !left_out) return left_out.failure();
    return false;
  };
  std::vector<compute::image_size> fitted;
  std::vector<std::uint64_t> patches;
  for (const auto& image : images) {
    fitted.push_back(scaler_.fitted(image));
    patches.push_back(scaler_.patches(fitted.back()));
  }
  const auto pieces = pieces_of(text, patches);
  if (const auto* bad = fault_of(pieces)) return refused(*bad);
  const auto whole = tokens_of(std::get<0>(pieces));
  const auto kept = filter.fit(where, whole);
  if (!kept) return kept.failure();
  if (*kept == 0) return false;
  const auto inputs = first_tokens(std::get<0>(pieces), *kept, image_token_, end_token_);
  // No token predicts the first one.
  const auto predicted = [&](std::int64_t token) { return token != image_token_; };
  const auto texts = std::count_if(inputs.begin(), inputs.end(), predicted);
  const auto counted = inputs.empty() ? 0 : texts - (blind_ || predicted(inputs.front()) ? 1 : 0);
  if (counted <= 0)
    return refused({bad_reason::too_long,
                    "cut to " + std::to_string(*kept) + " tokens, the images leave no text"});
  if (entries_.size() == samples_max)
    return error{where + ": expected at most " + std::to_string(samples_max) + " samples"};
  if (*kept < whole) filter.count_cut();
  const auto tokens = static_cast<std::uint32_t>(*kept);
  entries_.push_back(
      {{blind_ ? static_cast<std::uint32_t>(texts) : tokens, static_cast<std::uint32_t>(counted)},
       tokens,
       static_cast<std::uint32_t>(fitted.size()),
       images_.size()});
  images_.insert(images_.end(), fitted.begin(), fitted.end());
  return true;
}

std::span<const compute::image_size> caption_index::all_images(const entry& e) const {
  return std::span{images_}.subspan(e.first_image, e.images);
}

std::span<const compute::image_size> caption_index::images(std::uint32_t sample) const {
  if (blind_) return {};
  return all_images(entries_[sample]);
}

bool caption_index::fill(std::uint32_t sample, std::string_view text,
                         std::span<std::int64_t> inputs, std::span<std::int64_t> targets) const {
  const auto& e = entries_[sample];
  std::vector<std::uint64_t> patches;
  for (const auto& size : all_images(e)) patches.push_back(scaler_.patches(size));
  const auto pieces = pieces_of(text, patches);
  if (fault_of(pieces) != nullptr) return false;
  auto tokens = first_tokens(std::get<0>(pieces), e.kept, image_token_, end_token_);
  if (blind_) std::erase(tokens, image_token_);
  if (tokens.size() != inputs.size()) return false;
  std::copy(tokens.begin(), tokens.end(), inputs.begin());
  set_targets(inputs, targets, image_token_);
  return true;
}

}  // namespace rrfp::data
