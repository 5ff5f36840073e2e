/// Collective operations of the ranks of one stage, over buffers in memory.
///
/// Every rank makes the same calls in the same order; each call says with a fingerprint what it
/// belongs to. Ranks that disagree, a rank that does not come within the limit, and abort() all end
/// in an error on every rank, never in a hang. After any error the group is of no more use: every
/// later call fails with the same text, and a new group must be made.
///
/// Sums run in the order of the ranks, ((x0 + x1) + x2) + ..., whatever the implementation, so all
/// ranks get the same bits, and so do runs that place the ranks differently.
///
/// One thread drives an object; abort() may be called from any other. Buffers are host memory,
/// unless on_device() says otherwise, and need no alignment beyond that of their element.
#pragma once

#include <cstddef>
#include <string>

#include <rrfp/schedule/result.hpp>
#include <rrfp/tp_coord/order/fingerprint.hpp>

namespace rrfp::tp_coord {

enum class reduction : std::uint8_t { sum, max };

class collective {
 public:
  collective(rank_id rank, std::uint32_t size) : rank_(rank), size_(size) {}
  collective(const collective&) = delete;
  collective& operator=(const collective&) = delete;
  virtual ~collective() = default;

  rank_id rank() const { return rank_; }
  std::uint32_t size() const { return size_; }

  /// What the calls from here on belong to.
  void begin(const call_site& site);

  /// In place. int64 sums wrap around; a NaN in a maximum wins.
  status all_reduce(reduction op, void* buffer, std::size_t count, element type);
  /// `all` has room for size() * count elements; those of rank r begin at r * count.
  status all_gather(const void* mine, void* all, std::size_t count, element type);
  /// `buffer` of every rank becomes that of `root`.
  status broadcast(void* buffer, std::size_t count, element type, rank_id root);
  status barrier();

  /// Whether buffers are memory of a device. Calls then put their work into the stream of the
  /// calling thread, and an error may show later: in health().
  virtual bool on_device() const { return false; }
  /// What ended the group while nobody called it. Thread-safe.
  virtual status health() const { return success(); }

  /// Ends the call that any rank of the group waits in, and all later ones, with an error that says
  /// `why`. Thread-safe; does not wait.
  virtual void abort(const std::string& why) = 0;

 protected:
  struct request {
    fingerprint print;
    const std::byte* in = nullptr;  ///< all-gather only
    std::byte* out = nullptr;
  };

 private:
  /// `r` is legal and there is more than one rank.
  virtual status run(const request& r) = 0;
  status call(fingerprint print, const void* in, void* out);

  rank_id rank_;
  std::uint32_t size_;
  call_site site_;
  std::uint32_t ordinal_ = 0;
};

}  // namespace rrfp::tp_coord
