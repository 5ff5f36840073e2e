/// Samples that cannot be used: why, and what the job wants done about them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include <rrfp/job/options.hpp>
#include <rrfp/schedule/result.hpp>

namespace rrfp::data {

enum class bad_reason : std::uint8_t {
  not_json,
  wrong_key,      ///< missing, or not what it should be
  empty_text,     ///< nothing to predict
  wrong_places,   ///< as many <image> as images, or none
  missing_image,  ///< or unreadable
  corrupt_image,
  large_image,
  too_long,
};
inline constexpr std::size_t bad_reasons = 8;

/// "not JSON".
const char* name(bad_reason reason);

struct bad_sample {
  bad_reason reason = bad_reason::not_json;
  /// What was expected and what came.
  std::string what;
};

template <class T>
using sample_or = std::variant<T, bad_sample>;

/// Null if there is nothing wrong.
template <class T>
const bad_sample* fault_of(const sample_or<T>& sample) {
  return std::get_if<bad_sample>(&sample);
}

/// "1 sample", "2 samples".
std::string count_of(std::uint64_t n, const std::string& noun);

/// Decides over each bad sample, and counts those left out.
class sample_gate {
 public:
  explicit sample_gate(const job::data_options& data) : data_(data) {}

  /// The sample is left out, or the error for it. `where` is "FILE:LINE".
  status refuse(const std::string& where, const bad_sample& bad);
  /// How many of the sample's `tokens` stay: all, sequence_length of them or, if it is left out, 0;
  /// or the error for it.
  result<std::uint64_t> fit(const std::string& where, std::uint64_t tokens);
  /// A sample is in use, its end is not.
  void note_cut() { ++cut_; }

  /// What to say if no sample of the files is left.
  error nothing_in(const std::vector<std::string>& files) const;

  /// "3 left out: 2 not JSON, 1 too long"; empty if none is, and none was cut.
  std::string summary() const;

 private:
  std::uint64_t left_out() const;

  job::data_options data_;
  std::array<std::uint64_t, bad_reasons> counts_{};
  std::uint64_t cut_ = 0;
};

}  // namespace rrfp::data
