#include "watcher.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <rrfp/base/check.hpp>

#include "handshake.hpp"

#include <poll.h>

namespace rrfp::actors::control {

namespace {

/// Short enough that an interrupt is prompt, long enough for frames to cross a data centre.
constexpr std::chrono::milliseconds linger_max{60};

job_identity identity_of(const membership_options& o) {
  return {o.version, o.job_id, o.job_hash, 0, o.nodes};
}

}  // namespace

std::string name_of(node_id node, std::string_view description, std::string_view status) {
  const std::string_view between = description.empty() || status.empty() ? "" : "; ";
  if (description.empty() && status.empty()) return fmt::format("node {}", node.value());
  return printable(fmt::format("node {} ({}{}{})", node.value(), description, between, status));
}

std::string names_of(const std::vector<std::uint32_t>& nodes) {
  return fmt::format("{} {}", nodes.size() == 1 ? "node" : "nodes", fmt::join(nodes, ", "));
}

std::string seconds_text(std::chrono::milliseconds time) {
  return fmt::format("{:g} s", static_cast<double>(time.count()) / 1000);
}

watcher::watcher(membership_options options, secret key, std::string card)
    : options_(std::move(options)),
      key_(std::move(key)),
      card_(std::move(card)),
      job_(identity_of(options_)) {}

watcher::~watcher() {
  RRFP_CHECK(!thread_.joinable(), "end() must be called before a watcher is destroyed");
}

void watcher::end() {
  on_stop_.reset();
  {
    const std::lock_guard lock{mutex_};
    closing_ = true;
  }
  changed_.notify_all();
  wake_.set();
  RRFP_CHECK(thread_.get_id() != std::this_thread::get_id(),
             "a membership must not end in its own callback");
  if (thread_.joinable()) thread_.join();
}

status watcher::join() {
  const auto deadline = clock::now() + options_.join_timeout;
  last_turn_ = clock::now();
  on_stop_.emplace(options_.stop, [this] { interrupt(); });
  thread_ = std::thread{[this] { watch(); }};
  std::string why;
  {
    std::unique_lock lock{mutex_};
    changed_.wait_until(lock, deadline,
                        [&] { return joined_ || !join_failure_.empty() || interrupted_; });
    if (joined_) return success();
    const auto waiting = waiting_.empty() ? "" : ": " + waiting_;
    if (!join_failure_.empty())
      why = join_failure_;
    else if (interrupted_)
      why = "interrupted while joining" + waiting;
    else
      why = fmt::format("the {} nodes of the job did not join within {}{}", options_.nodes,
                        seconds_text(options_.join_timeout), waiting);
    if (options_.may_join_later != nullptr)
      *options_.may_join_later = (join_failure_.empty() || join_failed_for_now_) && !interrupted_;
    give_up_reason_ = fmt::format("node {} gave up: {}", options_.node.value(), why);
  }
  end();
  return error{fmt::format("node {}: {}", options_.node.value(), why)};
}

void watcher::on_lost(std::function<void(node_id, std::string)> callback) {
  {
    const std::lock_guard no_call_in_progress{calling_};
    const std::lock_guard lock{mutex_};
    on_lost_ = std::move(callback);
  }
  wake_.set();
}

std::string watcher::loss_message(std::chrono::milliseconds limit) {
  std::unique_lock lock{mutex_};
  changed_.wait_for(lock, limit, [&] { return lost_ || interrupted_ || leaving_; });
  return lost_ ? lost_->why : std::string{};
}

void watcher::set_status(std::string text) {
  const std::lock_guard lock{mutex_};
  status_ = printable(text, status_bytes_max);
}

void watcher::interrupt() {
  {
    const std::lock_guard lock{mutex_};
    interrupted_ = true;
  }
  changed_.notify_all();
}

void watcher::leave(std::chrono::milliseconds limit) {
  {
    std::unique_lock lock{mutex_};
    leaving_ = true;
    changed_.notify_all();
    wake_.set();
    changed_.wait_for(lock, limit, [&] { return left_; });
  }
  end();
}

result<std::vector<std::string>> watcher::exchange(std::string bytes,
                                                   std::chrono::milliseconds limit,
                                                   bool to_node_0) {
  if (bytes.size() > gather_bytes_max)
    return error{fmt::format("an exchange of {} bytes, expected {} at most", bytes.size(),
                             gather_bytes_max)};
  const auto deadline = clock::now() + limit;
  std::unique_lock lock{mutex_};
  RRFP_CHECK(!gathering_, "only one exchange may run at a time");
  if (exchange_failed_)
    return error{lost_ ? lost_->why : "an earlier exchange failed: no further one is possible"};
  gathering_ = true;
  const auto round = rounds_begun_++;
  auto mine = std::make_shared<const std::string>(std::move(bytes));
  auto& received = rounds_[round];
  received.resize(options_.nodes);
  received[options_.node.value()] = mine;
  const bool collects = to_node_0 && options_.node == node_id{0};
  const auto contribute = [&](frame_type type, shared_bytes data) {
    contributions_.push_back({type, round, std::move(data)});
    wake_.set();
  };
  if (!collects) contribute(to_node_0 ? frame_type::deposit : frame_type::piece, std::move(mine));

  const auto still = [&] { return awaited(round, to_node_0); };
  const bool in_time = changed_.wait_until(lock, deadline, [&] {
    const auto nodes = still();
    return nodes.empty() || exchange_failure(nodes).has_value();
  });
  gathering_ = false;
  if (still().empty()) {
    const auto all = std::exchange(received, {});
    rounds_.erase(round);
    // Tells the others that all contributions have arrived.
    if (collects) contribute(frame_type::piece, std::make_shared<const std::string>());
    lock.unlock();
    if (to_node_0 && !collects) return std::vector<std::string>{};
    // Copied without the lock, because a heartbeat must not wait for hundreds of MiB.
    std::vector<std::string> copies;
    for (const auto& one : all) copies.push_back(*one);
    return copies;
  }
  exchange_failed_ = true;
  auto failed = in_time ? *exchange_failure(still())
                        : error{fmt::format("an exchange exceeded {}: no contribution from {}",
                                            seconds_text(limit), names_of(still()))};
  rounds_.clear();
  return failed;
}

std::vector<std::uint32_t> watcher::awaited(std::uint64_t round, bool to_node_0) const {
  const auto& received = rounds_.at(round);
  std::vector<std::uint32_t> nodes;
  const auto count = to_node_0 && options_.node != node_id{0} ? 1 : received.size();
  for (std::uint32_t i = 0; i < count; ++i)
    if (received[i] == nullptr) nodes.push_back(i);
  return nodes;
}

std::optional<error> watcher::exchange_failure(const std::vector<std::uint32_t>& awaited) const {
  if (lost_) return error{lost_->why};
  if (interrupted_) return error{"interrupted during an exchange"};
  if (closing_ || leaving_) return error{"this node leaves the job during an exchange"};
  for (const auto node : awaited)
    if (departed_.contains(node_id{node}))
      return error{name_of(node_id{node}, members_[node].description) +
                   " has left the job: no exchange with it"};
  return std::nullopt;
}

bool watcher::closing() const {
  const std::lock_guard lock{mutex_};
  return closing_;
}

bool watcher::leaving() const {
  const std::lock_guard lock{mutex_};
  return leaving_;
}

std::string watcher::current_status() const {
  const std::lock_guard lock{mutex_};
  return status_;
}

std::string watcher::give_up_reason() const {
  const std::lock_guard lock{mutex_};
  return give_up_reason_;
}

std::optional<watcher::contribution> watcher::take_contribution() {
  const std::lock_guard lock{mutex_};
  if (contributions_.empty()) return std::nullopt;
  auto mine = std::move(contributions_.front());
  contributions_.pop_front();
  return mine;
}

void watcher::report_join_failed(std::string why, bool for_now) {
  {
    const std::lock_guard lock{mutex_};
    join_failure_ = std::move(why);
    join_failed_for_now_ = for_now;
  }
  changed_.notify_all();
}

void watcher::report_gone_early(const std::string& who, const std::string& why) const {
  if (!options_.on_gone_early || closing()) return;
  options_.on_gone_early(fmt::format(
      "{} disconnected before the job began: {}; waiting for it to join again", who, why));
}

void watcher::report_waiting(std::string reason) {
  const std::lock_guard lock{mutex_};
  waiting_ = std::move(reason);
}

void watcher::report_joined(std::vector<member> members) {
  {
    const std::lock_guard lock{mutex_};
    members_ = std::move(members);
    joined_ = true;
  }
  changed_.notify_all();
}

void watcher::report_lost(node_id node, std::string message) {
  {
    const std::lock_guard lock{mutex_};
    if (lost_ || leaving_) return;
    lost_ = loss{node, std::move(message)};
  }
  changed_.notify_all();
}

void watcher::report_departed(node_id node) {
  {
    const std::lock_guard lock{mutex_};
    departed_.insert(node);
  }
  changed_.notify_all();
}

void watcher::report_left() {
  {
    const std::lock_guard lock{mutex_};
    left_ = true;
  }
  changed_.notify_all();
}

result<shared_bytes> watcher::add_piece(const piece& p) {
  const error wrong{"it sent a malformed piece of an exchange"};
  if (p.node >= options_.nodes || p.node == options_.node.value()) return wrong;
  if (p.bytes_total > gather_bytes_max || p.bytes.size() > p.bytes_total) return wrong;
  {
    // No node can be further ahead than the round after this node's last one. Pieces of an exchange
    // that failed here are dropped.
    const std::lock_guard lock{mutex_};
    if (exchange_failed_) return shared_bytes{};
    if (p.round > rounds_begun_ || p.round + 1 < rounds_begun_) return wrong;
  }
  const auto key = std::pair{p.round, p.node};
  auto& bytes = pieces_[key];
  if (bytes.empty()) bytes.reserve(p.bytes_total);
  bytes += p.bytes;
  if (bytes.size() > p.bytes_total) return wrong;
  if (bytes.size() < p.bytes_total)
    return p.bytes.empty() ? result<shared_bytes>{wrong} : shared_bytes{};
  auto whole = std::make_shared<const std::string>(std::move(bytes));
  pieces_.erase(key);
  {
    const std::lock_guard lock{mutex_};
    auto& received = rounds_[p.round];
    received.resize(options_.nodes);
    if (received[p.node] != nullptr) return wrong;
    received[p.node] = whole;
  }
  changed_.notify_all();
  return whole;
}

void watcher::deliver_loss() {
  const std::lock_guard calling{calling_};
  std::function<void(node_id, std::string)> callback;
  loss lost;
  {
    const std::lock_guard lock{mutex_};
    if (!lost_ || !on_lost_ || loss_delivered_ || leaving_) return;
    loss_delivered_ = true;
    callback = on_lost_;
    lost = *lost_;
  }
  callback(lost.node, lost.why);
}

void watcher::send_heartbeat_if_due(channel& to, clock::time_point& due, clock::time_point now) {
  if (now < due) return;
  due = now + options_.heartbeat;
  to.send(ping{ns(now), current_status()});
}

clock::duration watcher::own_delay(clock::time_point now) {
  const auto took = now - std::exchange(last_turn_, now);
  if (took > options_.node_timeout / 2) stalled_until_ = now;
  return took > options_.heartbeat ? took - turn() : clock::duration{0};
}

bool watcher::wait_for(int fd, short events, clock::time_point until) {
  // An earlier wait may have consumed the wake event, so the request is checked again.
  while (!closing()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - clock::now()).count();
    pollfd both[] = {{wake_.fd(), POLLIN, 0}, {fd, events, 0}};
    ::poll(both, 2, static_cast<int>(std::clamp<std::int64_t>(left, 0, 1000)));
    const bool asked = both[0].revents != 0;
    if (asked) wake_.clear();
    if (both[1].revents != 0) return true;
    if (asked || left <= 0) return false;
  }
  return false;
}

void watcher::wind_down(std::vector<channel*> open) {
  const auto until = clock::now() + linger_max;
  std::set<channel*> writing{open.begin(), open.end()};
  while (!open.empty() && clock::now() < until) {
    std::vector<pollfd> ends;
    for (auto* c : open)
      ends.push_back(
          {c->fd(), static_cast<short>(c->out().empty() ? POLLIN : POLLIN | POLLOUT), 0});
    std::erase_if(open, [&](channel* c) { return !c->flush().ok(); });
    for (auto* c : open)
      if (c->out().empty() && writing.erase(c) != 0) c->end_writing();
    ::poll(ends.data(), ends.size(), 5);
    std::erase_if(open, [](channel* c) { return !c->discard(); });
  }
}

}  // namespace rrfp::actors::control
