/// Unusable samples: the reason, and what to do with them (data.bad_samples, data.too_long).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include <rrfp/base/result.hpp>
#include <rrfp/job/options.hpp>

namespace rrfp::data {

enum class bad_reason : std::uint8_t {
  not_json,
  wrong_key,             ///< missing, or of the wrong type
  empty_text,            ///< nothing to predict
  image_count_mismatch,  ///< the text has neither one <image> per image nor none
  missing_image,         ///< or unreadable
  corrupt_image,
  large_image,
  too_long,
};
inline constexpr std::size_t bad_reasons = 8;

struct bad_sample {
  bad_reason reason = bad_reason::not_json;
  /// The expected and the actual value.
  std::string message;
};

template <class T>
using sample_or = std::variant<T, bad_sample>;

/// Null if the sample is usable.
template <class T>
const bad_sample* fault_of(const sample_or<T>& sample) {
  return std::get_if<bad_sample>(&sample);
}

/// "1 sample", "2 samples".
std::string count_of(std::uint64_t n, const std::string& noun);

/// Applies the job's rules to unusable samples, and counts those left out.
class sample_filter {
 public:
  explicit sample_filter(const job::data_options& data) : data_(data) {}

  /// Counts the sample as left out, or returns the error for it. `location` is "FILE:LINE".
  status refuse(const std::string& location, const bad_sample& bad);
  /// How many of the sample's `tokens` to keep: all, sequence_length, or 0 if the sample is left
  /// out. Error: the sample is too long and the job does not allow that.
  result<std::uint64_t> fit(const std::string& location, std::uint64_t tokens);
  /// Counts a sample that is used without its end.
  void count_cut() { ++cut_; }

  /// The error if the files have no usable sample.
  error no_samples_error(const std::vector<std::string>& files) const;

  /// "3 left out: 2 not JSON, 1 too long"; empty if no sample was left out or cut.
  std::string summary() const;
  /// `used`, ", " and the summary, if there is one.
  std::string report(const std::string& used) const;

 private:
  std::uint64_t left_out() const;

  job::data_options data_;
  std::array<std::uint64_t, bad_reasons> counts_{};
  std::uint64_t cut_ = 0;
};

}  // namespace rrfp::data
