/// A job of several rrfp-jitter-node processes that the first of them starts on this machine.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <rrfp/base/result.hpp>
#include <rrfp/job/job.hpp>

namespace rrfp::apps {

class node_job {
 public:
  /// Starts the rrfp-jitter-node beside this program. `folder` gets the job file, the JSON log and
  /// what the nodes print.
  static result<std::unique_ptr<node_job>> start(const job::job& j, std::uint32_t nodes,
                                                 const std::string& folder);
  /// Kills all processes that still run.
  ~node_job();
  node_job(const node_job&) = delete;
  node_job& operator=(const node_job&) = delete;

  /// The complete lines that the JSON log got since the last call.
  std::vector<std::string> new_lines();
  bool is_over();
  /// Once it is over. The error is the last line that the nodes printed, of the kind of the exit
  /// code.
  status outcome() const;
  /// The process of a node; nothing while there is none.
  std::optional<pid_t> pid_of(std::uint32_t node) const;

 private:
  explicit node_job(const std::string& folder);

  const std::string log_path_;
  const std::string output_path_;
  pid_t launcher_ = -1;
  int state_ = 0;
  bool is_over_ = false;
  std::streamoff read_ = 0;  ///< of the log
};

}  // namespace rrfp::apps
