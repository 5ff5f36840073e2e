/// An empty file that says that the job is over, while node 0 still tells the others.
///
/// If node 0 is killed then, its replacement, which has the same port, finds the file and tells the
/// others in its place; the last of them may have ended already. Node 0 removes the file when
/// nobody is left to be told, so that a later run of the same job does not find it. It lies in the
/// folder of the run_key_file, and is named by the port of the rendezvous and by the job.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace rrfp::actors::control {

class end_mark {
 public:
  end_mark(std::uint16_t port, std::uint64_t job_hash);

  /// Without the file, because the folder is full, for example, the replacement waits in vain.
  void set() const;
  /// Whether a process of this user has set it within `age_max`.
  bool is_set(std::chrono::milliseconds age_max) const;
  void remove() const;

 private:
  std::string path_;
};

}  // namespace rrfp::actors::control
