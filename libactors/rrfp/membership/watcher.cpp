#include "watcher.hpp"

#include <algorithm>

#include <fmt/format.h>

#include <rrfp/base/check.hpp>

#include "life_line.hpp"

namespace rrfp::actors::control {

namespace {

std::optional<end_mark> end_mark_of(const membership_options& o) {
  if (o.standing == nullptr || o.rendezvous_port == 0) return std::nullopt;
  const auto known = o.standing->now();
  if (o.node != known.choice.node()) return std::nullopt;
  end_mark mark{o.rendezvous_port, o.job_hash};
  if (!known.has_joined && mark.is_set(o.telling_max))
    o.standing->change([](auto& now) { now.is_over = true; });
  return mark;
}

/// How long this process tries to find one leader that others may have found, or to lead.
std::chrono::milliseconds patience_of(const membership_options& o) {
  return o.node_timeout + std::chrono::seconds{5};
}

/// `o.standing` knows whether the job is over.
std::variant<leader_core, follower_core> core_of(const membership_options& o, bool inquires) {
  const auto ns = [](std::chrono::nanoseconds time) { return time.count(); };
  core_options options;
  options.nodes = o.nodes;
  options.node = o.node;
  options.description = o.description;
  options.heartbeat = ns(o.heartbeat);
  options.node_timeout = ns(o.node_timeout);
  options.inquires = inquires;
  if (o.standing != nullptr) {
    const auto known = o.standing->now();
    const auto& choice = known.choice;
    options.process = o.standing->process();
    options.again = known.has_joined;
    options.awake_at = known.awake_at;
    options.lost = known.lost;
    options.over = known.is_over;
    options.hosts = o.hosts;
    options.expected = choice.expected();
    options.leader = choice.node();
    if (o.hosts.may_lack_nodes()) options.quorum = choice.quorum();
    if (choice.has_others()) options.patience = ns(patience_of(o));
    options.may_be_away = choice.may_be_away();
  }
  if (o.node == options.leader) return leader_core{std::move(options)};
  return follower_core{std::move(options)};
}

}  // namespace

watcher::watcher(membership_options options, std::optional<secret> key, file_descriptor listener,
                 std::optional<process_id> inquirer)
    : options_(std::move(options)),
      inquirer_(inquirer),
      choice_(options_.standing != nullptr ? options_.standing->now().choice : leader_choice{}),
      key_(std::move(key)),
      job_{options_.version, options_.job_id, options_.job_hash, options_.nodes,
           options_.vector_instructions},
      end_mark_(end_mark_of(options_)),
      core_(core_of(options_, inquirer_.has_value())),
      tls_(leads() ? tls_context::side::node_0 : tls_context::side::node),
      listener_(std::move(listener)) {}

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
  examinations_.clear();
  search_ = {};
  if (auto* own = leads() && options_.standing ? options_.standing->life_line() : nullptr)
    own->rest();
}

void watcher::search(const std::stop_token& stop) {
  constexpr std::chrono::seconds pause{1};
  while (!stop.stop_requested()) {
    membership_options o;
    o.nodes = options_.nodes;
    o.node = options_.node;
    o.rendezvous_host = options_.rendezvous_host;
    o.rendezvous_port = options_.rendezvous_port;
    o.job_id = options_.job_id;
    o.job_hash = options_.job_hash;
    o.version = options_.version;
    o.vector_instructions = options_.vector_instructions;
    o.heartbeat = options_.heartbeat;
    o.node_timeout = options_.node_timeout;
    o.join_timeout = std::chrono::hours{1};
    o.stop = stop;
    std::optional<secret> key;
    if (key_) key.emplace(std::vector<unsigned char>{key_->bytes()});
    watcher seeker{std::move(o), std::move(key), {}, options_.standing->process()};
    if (seeker.join()) return post_now(event::node_0_found{});
    // It was refused: another job is there.
    std::mutex never;
    std::unique_lock lock{never};
    std::condition_variable_any{}.wait_for(lock, stop, pause, [] { return false; });
  }
}

void watcher::post(event::any e) {
  requests_.push_back(std::move(e));
  wake_.set();
}

void watcher::post_now(event::any e) {
  const std::lock_guard lock{mutex_};
  post(std::move(e));
}

bool watcher::closing() const {
  const std::lock_guard lock{mutex_};
  return closing_;
}

status watcher::join() {
  auto limit = options_.join_timeout;
  if (leads() && choice_.has_others()) limit = std::min(limit, patience_of(options_));
  // The others wait a little longer, so that node 0 misses none that is there.
  const auto grace = leads() ? limit * 0 : std::min(limit / 4, std::chrono::milliseconds{1000});
  const auto deadline = clock::now() + limit + grace;
  on_stop_.emplace(options_.stop, [this] { interrupt(); });
  thread_ = std::thread{[this] { watch(); }};
  const auto name = fmt::format("node {}", options_.node.value());
  error why;
  {
    std::unique_lock lock{mutex_};
    wait(lock, deadline, [&] { return joined_ || join_failure_ || interrupted_; });
    if (joined_) return success();
    const auto waiting = waiting_.empty() ? "" : ": " + waiting_;
    if (join_failure_)
      why = {join_failure_->why,
             join_failure_->for_now ? error_kind::node_lost : error_kind::bad_input};
    else if (interrupted_)
      why = {"interrupted while joining" + waiting, error_kind::interrupted};
    else
      why = {fmt::format("the {} nodes of the job did not join within {}{}", options_.nodes,
                         seconds_text(std::chrono::nanoseconds{limit}.count()), waiting),
             error_kind::node_lost};
    give_up_reason_ = name + " gave up: " + why.message;
    if (!join_failure_ || join_failure_->elsewhere)
      know([](auto& known) { known.choice.note_failed_join(); });
  }
  // Learned of the end while it joined, and tells it to the others.
  if (leads() && options_.standing && options_.standing->is_over()) {
    std::unique_lock lock{mutex_};
    changed_.wait_for(lock, options_.telling_max, [&] { return left_ || interrupted_; });
  }
  end();
  return within(name, std::move(why));
}

void watcher::wait(std::unique_lock<std::mutex>& lock, clock::time_point deadline,
                   const std::function<bool()>& ended) {
  constexpr std::chrono::seconds period{1};
  while (!changed_.wait_until(lock, std::min(deadline, clock::now() + period), ended) &&
         clock::now() < deadline) {
    const bool exchanges = joined_;
    const auto text = exchanges ? std::string{} : waiting_;
    lock.unlock();
    if (options_.on_waiting && (exchanges || !text.empty())) options_.on_waiting(text);
    lock.lock();
  }
}

void watcher::on_lost(std::function<void(node_id, std::string)> callback) {
  {
    const std::lock_guard no_call_in_progress{calling_};
    const std::lock_guard lock{mutex_};
    on_lost_ = std::move(callback);
  }
  wake_.set();
}

void watcher::on_node_waits(std::function<void(node_id)> callback) {
  const std::lock_guard no_call_in_progress{calling_};
  const std::lock_guard lock{mutex_};
  on_node_waits_ = std::move(callback);
}

std::optional<node_loss> watcher::loss(std::chrono::milliseconds limit) {
  std::unique_lock lock{mutex_};
  changed_.wait_for(lock, limit, [&] { return lost_ || interrupted_ || leaving_; });
  if (!lost_) return std::nullopt;
  return node_loss{lost_->node, lost_->message};
}

void watcher::set_status(const std::string& text) {
  const std::lock_guard lock{mutex_};
  // Heartbeats carry only the last one, which therefore wakes nobody.
  if (!requests_.empty() && is<event::status_set>(requests_.back())) requests_.pop_back();
  requests_.push_back(event::status_set{printable(text, status_bytes_max)});
}

void watcher::interrupt() {
  {
    const std::lock_guard lock{mutex_};
    interrupted_ = true;
    post(event::interrupted{});
  }
  changed_.notify_all();
}

void watcher::leave(std::chrono::milliseconds limit, std::function<void()> at_the_end) {
  {
    std::unique_lock lock{mutex_};
    at_the_end_ = std::move(at_the_end);
    leaving_ = true;
    post(event::leave{});
    changed_.notify_all();
    changed_.wait_for(lock, limit, [&] { return left_ || interrupted_; });
  }
  end();
}

result<std::string> watcher::exchange(std::string bytes, std::chrono::milliseconds limit,
                                      const answering& answer) {
  auto got = gather(std::move(bytes), limit, false);
  if (!got) return got.failure();
  if (!leads()) return std::move(got->front());
  const auto count = got->size();
  auto answers = answer(*std::move(got));
  RRFP_CHECK(answers.size() == 1 || answers.size() == count,
             "there is one answer for all nodes, or one for each");
  auto own = answers.size() == 1 ? answers.front() : answers[node().value()];
  send_answers(std::move(answers));
  return own;
}

result<std::vector<std::string>> watcher::gather(std::string bytes, std::chrono::milliseconds limit,
                                                 bool last) {
  if (bytes.size() > gather_bytes_max)
    return error{fmt::format("an exchange of {} bytes, expected {} at most", bytes.size(),
                             gather_bytes_max)};
  const auto deadline = clock::now() + limit;
  std::unique_lock lock{mutex_};
  RRFP_CHECK(!exchanging_, "only one exchange may run at a time");
  if (closing_)
    return lost_ ? error{lost_->message, error_kind::node_lost}
                 : error{"this node leaves the job during an exchange", error_kind::failed};
  exchanging_ = true;
  post(event::contributed{std::make_shared<const std::string>(std::move(bytes)),
                          std::chrono::nanoseconds{limit}.count(),
                          deadline.time_since_epoch().count(), last});
  const auto ended = [&] { return exchanged_.has_value(); };
  wait(lock, deadline, ended);
  if (!ended()) wake_.set();  // the core sees that the deadline has passed
  changed_.wait(lock, ended);
  exchanging_ = false;
  const auto all = *std::exchange(exchanged_, std::nullopt);
  lock.unlock();
  if (!all) return all.failure();
  // Copied without the lock, because a heartbeat must not wait for hundreds of MiB.
  std::vector<std::string> copies;
  for (const auto& one : *all) copies.push_back(*one);
  return copies;
}

status watcher::finish(std::chrono::milliseconds limit) {
  const auto got = gather({}, limit, true);
  if (!got) return got.failure();
  if (leads()) send_answers(std::vector<std::string>(1));
  // A node may be lost before node 0 has answered.
  std::unique_lock lock{mutex_};
  changed_.wait(lock, [&] { return over_ || lost_ || interrupted_; });
  if (over_) return success();
  return lost_ ? error{lost_->message, error_kind::node_lost}
               : error{"interrupted at the end", error_kind::interrupted};
}

void watcher::send_answers(std::vector<std::string> answers) {
  event::answered all;
  for (auto& a : answers) all.answers.push_back(std::make_shared<const std::string>(std::move(a)));
  const std::lock_guard lock{mutex_};
  if (!closing_) post(std::move(all));
}

}  // namespace rrfp::actors::control
