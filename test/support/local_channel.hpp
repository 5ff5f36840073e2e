/// Rank channels between threads of one process, with a mailbox instead of a transport.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include <rrfp/tp_coord/rank_channel.hpp>

namespace rrfp::testing {

class local_post_office {
 public:
  using key = std::tuple<std::uint32_t /*from*/, std::uint32_t /*to*/, std::uint64_t /*tag*/>;

  status put(const key& k, std::span<const std::byte> bytes) {
    {
      const std::lock_guard lock(mutex_);
      if (!closed_.empty()) return error{closed_};
      messages_[k].assign(bytes.begin(), bytes.end());
      ++sent_;
    }
    changed_.notify_all();
    return success();
  }

  result<std::optional<std::size_t>> take(const key& k, std::span<std::byte> into,
                                          std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    const auto deadline = std::chrono::steady_clock::now() + limit;
    changed_.wait_until(lock, deadline, [&] { return messages_.contains(k) || !closed_.empty(); });
    const auto found = messages_.extract(k);
    if (found.empty()) {
      if (!closed_.empty()) return error{closed_};
      return std::optional<std::size_t>();
    }
    const auto& bytes = found.mapped();
    if (bytes.size() > into.size()) {
      return error{"a message of " + std::to_string(bytes.size()) + " bytes, room for " +
                   std::to_string(into.size())};
    }
    std::copy(bytes.begin(), bytes.end(), into.begin());
    return std::optional(bytes.size());
  }

  void close(const std::string& why) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_.empty()) closed_ = "the channel is closed: " + why;
    }
    changed_.notify_all();
  }

  std::size_t sent() const {
    const std::lock_guard lock(mutex_);
    return sent_;
  }
  /// Messages that were not received.
  std::size_t left() const {
    const std::lock_guard lock(mutex_);
    return messages_.size();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<key, std::vector<std::byte>> messages_;
  std::string closed_;
  std::size_t sent_ = 0;
};

class local_channel final : public tp_coord::rank_channel {
 public:
  local_channel(rank_id rank, std::uint32_t size, std::shared_ptr<local_post_office> post)
      : rank_(rank), size_(size), post_(std::move(post)) {}

  rank_id rank() const override { return rank_; }
  std::uint32_t size() const override { return size_; }
  status send(rank_id to, std::uint64_t tag, std::span<const std::byte> bytes) override {
    return post_->put({rank_.value(), to.value(), tag}, bytes);
  }
  result<std::optional<std::size_t>> receive(rank_id from, std::uint64_t tag,
                                             std::span<std::byte> into,
                                             std::chrono::milliseconds limit) override {
    return post_->take({from.value(), rank_.value(), tag}, into, limit);
  }
  void close(const std::string& why) override { post_->close(why); }

 private:
  rank_id rank_;
  std::uint32_t size_;
  std::shared_ptr<local_post_office> post_;
};

}  // namespace rrfp::testing
