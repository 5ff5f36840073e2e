#include "bad_sample.hpp"

#include <numeric>

#include <rrfp/base/check.hpp>

namespace rrfp::data {

namespace {

constexpr const char* reason_names[] = {
    "not JSON",      "missing key",   "empty text",      "image count mismatch",
    "missing image", "corrupt image", "image too large", "too long"};
static_assert(std::size(reason_names) == bad_reasons);

}  // namespace

std::string count_of(std::uint64_t n, const std::string& noun) {
  return std::to_string(n) + " " + noun + (n == 1 ? "" : "s");
}

status sample_filter::refuse(const std::string& location, const bad_sample& bad) {
  if (data_.when_bad == job::bad_samples::stop) return error{location + ": " + bad.message};
  ++counts_[static_cast<std::size_t>(bad.reason)];
  return success();
}

result<std::uint64_t> sample_filter::fit(const std::string& location, std::uint64_t tokens) {
  if (tokens <= data_.sequence_length) return tokens;
  switch (data_.when_too_long) {
    case job::too_long::stop:
      return error{location + ": expected at most data.sequence_length = " +
                   std::to_string(data_.sequence_length) + " tokens, got " +
                   std::to_string(tokens) + " (data.too_long may be \"cut\" or \"skip\")"};
    case job::too_long::cut: return std::uint64_t{data_.sequence_length};
    case job::too_long::skip:
      ++counts_[static_cast<std::size_t>(bad_reason::too_long)];
      return std::uint64_t{0};
  }
  RRFP_CHECK(false, "a known rule for samples that are too long");
  return std::uint64_t{0};
}

error sample_filter::no_samples_error(const std::vector<std::string>& files) const {
  return error{"'" + files.front() + (files.size() > 1 ? "' and the others hold" : "' holds") +
               " no sample" + (left_out() == 0 ? "" : " that can be used: " + summary())};
}

std::uint64_t sample_filter::left_out() const {
  return std::accumulate(counts_.begin(), counts_.end(), std::uint64_t{0});
}

std::string sample_filter::summary() const {
  std::string text;
  if (left_out() > 0) {
    text = std::to_string(left_out()) + " left out: ";
    const char* separator = "";
    for (std::size_t r = 0; r < bad_reasons; ++r) {
      if (counts_[r] == 0) continue;
      text += separator + std::to_string(counts_[r]) + " " + reason_names[r];
      separator = ", ";
    }
  }
  if (cut_ > 0) text += (text.empty() ? "" : "; ") + std::to_string(cut_) + " cut";
  return text;
}

std::string sample_filter::report(const std::string& used) const {
  const auto rest = summary();
  return rest.empty() ? used : used + ", " + rest;
}

}  // namespace rrfp::data
