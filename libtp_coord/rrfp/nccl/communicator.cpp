#include "communicator.hpp"

#include <algorithm>
#include <condition_variable>
#include <thread>
#include <utility>
#include <vector>

namespace rrfp::nccl {

namespace {

/// Poll interval of the watcher; an error may take this long to end a hanging call.
constexpr std::chrono::milliseconds poll_interval{100};
/// Interval between polls of a call that NCCL reports as in progress.
constexpr std::chrono::microseconds retry_interval{20};
/// A call that takes less than this is polled without sleeping.
constexpr std::chrono::microseconds spin_time{200};

/// Lives as long as any watched communicator, which each hold a reference.
class watcher {
 public:
  watcher() : thread_([this] { run(); }) {}
  ~watcher() {
    {
      const std::lock_guard lock{mutex_};
      stopped_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  void add(const std::shared_ptr<communicator>& c) {
    const std::lock_guard lock{mutex_};
    watched_.push_back(c);
  }

 private:
  void run() {
    std::unique_lock lock{mutex_};
    while (!wake_.wait_for(lock, poll_interval, [this] { return stopped_; })) {
      std::erase_if(watched_, [](const auto& w) { return w.expired(); });
      const auto all = watched_;
      lock.unlock();
      for (const auto& w : all)
        if (const auto c = w.lock()) c->poll();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::weak_ptr<communicator>> watched_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace

communicator::communicator(rank_id rank, std::uint32_t size, int device,
                           std::chrono::milliseconds limit)
    : rank_(rank), size_(size), device_(device), limit_(limit) {}

communicator::~communicator() { end(); }

status communicator::init(const ncclUniqueId& id) {
  std::unique_lock lock{mutex_};
  if (!failure_.empty()) return error{failure_};
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const auto code = ncclCommInitRankConfig(&comm_, static_cast<int>(size_), id,
                                           static_cast<int>(rank_.value()), &config);
  auto made = settle(lock, "ncclCommInitRankConfig", code);
  is_made_ = made.ok();
  return made;
}

bool communicator::is_made() const {
  const std::lock_guard lock{mutex_};
  return is_made_;
}

status communicator::settle(std::unique_lock<std::mutex>& lock, const char* name,
                            ncclResult_t code) {
  const auto begun = clock::now();
  while (code == ncclInProgress && failure_.empty()) {
    if (clock::now() - begun > limit_) {
      failure_ = text_of(name, ncclSuccess) + "not completed within " +
                 std::to_string(limit_.count()) + " ms: another rank did not join";
      break;
    }
    lock.unlock();
    if (clock::now() - begun < spin_time)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(retry_interval);
    lock.lock();
    if (!failure_.empty()) break;
    if (comm_ == nullptr) return error{text_of(name, ncclSuccess) + "ended"};
    if (const auto polled = ncclCommGetAsyncError(comm_, &code); polled != ncclSuccess)
      code = polled;
  }
  if (failure_.empty() && code != ncclSuccess) failure_ = text_of(name, code);
  if (failure_.empty()) return success();
  abort_requested_ = true;
  return error{failure_};
}

std::string communicator::text_of(const char* name, ncclResult_t code) const {
  auto text = std::string{name} + " on device " + std::to_string(device_) + ", rank " +
              std::to_string(rank_.value()) + " of " + std::to_string(size_) + ": ";
  if (code == ncclSuccess) return text;
  text += ncclGetErrorString(code);
  const auto* const more = ncclGetLastError(comm_);
  if (more != nullptr && *more != '\0') text += std::string{": "} + more;
  // Only the first line.
  text.erase(std::find(text.begin(), text.end(), '\n'), text.end());
  return text;
}

void communicator::request_abort(const std::string& why) {
  const std::lock_guard lock{mutex_};
  if (failure_.empty()) failure_ = why;
  abort_requested_ = true;
}

status communicator::health() const {
  const std::lock_guard lock{mutex_};
  if (failure_.empty()) return success();
  return error{failure_};
}

void communicator::poll() {
  {
    const std::lock_guard lock{mutex_};
    if (comm_ == nullptr) return;
    auto code = ncclSuccess;
    if (failure_.empty() && is_made_ && ncclCommGetAsyncError(comm_, &code) == ncclSuccess &&
        code != ncclSuccess && code != ncclInProgress) {
      failure_ = text_of("ncclCommGetAsyncError", code);
      abort_requested_ = true;
    }
    if (!abort_requested_) return;
  }
  end();
}

void communicator::end() {
  ncclComm_t ending = nullptr;
  {
    const std::lock_guard lock{mutex_};
    ending = std::exchange(comm_, nullptr);
    is_made_ = false;
    if (failure_.empty()) failure_ = "the communicator was closed";
  }
  // Makes kernels that wait for other ranks return; does not wait for them.
  if (ending != nullptr) ncclCommAbort(ending);
}

void watch(const std::shared_ptr<communicator>& c) {
  static watcher all;
  all.add(c);
}

}  // namespace rrfp::nccl
