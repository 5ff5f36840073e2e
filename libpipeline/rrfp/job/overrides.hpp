/// Settings of a job with their places, to be applied to other jobs: an entry of an experiment.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/job/job.hpp>
#include <rrfp/job/key_table.hpp>

namespace rrfp::job {

/// The absolute, normalized form of a path that is relative to `folder`.
std::string absolute_path(const std::filesystem::path& folder, const std::string& path);

class overrides {
 public:
  /// The schema must outlive this.
  explicit overrides(const schema& known) : known_(&known) {}

  /// Reads `section.key = value`. Relative paths are relative to the folder of `source`. A section
  /// itself sets nothing. Error: "SOURCE:LINE: KEY: ...", as for a job file.
  status add(const entry& e, const std::string& source);

  /// Short forms first, so that the keys that they set take precedence. The places become those of
  /// the job, so check_job() names them. The job must have the same schema.
  void apply_to(job& j) const;

  /// Whether any setting sets this key itself, not by a short form.
  bool sets(std::string_view key) const { return set_by_.contains(key); }
  /// The values of the keys that take a text, as written, in the order of the file.
  std::vector<std::string> texts() const;
  bool empty() const { return all_.empty(); }

 private:
  const schema* known_;
  std::vector<setting> all_;
  std::map<std::string, std::string, std::less<>> set_by_;  ///< as job::set_by
};

}  // namespace rrfp::job
