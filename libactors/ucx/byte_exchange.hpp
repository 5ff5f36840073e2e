/// Where the bytes of rank channels wait for their receive(), or the other way round.
///
/// A mailbox belongs to one member of one group that lives on this node. It comes into being with
/// the first of its channel and its first arrival, for the others of a group may be quicker.
/// Thread-safe: the progress thread (or a sender of the same process) puts in, the ranks' threads
/// take out.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <rrfp/schedule/ids.hpp>
#include <rrfp/schedule/result.hpp>

#include "slab_pool.hpp"

namespace rrfp::actors::ucx {

class byte_mailbox {
 public:
  byte_mailbox(std::shared_ptr<slab_pool> pool, std::size_t unexpected_bytes_max)
      : pool_(std::move(pool)), unexpected_bytes_max_(unexpected_bytes_max) {}

  /// Copies `data` to the receive() that waits for it, else to a slab. False: there is no room.
  bool arrive(rank_id from, std::uint64_t tag, std::span<const std::byte> data);
  /// The same for data that already lies in a slab.
  bool arrive(rank_id from, std::uint64_t tag, slab data, std::size_t bytes);

  /// As tp_coord::rank_channel::receive().
  result<std::optional<std::size_t>> receive(rank_id from, std::uint64_t tag,
                                             std::span<std::byte> into,
                                             std::chrono::milliseconds limit);

  /// Which node each member lives on, and from now on what `ended` of them is an error.
  void set_members(std::vector<node_id> nodes, const std::map<node_id, std::string>& ended);
  /// Every receive() from `node` that nothing has arrived for is an error, for good.
  void end(node_id node, const std::string& why);
  /// Every receive() that nothing has arrived for is an error that says `why`, for good.
  void close(const std::string& why);

 private:
  using clock = std::chrono::steady_clock;
  using key = std::pair<rank_id, std::uint64_t>;

  /// One receive() under way; lies on its stack. `settled` is the last that is written to it.
  struct waiting {
    key what;
    std::span<std::byte> into;
    std::size_t bytes;
    std::optional<error> failed;
    std::atomic<bool> settled = false;
  };
  struct arrived {
    slab data;
    std::size_t bytes;
  };

  std::optional<arrived> take_arrived(const key& what);
  waiting* take_waiting(const key& what);
  void settle(waiting& w, std::optional<error> failed);
  const std::string* ending_of(rank_id from) const;

  const std::shared_ptr<slab_pool> pool_;
  const std::size_t unexpected_bytes_max_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::size_t sleeping_ = 0;
  std::list<waiting*> waiting_;
  std::map<key, std::deque<arrived>> unexpected_;
  std::size_t unexpected_bytes_ = 0;
  std::vector<node_id> nodes_;
  std::map<node_id, std::string> ended_;
  std::optional<std::string> closed_;
};

class byte_exchange {
 public:
  byte_exchange(std::shared_ptr<slab_pool> pool, std::size_t unexpected_bytes_max)
      : pool_(std::move(pool)), unexpected_bytes_max_(unexpected_bytes_max) {}

  /// Null when there are too many, which no honest peer brings about.
  std::shared_ptr<byte_mailbox> mailbox(std::uint32_t group, rank_id member);
  /// The mailbox of a member that lives here, with the nodes of all members.
  std::shared_ptr<byte_mailbox> open(std::uint32_t group, rank_id member,
                                     std::vector<node_id> nodes);
  void end(node_id node, const std::string& why);
  void close();

 private:
  static constexpr std::size_t mailboxes_max = 4096;

  const std::shared_ptr<slab_pool> pool_;
  const std::size_t unexpected_bytes_max_;
  std::mutex mutex_;
  std::map<std::pair<std::uint32_t, rank_id>, std::shared_ptr<byte_mailbox>> mailboxes_;
  std::map<node_id, std::string> ended_;
  bool closed_ = false;
};

}  // namespace rrfp::actors::ucx
