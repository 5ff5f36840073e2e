/// Mailboxes where the bytes of rank channels wait for a receive(), or a receive() for its bytes.
///
/// A mailbox belongs to one member, on this node, of one group. The first arrival or the opening of
/// the channel creates it, because other members may send before this one opens its channel.
/// Thread-safe: the progress thread (or a sender of the same process) delivers, and the ranks'
/// threads receive.
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

#include <rrfp/base/ids.hpp>
#include <rrfp/base/result.hpp>
#include <rrfp/transport/slab_pool.hpp>

namespace rrfp::actors::ucx {

class byte_mailbox {
 public:
  byte_mailbox(std::shared_ptr<slab_pool> pool, std::size_t unexpected_bytes_max)
      : pool_(std::move(pool)), unexpected_bytes_max_(unexpected_bytes_max) {}

  /// Copies `data` to the receive() that waits for it, otherwise keeps it: in `holder`, if that
  /// holds it already, else in a slab. False: no room is left.
  bool arrive(rank_id from, std::uint64_t tag, std::span<const std::byte> data, slab holder = {});

  /// As tp_coord::rank_channel::receive().
  result<std::optional<std::size_t>> receive(rank_id from, std::uint64_t tag,
                                             std::span<std::byte> into,
                                             std::chrono::milliseconds limit);

  /// Sets the node of each member, and the nodes that have ended.
  void set_members(std::vector<node_id> nodes, const std::map<node_id, std::string>& ended);
  /// Lets each receive() from `node` fail with `why`, unless its message has arrived.
  void end(node_id node, const std::string& why);
  /// Lets every receive() fail with `why`, unless its message has arrived.
  void close(const std::string& why);

 private:
  using clock = std::chrono::steady_clock;
  using key = std::pair<rank_id, std::uint64_t>;

  /// One receive() in progress, on its stack. `settled` is written last.
  struct waiting {
    key wanted;
    std::span<std::byte> into;
    std::size_t bytes;
    std::optional<error> failed;
    std::atomic<bool> settled = false;
  };
  struct arrived {
    slab data;
    std::size_t bytes;
  };

  std::optional<arrived> take_arrived(const key& wanted);
  waiting* take_waiting(const key& wanted);
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

  /// Null if there are too many; a correct peer never causes that.
  std::shared_ptr<byte_mailbox> mailbox(std::uint32_t group, rank_id member);
  /// The mailbox of a member on this node; `nodes` are those of all members.
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
