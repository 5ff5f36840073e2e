/// One NCCL communicator: made and called without blocking, watched, ended once.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>

#include <nccl.h>

#include <rrfp/schedule/ids.hpp>
#include <rrfp/schedule/result.hpp>

namespace rrfp::nccl {

/// "ncclAllReduce on device 1, rank 0 of 2: unhandled system error: ...".
class communicator {
 public:
  communicator(rank_id rank, std::uint32_t size, int device, std::chrono::milliseconds limit);
  communicator(const communicator&) = delete;
  communicator& operator=(const communicator&) = delete;
  /// Ends what is still under way: a group whose work matters is idle by then.
  ~communicator();

  /// Waits for all ranks to do the same, at most as long as the limit.
  status init(const ncclUniqueId& id);
  bool is_made() const;

  /// Makes one call of NCCL, or a group of them, on the communicator and waits until NCCL has taken
  /// it; not until it is done.
  template <class Call>
  status call(const char* name, Call what) {
    std::unique_lock lock{mutex_};
    if (!failure_.empty()) return error{failure_};
    return settle(lock, name, what(comm_));
  }

  /// Thread-safe; the watcher ends the communicator soon.
  void ask_to_end(const std::string& why);
  status health() const;

  /// The watcher's: looks for an asynchronous error, ends what has one or shall end.
  void look();

 private:
  using clock = std::chrono::steady_clock;

  /// Until NCCL has done what it said is in progress.
  status settle(std::unique_lock<std::mutex>& lock, const char* name, ncclResult_t said);
  std::string text_of(const char* name, ncclResult_t said) const;
  void end();

  const rank_id rank_;
  const std::uint32_t size_;
  const int device_;
  const std::chrono::milliseconds limit_;
  mutable std::mutex mutex_;
  ncclComm_t comm_ = nullptr;
  bool is_made_ = false;
  bool shall_end_ = false;
  std::string failure_;
};

/// Registers with the thread that watches all communicators of the process.
void watch(const std::shared_ptr<communicator>& what);

}  // namespace rrfp::nccl
