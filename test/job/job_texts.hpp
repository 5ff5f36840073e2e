/// Small jobs for the tests.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <rrfp/job/job.hpp>
#include <rrfp/policies/registry.hpp>

namespace rrfp::testing {

using texts = std::vector<std::string>;

/// The error line of a job, or "accepted".
inline std::string refusal(const std::string& text, const texts& overrides = {},
                           job::job_use use = job::job_use::simulate,
                           const job::schema& keys = job::runtime_schema()) {
  const auto made = job::parse_job(text, "x.toml", policies::registry(), overrides, use, keys);
  return made ? "accepted" : made.message();
}

/// A job that must be valid.
inline job::job good(const std::string& text, const texts& overrides = {},
                     job::job_use use = job::job_use::simulate,
                     const job::schema& keys = job::runtime_schema()) {
  const auto made = job::parse_job(text, "x.toml", policies::registry(), overrides, use, keys);
  if (!made) throw std::runtime_error(made.message());
  return *made;
}

/// A temporary folder that is removed at the end of the test.
class scratch_folder {
 public:
  scratch_folder() {
    std::string name = (std::filesystem::temp_directory_path() / "rrfp_job_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no scratch folder");
    path_ = name;
  }
  scratch_folder(const scratch_folder&) = delete;
  scratch_folder& operator=(const scratch_folder&) = delete;
  ~scratch_folder() { std::filesystem::remove_all(path_); }

  std::string at(const std::string& name) const { return (path_ / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream{at(name)} << text;
    return at(name);
  }

 private:
  std::filesystem::path path_;
};

}  // namespace rrfp::testing
