/// One NCCL communicator: created and called without blocking, watched for errors, aborted once.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>

#include <nccl.h>

#include <rrfp/base/ids.hpp>
#include <rrfp/base/result.hpp>

namespace rrfp::nccl {

/// Errors read "ncclAllReduce on device 1, rank 0 of 2: unhandled system error: ...".
class communicator {
 public:
  communicator(rank_id rank, std::uint32_t size, int device, std::chrono::milliseconds limit);
  communicator(const communicator&) = delete;
  communicator& operator=(const communicator&) = delete;
  /// Aborts work that is still in progress; the owner must have waited for any work that matters.
  ~communicator();

  /// Waits for all ranks to join, for at most the limit.
  status init(const ncclUniqueId& id);
  bool is_made() const;

  /// Makes one NCCL call, or one group of calls, and waits until NCCL has accepted it; does not
  /// wait for its completion.
  template <class Call>
  status call(const char* name, Call make_call) {
    std::unique_lock lock{mutex_};
    if (!failure_.empty()) return error{failure_};
    return settle(lock, name, make_call(comm_));
  }

  /// Thread-safe. The watcher aborts the communicator soon after.
  void request_abort(const std::string& why);
  status health() const;

  /// Called by the watcher: checks for an asynchronous error, and aborts if there is one or if an
  /// abort was requested.
  void poll();

 private:
  using clock = std::chrono::steady_clock;

  /// Waits until NCCL no longer reports the call as in progress.
  status settle(std::unique_lock<std::mutex>& lock, const char* name, ncclResult_t code);
  std::string text_of(const char* name, ncclResult_t code) const;
  void end();

  const rank_id rank_;
  const std::uint32_t size_;
  const int device_;
  const std::chrono::milliseconds limit_;
  mutable std::mutex mutex_;
  ncclComm_t comm_ = nullptr;
  bool is_made_ = false;
  bool abort_requested_ = false;
  std::string failure_;
};

/// Adds the communicator to those that the watcher thread of the process polls.
void watch(const std::shared_ptr<communicator>& c);

}  // namespace rrfp::nccl
