/// Records where each key of a job was set, so that errors found later can name file and line.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include <rrfp/base/result.hpp>

namespace rrfp::job {

/// A place that sets keys.
struct origin {
  /// "FILE:LINE" or "--set KEY=VALUE".
  std::string place;
  /// Whether `place` already contains the key, as an override does.
  bool shows_key = false;

  /// "PLACE: KEY: message".
  error blame(std::string_view key, const std::string& message) const;
};

/// A line of a file; 0: the file as a whole.
origin at_line(const std::string& source, std::uint32_t line);

class provenance {
 public:
  explicit provenance(std::string source) : source_(std::move(source)) {}

  void record(const std::string& key, origin from) { set_[key] = std::move(from); }
  /// The job does not set `key`; its value comes from `file`, which the key `naming` names.
  void adopt(const std::string& key, std::string file, std::string naming) {
    adopted_[key] = {std::move(file), std::move(naming)};
  }
  /// Later errors name this variant.
  void enter_variant(std::string name) { variant_ = std::move(name); }

  /// An error about `key`. If the job does not set the key, the error names the place of `related`,
  /// the key that it conflicts with, or of the key that names the file with its value.
  error blame(std::string_view key, const std::string& message,
              std::string_view related = {}) const;

  /// The place of each key that was set: "PLACE: KEY", or the override.
  std::map<std::string, std::string, std::less<>> places() const;

  /// Where a value is from: " (the default)" if no one set the key, " (from FILE)" if adopted.
  std::string note(std::string_view key) const;

 private:
  struct adoption {
    std::string file;
    std::string naming;
  };

  std::string source_;
  std::string variant_;
  std::map<std::string, origin, std::less<>> set_;
  std::map<std::string, adoption, std::less<>> adopted_;
};

}  // namespace rrfp::job
