#include "communicator.hpp"

#include <algorithm>
#include <condition_variable>
#include <thread>
#include <utility>
#include <vector>

namespace rrfp::nccl {

namespace {

/// How often the watcher looks; an error may take this long to end what hangs.
constexpr std::chrono::milliseconds look_every{100};
/// Between two questions whether NCCL has taken a call.
constexpr std::chrono::microseconds ask_every{20};
/// An enqueue takes less than falling asleep and waking.
constexpr std::chrono::microseconds hurry{200};

/// Ends with the last reference to it: every watched communicator holds one.
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

  void add(const std::shared_ptr<communicator>& what) {
    const std::lock_guard lock{mutex_};
    watched_.push_back(what);
  }

 private:
  void run() {
    std::unique_lock lock{mutex_};
    while (!wake_.wait_for(lock, look_every, [this] { return stopped_; })) {
      std::erase_if(watched_, [](const auto& w) { return w.expired(); });
      const auto all = watched_;
      lock.unlock();
      for (const auto& w : all)
        if (const auto c = w.lock()) c->look();
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
  const auto said = ncclCommInitRankConfig(&comm_, static_cast<int>(size_), id,
                                           static_cast<int>(rank_.value()), &config);
  auto made = settle(lock, "ncclCommInitRankConfig", said);
  is_made_ = made.ok();
  return made;
}

bool communicator::is_made() const {
  const std::lock_guard lock{mutex_};
  return is_made_;
}

status communicator::settle(std::unique_lock<std::mutex>& lock, const char* name,
                            ncclResult_t said) {
  const auto begun = clock::now();
  while (said == ncclInProgress && failure_.empty()) {
    if (clock::now() - begun > limit_) {
      failure_ = text_of(name, ncclSuccess) + "not done within " + std::to_string(limit_.count()) +
                 " ms: another rank does not come";
      break;
    }
    lock.unlock();
    if (clock::now() - begun < hurry)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(ask_every);
    lock.lock();
    if (!failure_.empty()) break;
    if (comm_ == nullptr) return error{text_of(name, ncclSuccess) + "ended"};
    if (const auto asked = ncclCommGetAsyncError(comm_, &said); asked != ncclSuccess) said = asked;
  }
  if (failure_.empty() && said != ncclSuccess) failure_ = text_of(name, said);
  if (failure_.empty()) return success();
  shall_end_ = true;
  return error{failure_};
}

std::string communicator::text_of(const char* name, ncclResult_t said) const {
  auto text = std::string{name} + " on device " + std::to_string(device_) + ", rank " +
              std::to_string(rank_.value()) + " of " + std::to_string(size_) + ": ";
  if (said == ncclSuccess) return text;
  text += ncclGetErrorString(said);
  const auto* const more = ncclGetLastError(comm_);
  if (more != nullptr && *more != '\0') text += std::string{": "} + more;
  // One line of what may be several.
  text.erase(std::find(text.begin(), text.end(), '\n'), text.end());
  return text;
}

void communicator::ask_to_end(const std::string& why) {
  const std::lock_guard lock{mutex_};
  if (failure_.empty()) failure_ = why;
  shall_end_ = true;
}

status communicator::health() const {
  const std::lock_guard lock{mutex_};
  if (failure_.empty()) return success();
  return error{failure_};
}

void communicator::look() {
  {
    const std::lock_guard lock{mutex_};
    if (comm_ == nullptr) return;
    auto said = ncclSuccess;
    if (failure_.empty() && is_made_ && ncclCommGetAsyncError(comm_, &said) == ncclSuccess &&
        said != ncclSuccess && said != ncclInProgress) {
      failure_ = text_of("ncclCommGetAsyncError", said);
      shall_end_ = true;
    }
    if (!shall_end_) return;
  }
  end();
}

void communicator::end() {
  ncclComm_t ending = nullptr;
  {
    const std::lock_guard lock{mutex_};
    ending = std::exchange(comm_, nullptr);
    is_made_ = false;
    if (failure_.empty()) failure_ = "the communicator has ended";
  }
  // Kernels that wait for other ranks return; nobody waits for them here.
  if (ending != nullptr) ncclCommAbort(ending);
}

void watch(const std::shared_ptr<communicator>& what) {
  static watcher all;
  all.add(what);
}

}  // namespace rrfp::nccl
