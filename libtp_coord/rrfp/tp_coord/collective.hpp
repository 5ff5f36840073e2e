/// Collective operations of the ranks of one stage, over buffers in memory.
///
/// Every rank makes the same calls in the same order. Each call carries a fingerprint of the launch
/// that it belongs to. Ranks that disagree, a rank that does not arrive within the limit, and
/// abort() all end in an error on every rank, never in a hang. After any error the group is
/// unusable: every later call fails with the same text, and a new group must be made.
///
/// Sums run in rank order, ((x0 + x1) + x2) + ..., in every implementation. All ranks therefore get
/// the same bits, and so do runs that place the ranks differently.
///
/// One thread drives an object; any thread may call abort(). Buffers are host memory, unless
/// on_device() is true, and need only the alignment of their element.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include <rrfp/base/result.hpp>
#include <rrfp/tp_coord/fingerprint.hpp>

namespace rrfp::tp_coord {

/// Options of collectives over device memory.
struct collective_options {
  /// Maximum time that a rank waits for the others to join, and for the library to accept a call.
  std::chrono::milliseconds limit{30'000};
  /// Sums run in rank order instead of the order of the library.
  bool in_rank_order = true;
  /// Before each call, the ranks compare their fingerprints, which makes them wait for each other.
  /// Ranks that disagree get an error that names both calls, where the library would hang.
  bool compare_calls = false;
};

class collective {
 public:
  struct request {
    fingerprint print;
    const std::byte* in = nullptr;  ///< all-gather only
    std::byte* out = nullptr;
  };

  collective(rank_id rank, std::uint32_t size) : rank_(rank), size_(size) {}
  collective(const collective&) = delete;
  collective& operator=(const collective&) = delete;
  virtual ~collective() = default;

  rank_id rank() const { return rank_; }
  std::uint32_t size() const { return size_; }

  /// Sets the launch that the following calls belong to.
  void begin(const call_site& site);

  /// Reduces in place; `op` is sum or max. int64 sums wrap around; a NaN in a maximum wins.
  status all_reduce(operation op, void* buffer, std::size_t count, element type);
  /// `all` has room for size() * count elements; those of rank r begin at r * count.
  status all_gather(const void* mine, void* all, std::size_t count, element type);
  /// Copies `buffer` of `root` to `buffer` of every rank.
  status broadcast(void* buffer, std::size_t count, element type, rank_id root);
  status barrier();

  /// Whether buffers are device memory. Calls then enqueue their work into the stream of the
  /// calling thread, and an error may appear only later, in health().
  virtual bool on_device() const { return false; }
  /// The error that broke the group, if any. Thread-safe.
  virtual status health() const = 0;

  /// Ends the current call of every rank in the group, and all later calls, with an error that
  /// contains `why`. Thread-safe; does not wait.
  virtual void abort(const std::string& why) = 0;

 private:
  /// Runs a valid request in a group of more than one rank.
  virtual status run(const request& r) = 0;
  status call(fingerprint print, const void* in, void* out);

  rank_id rank_;
  std::uint32_t size_;
  call_site site_;
  std::uint32_t ordinal_ = 0;
};

}  // namespace rrfp::tp_coord
