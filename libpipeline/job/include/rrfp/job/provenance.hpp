/// Where each key of a job was set, so that an error found later still names file and line.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include <rrfp/schedule/result.hpp>

namespace rrfp::job {

/// One place that sets keys.
struct origin {
  /// "FILE:LINE" or "--set KEY=VALUE".
  std::string where;
  /// An override shows its key already.
  bool shows_key = false;

  /// "WHERE: KEY: message".
  error blame(std::string_view key, const std::string& message) const;
};

/// A line of a file; 0: the file as a whole.
origin at_line(const std::string& source, std::uint32_t line);

class provenance {
 public:
  explicit provenance(std::string source) : source_(std::move(source)) {}

  void record(const std::string& key, origin from) { set_[key] = std::move(from); }
  /// Not set in the job: `file`, which the job names in `naming`, has it.
  void adopt(const std::string& key, std::string file, std::string naming) {
    adopted_[key] = {std::move(file), std::move(naming)};
  }
  /// Errors from here on speak of this variant.
  void enter_variant(std::string name) { variant_ = std::move(name); }

  /// An error about `key`. If the key was not set, the place of `related`, which it does not fit,
  /// is named instead, or of the key that names the file which has it.
  error blame(std::string_view key, const std::string& message,
              std::string_view related = {}) const;

  /// "WHERE: KEY", or the override, of all keys that were set.
  std::map<std::string, std::string, std::less<>> places() const;

  /// For messages: " (the default)" if nothing set the key, " (from FILE)" if it was adopted.
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
