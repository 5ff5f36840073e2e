#include "progress_thread.hpp"

#include <algorithm>

#include <sys/eventfd.h>

#include <rrfp/tp_coord/wait_word.hpp>

#include <poll.h>
#include <unistd.h>

namespace rrfp::actors::ucx {

namespace {

/// Calls of ucp_worker_progress between two looks at the queue.
constexpr int progress_at_once = 32;
/// A safety net: a lost event causes this delay instead of a hang.
constexpr std::chrono::milliseconds sleep_max{250};
/// Between two attempts to go on with a send for which the receiver has no room yet. Polling would
/// keep the receiver off this core.
constexpr std::chrono::microseconds retry{50};

}  // namespace

progress_thread::progress_thread(node_state& node, worker w)
    : node_(node),
      worker_(std::move(w)),
      peers_(node, *worker_),
      sender_(node),
      receiver_(node, *worker_, sender_),
      wake_descriptor_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  RRFP_CHECK(wake_descriptor_ >= 0, "the process must not run out of file descriptors");
  thread_ = std::thread{[this] { run(); }};
}

progress_thread::~progress_thread() {
  stop();
  close(wake_descriptor_);
}

void progress_thread::post(work w) {
  {
    const std::lock_guard lock{mutex_};
    if (closed_ && !std::holds_alternative<loss>(w)) return;
    queue_.push_back(std::move(w));
    has_work_.store(true);
  }
  wake();
}

template <class Message>
void progress_thread::send(Message m) {
  bool is_on_host = true;  // only the progress thread has entered the contexts of devices
  if constexpr (std::is_same_v<Message, tensor_send>) is_on_host = m.tensor.on_host;
  if (std::unique_lock driving{driving_, std::defer_lock};
      is_on_host && !node_.options.inject && (!is_this_thread() || is_between_rounds_) &&
      driving.try_lock() && !closed_ && !has_work_) {
    const auto pending = sender_.pending();
    sender_.send(std::move(m));
    const bool needs_progress = sender_.pending() > pending || node_.core.has_ends();
    driving.unlock();
    if (needs_progress) wake();
    return;
  }
  post(std::move(m));
}

template void progress_thread::send(tensor_send);
template void progress_thread::send(bytes_send);
template void progress_thread::send(actor_message_send);

void progress_thread::wake() const {
  if (!sleeps_.load()) return;
  const std::uint64_t one = 1;
  static_cast<void>(write(wake_descriptor_, &one, sizeof one));
}

void progress_thread::stop() {
  RRFP_CHECK(!is_this_thread(), "a sink or a failure handler must not close its transport");
  if (!thread_.joinable()) return;
  node_.stopping = true;
  post(call{[](peer_table&) {}});
  thread_.join();
}

void progress_thread::run() {
  id_ = std::this_thread::get_id();
  if (node_.options.enter_thread) node_.options.enter_thread();
  std::unique_lock driving{driving_};
  std::optional<clock::time_point> idle_since;
  while (!node_.stopping.load(std::memory_order_relaxed)) {
    if (work_once()) {
      idle_since.reset();
      end_round(driving);
    } else if (!idle_since) {
      idle_since = clock::now();
    } else if (clock::now() - *idle_since < node_.options.spin) {
      tp_coord::relax();
    } else {
      sleep(driving);
    }
  }
  const auto begun = clock::now();
  send_disconnects(driving, begun + node_.options.close_max / 2);
  close_endpoints(begun + node_.options.close_max);
  end_round(driving);
}

void progress_thread::end_round(std::unique_lock<std::mutex>& driving) {
  if (!node_.options.after_round) return;
  driving.unlock();
  is_between_rounds_ = true;
  node_.options.after_round();
  is_between_rounds_ = false;
  driving.lock();
}

bool progress_thread::work_once() {
  bool any = drain();
  any |= sender_.send_due();
  for (int i = 0; i < progress_at_once && ucp_worker_progress(worker_->handle()) != 0; ++i)
    any = true;
  any |= receiver_.begin_fetches();
  any |= peers_.settle();
  if (any) was_refused_ = false;
  return any;
}

bool progress_thread::drain() {
  if (!has_work_.load(std::memory_order_relaxed)) return false;
  {
    const std::lock_guard lock{mutex_};
    draining_.swap(queue_);
    has_work_.store(false, std::memory_order_relaxed);
  }
  for (auto& w : draining_) carry_out(w);
  draining_.clear();
  return true;
}

void progress_thread::carry_out(work& w) {
  std::visit(
      [this](auto& x) {
        if constexpr (std::is_same_v<decltype(x), call&>)
          x(peers_);
        else if constexpr (std::is_same_v<decltype(x), loss&>)
          node_.core.fail(x.node, x.why);
        else
          sender_.send(std::move(x));
      },
      w);
}

void progress_thread::sleep(std::unique_lock<std::mutex>& driving) {
  sleeps_.store(true);
  if (!has_work_.load()) {
    const auto until_due =
        std::chrono::ceil<std::chrono::milliseconds>(sender_.next_due() - clock::now());
    // UCX refuses for an event that work_once() sees, or as long as a send waits for room.
    const bool refused = ucp_worker_arm(worker_->handle()) != UCS_OK;
    driving.unlock();
    if (!refused)
      wait_for_event(std::clamp(until_due, std::chrono::milliseconds{0}, sleep_max));
    else if (was_refused_)
      std::this_thread::sleep_for(retry);
    driving.lock();
    was_refused_ = refused;
  }
  sleeps_.store(false);
}

void progress_thread::wait_for_event(std::chrono::milliseconds limit) const {
  pollfd both[] = {{wake_descriptor_, POLLIN, 0}, {worker_->event_descriptor(), POLLIN, 0}};
  ::poll(both, 2, static_cast<int>(limit.count()));
  std::uint64_t wakes = 0;
  if (both[0].revents != 0) static_cast<void>(read(wake_descriptor_, &wakes, sizeof wakes));
}

/// Waits until each connected node has answered, so that no node takes the end for a failure.
void progress_thread::send_disconnects(std::unique_lock<std::mutex>& driving,
                                       clock::time_point limit) {
  {
    const std::lock_guard lock{mutex_};
    closed_ = true;
    draining_.swap(queue_);
    has_work_ = false;
  }
  // An actor message may be the end of the job, for which the other nodes wait.
  for (auto& w : draining_)
    if (std::holds_alternative<actor_message_send>(w) || std::holds_alternative<loss>(w))
      carry_out(w);
  draining_.clear();
  sender_.drop_held();
  receiver_.close();
  auto& core = node_.core;
  for (const auto to : core.connected()) sender_.send_disconnect(to, false, core.link_to(to));
  // A disconnect message may overtake a long actor message.
  while ((!core.all_answered() || sender_.pending() > 0) && clock::now() < limit)
    if (!work_once()) sleep(driving);
}

void progress_thread::close_endpoints(clock::time_point limit) {
  peers_.close_all();
  while (peers_.closing() + sender_.pending() + node_.core.fetching() > 0 && clock::now() < limit)
    ucp_worker_progress(worker_->handle());
  worker_.reset();
}

}  // namespace rrfp::actors::ucx
