/// A fake of the NCCL functions that rrfp calls, between ranks that are threads of this process.
/// Calls of ranks that do not match end the process: on a device they would hang, or sum unrelated
/// data.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include <nccl.h>

#include "streams.hpp"

namespace {

using rrfp::host_cuda::fault;
using rrfp::host_cuda::stream_of;

std::size_t width_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat32: return 4;
    case ncclFloat64: return 8;
    case ncclInt64: return 8;
    default: fault("unsupported data type");
  }
}

/// The arguments that all ranks of a call must agree on.
struct call {
  const char* name;
  std::size_t count;
  ncclDataType_t type;
  int detail;  ///< reduction or root

  bool operator==(const call& other) const {
    return std::strcmp(name, other.name) == 0 && count == other.count && type == other.type &&
           detail == other.detail;
  }
};

/// The ranks that share one NCCL id. Everything except the counts of init runs in streams.
class meeting {
 public:
  explicit meeting(int size) : inputs_(static_cast<std::size_t>(size)), calls_(inputs_.size()) {}

  void come() {
    const std::lock_guard lock{mutex_};
    ++came_;
    news_.notify_all();
  }
  bool is_complete() {
    const std::lock_guard lock{mutex_};
    return came_ == inputs_.size();
  }
  void abort() {
    const std::lock_guard lock{mutex_};
    is_aborted_ = true;
    news_.notify_all();
  }

  /// Contributes the bytes of one rank and waits for all; null if aborted. The others' bytes stay
  /// valid until leave().
  const std::vector<std::vector<std::byte>>* meet(int rank, const call& what, const void* data,
                                                  std::size_t bytes) {
    std::unique_lock lock{mutex_};
    const auto r = static_cast<std::size_t>(rank);
    news_.wait(lock, [&] { return is_aborted_ || !is_leaving_; });
    if (is_aborted_) return nullptr;
    inputs_[r].resize(bytes);
    if (bytes > 0) std::memcpy(inputs_[r].data(), data, bytes);
    calls_[r] = what;
    if (++here_ == inputs_.size()) {
      for (const auto& other : calls_)
        if (!(other == what)) fault("ranks call different collectives");
      is_leaving_ = true;
      news_.notify_all();
    }
    news_.wait(lock, [&] { return is_aborted_ || is_leaving_; });
    return is_aborted_ ? nullptr : &inputs_;
  }
  void leave() {
    const std::lock_guard lock{mutex_};
    if (--here_ == 0) is_leaving_ = false;
    news_.notify_all();
  }

  void send(int from, int to, const void* data, std::size_t bytes) {
    const std::lock_guard lock{mutex_};
    const auto* const begin = static_cast<const std::byte*>(data);
    letters_[{from, to}].emplace_back(begin, begin + bytes);
    news_.notify_all();
  }
  void receive(int from, int to, void* data, std::size_t bytes) {
    std::unique_lock lock{mutex_};
    auto& box = letters_[{from, to}];
    news_.wait(lock, [&] { return is_aborted_ || !box.empty(); });
    if (is_aborted_) return;
    if (box.front().size() != bytes) fault("the sizes of a send and its receive differ");
    std::memcpy(data, box.front().data(), bytes);
    box.pop_front();
  }

 private:
  std::mutex mutex_;
  std::condition_variable news_;
  std::size_t came_ = 0;
  std::size_t here_ = 0;
  bool is_leaving_ = false;
  bool is_aborted_ = false;
  std::vector<std::vector<std::byte>> inputs_;
  std::vector<call> calls_;
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> letters_;
};

/// Kept for ever: an id is used only once.
std::shared_ptr<meeting> meeting_of(const ncclUniqueId& id, int size) {
  static std::mutex mutex;
  static auto* const all = new std::map<std::string, std::shared_ptr<meeting>>;
  const std::lock_guard lock{mutex};
  auto& found = (*all)[std::string{id.internal, sizeof id.internal}];
  if (found == nullptr) found = std::make_shared<meeting>(size);
  return found;
}

template <class T>
void combine(std::byte* out, const std::vector<std::vector<std::byte>>& all, std::size_t count,
             ncclRedOp_t how) {
  for (std::size_t i = 0; i < count; ++i) {
    T value{};
    for (std::size_t r = 0; r < all.size(); ++r) {
      T next;
      std::memcpy(&next, all[r].data() + i * sizeof(T), sizeof next);
      if (r == 0)
        value = next;
      else
        value = how == ncclSum ? value + next : std::max(value, next);
    }
    std::memcpy(out + i * sizeof(T), &value, sizeof value);
  }
}

}  // namespace

struct ncclComm {
  std::shared_ptr<meeting> where;
  int rank;
  int size;
  int device;
};

namespace {

/// The group of sends and receives of the calling thread.
thread_local int group_depth = 0;
thread_local std::vector<std::function<void()>> group_sends;
thread_local std::vector<std::function<void()>> group_receives;
thread_local void* group_stream = nullptr;

/// A non-blocking communicator reports "in progress" and completes when it is polled.
ncclResult_t put(ncclComm_t c, cudaStream_t s, std::function<void()> work) {
  if (stream_of(s).device() != c->device) fault("NCCL in a stream of another device");
  stream_of(s).put(std::move(work));
  return ncclInProgress;
}

ncclResult_t put_group() {
  if (group_sends.empty() && group_receives.empty()) return ncclSuccess;
  stream_of(group_stream)
      .put([sends = std::move(group_sends), receives = std::move(group_receives)] {
        for (const auto& one : sends) one();
        for (const auto& one : receives) one();
      });
  group_sends = {};
  group_receives = {};
  return ncclInProgress;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> next{0};
  *id = {};
  std::snprintf(id->internal, sizeof id->internal, "%d", ++next);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config->blocking != 0) fault("a communicator that blocks");
  auto where = meeting_of(id, size);
  where->come();
  *made = new ncclComm{std::move(where), rank, size, rrfp::host_cuda::current_device()};
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t* said) {
  *said = c->where->is_complete() ? ncclSuccess : ncclInProgress;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t c) {
  c->where->abort();
  delete c;
  return ncclSuccess;
}

const char* ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclAllReduce(const void* in, void* out, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t how, ncclComm_t c, cudaStream_t s) {
  return put(c, s, [=, where = c->where, rank = c->rank] {
    const call what{"ncclAllReduce", count, type, static_cast<int>(how)};
    const auto* const all = where->meet(rank, what, in, count * width_of(type));
    if (all == nullptr) return;
    auto* const to = static_cast<std::byte*>(out);
    switch (type) {
      case ncclFloat32: combine<float>(to, *all, count, how); break;
      case ncclFloat64: combine<double>(to, *all, count, how); break;
      default: combine<std::int64_t>(to, *all, count, how);
    }
    where->leave();
  });
}

ncclResult_t ncclAllGather(const void* in, void* out, std::size_t count, ncclDataType_t type,
                           ncclComm_t c, cudaStream_t s) {
  return put(c, s, [=, where = c->where, rank = c->rank] {
    const auto bytes = count * width_of(type);
    const auto* const all = where->meet(rank, {"ncclAllGather", count, type, 0}, in, bytes);
    if (all == nullptr) return;
    for (std::size_t r = 0; r < all->size(); ++r)
      std::memcpy(static_cast<std::byte*>(out) + r * bytes, (*all)[r].data(), bytes);
    where->leave();
  });
}

ncclResult_t ncclBroadcast(const void* in, void* out, std::size_t count, ncclDataType_t type,
                           int root, ncclComm_t c, cudaStream_t s) {
  return put(c, s, [=, where = c->where, rank = c->rank] {
    const auto bytes = count * width_of(type);
    const auto* const all =
        where->meet(rank, {"ncclBroadcast", count, type, root}, in, rank == root ? bytes : 0);
    if (all == nullptr) return;
    std::memcpy(out, (*all)[static_cast<std::size_t>(root)].data(), bytes);
    where->leave();
  });
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclSend(const void* data, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t c, cudaStream_t s) {
  if (group_depth == 0) fault("ncclSend outside of a group");
  if (stream_of(s).device() != c->device) fault("NCCL in a stream of another device");
  group_stream = s;
  group_sends.push_back([=, where = c->where, rank = c->rank] {
    where->send(rank, peer, data, count * width_of(type));
  });
  return ncclSuccess;
}

ncclResult_t ncclRecv(void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t c,
                      cudaStream_t s) {
  if (group_depth == 0) fault("ncclRecv outside of a group");
  group_stream = s;
  group_receives.push_back([=, where = c->where, rank = c->rank] {
    where->receive(peer, rank, data, count * width_of(type));
  });
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (--group_depth > 0) return ncclSuccess;
  return put_group();
}

}  // extern "C"
