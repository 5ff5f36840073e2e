#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include <rrfp/tp_coord/channel_collective.hpp>

#include "reduce.hpp"

namespace rrfp::tp_coord {

namespace {

using clock = std::chrono::steady_clock;
using bytes = std::span<const std::byte>;

constexpr auto head_bytes = encoded_fingerprint().size();

/// The messages of one call. The tag of a message is: number of the call * phases + phase.
enum class phase : std::uint8_t { head, scatter, gather };
constexpr std::uint64_t phases = 4;

class channel_collective final : public collective {
 public:
  channel_collective(std::shared_ptr<rank_channel> channel, const channel_options& options)
      : collective(channel->rank(), channel->size()),
        options_(options),
        channel_(std::move(channel)),
        frames_(size()),
        lengths_(size()) {}

  status health() const override {
    const std::lock_guard lock(mutex_);
    return failure_.empty() ? success() : error{failure_};
  }
  void abort(const std::string& why) override {
    {
      const std::lock_guard lock(mutex_);
      if (failure_.empty()) failure_ = why;
    }
    channel_->close(why);
  }

 private:
  template <class Work>
  status for_others(Work work) {
    for (std::uint32_t r = 0; r < size(); ++r) {
      if (r == me()) continue;
      if (auto ok = work(r); !ok) return ok;
    }
    return success();
  }

  status run(const request& r) override {
    if (auto healthy = health(); !healthy) return healthy;
    auto done = perform(r);
    ++calls_;
    // The other ranks need not wait for their own limits.
    if (!done) abort(done.message());
    return done;
  }

  status perform(const request& r) {
    deadline_ = clock::now() + options_.limit;
    now_ = r.print;
    if (auto ok = exchange_heads(r); !ok) return ok;
    if (auto ok = check_heads(r.print); !ok) return ok;
    if (r.print.bytes() <= options_.direct_bytes_max) return direct(r);
    const auto width = bytes_of(r.print.type);
    switch (r.print.op) {
      case operation::sum:
      case operation::max: return reduce_in_parts(r);
      case operation::gather:
        std::memcpy(r.out + me() * r.print.bytes(), r.in, r.print.bytes());
        return gather_parts(r.out, r.print.count, width, false);
      case operation::broadcast: return broadcast_large(r);
      case operation::barrier: break;
    }
    return success();
  }

  /// The data that this rank sends with the head of a small call.
  bytes small_data(const request& r) const {
    const auto n = r.print.bytes();
    if (n == 0 || n > options_.direct_bytes_max) return {};
    if (r.print.op == operation::gather) return {r.in, n};
    if (r.print.op == operation::broadcast && r.print.root != rank()) return {};
    return {r.out, n};
  }

  status exchange_heads(const request& r) {
    const auto head = encode(r.print);
    const auto data = small_data(r);
    auto& mine = frames_[me()];
    mine.assign(head.begin(), head.end());
    mine.insert(mine.end(), data.begin(), data.end());
    lengths_[me()] = mine.size();
    auto sent = for_others([&](std::uint32_t to) { return send(to, phase::head, mine); });
    if (!sent) return sent;
    return for_others([&](std::uint32_t from) -> status {
      auto& frame = frames_[from];
      frame.resize(head_bytes + options_.direct_bytes_max);
      auto length = receive_some(from, phase::head, frame);
      if (!length) return length.failure();
      lengths_[from] = *length;
      return success();
    });
  }

  status check_heads(const fingerprint& mine) {
    std::vector<fingerprint> prints;
    for (std::uint32_t r = 0; r < size(); ++r) {
      const auto print = decode(bytes(frames_[r]).first(lengths_[r]));
      if (!print)
        return error{"rank " + std::to_string(r) + " sent a message without a valid fingerprint"};
      prints.push_back(*print);
    }
    if (const auto wrong = disagreement(prints)) return error{*wrong};
    for (std::uint32_t r = 0; r < size(); ++r) {
      const bool sends_no_data = mine.bytes() > options_.direct_bytes_max ||
                                 (mine.op == operation::broadcast && mine.root.value() != r);
      const auto expected = head_bytes + (sends_no_data ? 0 : mine.bytes());
      if (lengths_[r] == expected) continue;
      return error{"rank " + std::to_string(r) + " sent " + std::to_string(lengths_[r]) +
                   " bytes for " + to_string(mine) + ", expected " + std::to_string(expected) +
                   "; does it use another direct_bytes_max?"};
    }
    return success();
  }

  /// Runs a small call, after the data of all ranks has arrived.
  status direct(const request& r) {
    const auto n = r.print.bytes();
    if (n == 0) return success();
    const auto data_of = [&](std::uint32_t k) { return frames_[k].data() + head_bytes; };
    switch (r.print.op) {
      case operation::sum:
      case operation::max:
        for (std::uint32_t k = 1; k < size(); ++k) {
          accumulate(r.print.op, r.print.type, data_of(0), data_of(k), r.print.count);
        }
        std::memcpy(r.out, data_of(0), n);
        break;
      case operation::gather:
        for (std::uint32_t k = 0; k < size(); ++k) std::memcpy(r.out + k * n, data_of(k), n);
        break;
      case operation::broadcast: std::memcpy(r.out, data_of(r.print.root.value()), n); break;
      case operation::barrier: break;
    }
    return success();
  }

  status reduce_in_parts(const request& r) {
    const auto width = bytes_of(r.print.type);
    const auto piece = [&](std::uint32_t k) {
      const auto p = part_of(r.print.count, k, size());
      return std::span<std::byte>(r.out + p.begin * width, p.count * width);
    };
    auto sent = for_others([&](std::uint32_t to) { return send(to, phase::scatter, piece(to)); });
    if (!sent) return sent;
    const auto mine = piece(me());
    const auto count = mine.size() / width;
    sum_.resize(mine.size());
    part_.resize(mine.size());
    for (std::uint32_t k = 0; k < size(); ++k) {
      auto& into = k == 0 ? sum_ : part_;
      if (k == me()) {
        std::copy(mine.begin(), mine.end(), into.begin());
      } else if (auto ok = receive(k, phase::scatter, into); !ok) {
        return ok;
      }
      if (k > 0) accumulate(r.print.op, r.print.type, sum_.data(), part_.data(), count);
    }
    std::copy(sum_.begin(), sum_.end(), mine.begin());
    return gather_parts(r.out, r.print.count, width, true);
  }

  /// Sends this rank's piece of `all` to the others and receives theirs. The pieces are either
  /// parts of one buffer of `count` elements, or consecutive buffers of `count` elements each.
  status gather_parts(std::byte* all, std::size_t count, std::size_t width,
                      bool parts_of_one_buffer) {
    const auto piece = [&](std::uint32_t k) {
      const auto p = parts_of_one_buffer ? part_of(count, k, size()) : part{k * count, count};
      return std::span<std::byte>(all + p.begin * width, p.count * width);
    };
    auto sent = for_others([&](std::uint32_t to) { return send(to, phase::gather, piece(me())); });
    if (!sent) return sent;
    return for_others(
        [&](std::uint32_t from) { return receive(from, phase::gather, piece(from)); });
  }

  status broadcast_large(const request& r) {
    const std::span<std::byte> all(r.out, r.print.bytes());
    if (r.print.root != rank()) return receive(r.print.root.value(), phase::gather, all);
    return for_others([&](std::uint32_t to) { return send(to, phase::gather, all); });
  }

  status send(std::uint32_t to, phase p, bytes data) {
    return channel_->send(rank_id{to}, tag(p), data);
  }

  /// Receives a message of exactly this length.
  status receive(std::uint32_t from, phase p, std::span<std::byte> into) {
    auto length = receive_some(from, p, into);
    if (!length) return length.failure();
    if (*length == into.size()) return success();
    return error{"rank " + std::to_string(from) + " sent " + std::to_string(*length) +
                 " bytes for " + to_string(now_) + ", expected " + std::to_string(into.size())};
  }

  result<std::size_t> receive_some(std::uint32_t from, phase p, std::span<std::byte> into) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - clock::now());
    auto got = channel_->receive(rank_id{from}, tag(p), into,
                                 std::max(left, std::chrono::milliseconds{0}));
    if (!got) return got.failure();
    if (!*got) return text_of_missing(from, p);
    return **got;
  }

  /// The error after the time limit; it names every rank whose message has not arrived.
  error text_of_missing(std::uint32_t from, phase p) {
    auto absent = "rank " + std::to_string(from);
    std::vector<std::byte> dropped(head_bytes + now_.bytes() + options_.direct_bytes_max);
    for (auto r = from + 1; r < size(); ++r) {
      if (r == me()) continue;
      const auto got = channel_->receive(rank_id{r}, tag(p), dropped, std::chrono::milliseconds{0});
      if (!got || !*got) absent += ", rank " + std::to_string(r);
    }
    return error{"rank " + std::to_string(me()) + " waited " +
                 std::to_string(options_.limit.count()) + " ms in " + to_string(now_) + " for " +
                 absent};
  }

  std::uint64_t tag(phase p) const { return calls_ * phases + static_cast<std::uint64_t>(p); }
  std::uint32_t me() const { return rank().value(); }

  const channel_options options_;
  std::shared_ptr<rank_channel> channel_;
  std::uint64_t calls_ = 0;
  clock::time_point deadline_;
  fingerprint now_;
  /// By rank: the head of this call, followed by the small data.
  std::vector<std::vector<std::byte>> frames_;
  std::vector<std::size_t> lengths_;
  std::vector<std::byte> sum_, part_;
  mutable std::mutex mutex_;
  std::string failure_;  // guarded by mutex_
};

}  // namespace

std::unique_ptr<collective> make_channel_collective(std::shared_ptr<rank_channel> channel,
                                                    const channel_options& options) {
  return std::make_unique<channel_collective>(std::move(channel), options);
}

}  // namespace rrfp::tp_coord
