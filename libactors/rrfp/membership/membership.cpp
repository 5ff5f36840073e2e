#include <cerrno>
#include <cstring>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <rrfp/base/check.hpp>
#include <rrfp/membership/membership.hpp>

#include "sockets.hpp"
#include "watcher.hpp"

#include <unistd.h>

namespace rrfp::actors {

namespace {

status check(const membership_options& o) {
  const auto too_long = [](std::string_view name, std::size_t size, std::size_t size_max) {
    return error{fmt::format("{} of {} bytes, expected {} at most", name, size, size_max)};
  };
  if (o.nodes < 1 || o.nodes > nodes_max)
    return error{fmt::format("number of nodes: expected 1 to {}, got {}", nodes_max, o.nodes)};
  if (o.node.value() >= o.nodes)
    return error{fmt::format("node: expected 0 to {}, got {}", o.nodes - 1, o.node.value())};
  if (o.heartbeat.count() < 1 || o.node_timeout < 3 * o.heartbeat)
    return error{fmt::format("node timeout: expected three heartbeats of {} ms or more, got {} ms",
                             o.heartbeat.count(), o.node_timeout.count())};
  if (o.listen_fd >= 0 && o.node.value() != 0)
    return error{"only node 0 may have a listening socket"};
  if (o.description.size() > description_bytes_max)
    return too_long("a description", o.description.size(), description_bytes_max);
  if (o.job_id.size() > control::name_bytes_max)
    return too_long("a job name", o.job_id.size(), control::name_bytes_max);
  if (o.version.size() > control::name_bytes_max)
    return too_long("a version", o.version.size(), control::name_bytes_max);
  if (o.vector_instructions.size() > control::name_bytes_max)
    return too_long("a name of vector instructions", o.vector_instructions.size(),
                    control::name_bytes_max);
  return success();
}

/// None: the nodes share a run_key_file.
result<std::optional<control::secret>> key_of_job(const std::string& file,
                                                  const control::file_descriptor& of_run) {
  if (file.empty() && !of_run.open()) return control::read_key_variable();
  auto key = file.empty() ? control::read_descriptor(of_run.get()) : control::read_key_file(file);
  if (!key) return key.failure();
  return std::optional{*std::move(key)};
}

}  // namespace

result<std::unique_ptr<membership>> membership::join(membership_options options) {
  // Takes ownership of both even if the join fails.
  control::file_descriptor inherited{options.listen_fd}, key_of_run{options.key_fd};
  if (const auto good = check(options); !good) return good.failure();
  auto key = key_of_job(options.key_file, key_of_run);
  if (!key) return key.failure();
  auto watcher =
      std::make_unique<control::watcher>(std::move(options), *std::move(key), std::move(inherited));
  if (const auto joined = watcher->join(); !joined) return joined.failure();
  return std::unique_ptr<membership>{new membership{std::move(watcher)}};
}

membership::membership(std::unique_ptr<control::watcher> w) : watcher_(std::move(w)) {}
membership::~membership() = default;

node_id membership::node() const { return watcher_->node(); }

node_id membership::leader() const { return watcher_->leader(); }

std::uint32_t membership::nodes() const { return watcher_->nodes(); }

const std::vector<member>& membership::members() const { return watcher_->members(); }

std::vector<node_id> membership::absent() const {
  std::vector<node_id> all;
  for (const auto& m : members())
    if (m.is_absent) all.push_back(m.node);
  return all;
}

std::chrono::nanoseconds membership::clock_offset() const { return watcher_->clock_offset(); }

void membership::on_lost(std::function<void(node_id, std::string)> callback) {
  watcher_->on_lost(std::move(callback));
}

void membership::on_node_waits(std::function<void(node_id)> callback) {
  watcher_->on_node_waits(std::move(callback));
}

std::optional<node_loss> membership::loss(std::chrono::milliseconds limit) {
  return watcher_->loss(limit);
}

void membership::set_status(std::string text) { watcher_->set_status(text); }

result<std::string> membership::exchange(std::string bytes, std::chrono::milliseconds limit,
                                         const answering& answer) {
  auto got = watcher_->exchange(std::move(bytes), limit);
  if (!got) return got.failure();
  if (node() != leader()) return std::move(got->front());
  const auto nodes = got->size();
  auto answers = answer(*std::move(got));
  RRFP_CHECK(answers.size() == 1 || answers.size() == nodes,
             "there is one answer for all nodes, or one for each");
  auto own = answers.size() == 1 ? answers.front() : answers[node().value()];
  watcher_->answer(std::move(answers));
  return own;
}

status membership::finish(std::chrono::milliseconds limit) { return watcher_->finish(limit); }

void membership::leave(std::chrono::milliseconds limit, std::function<void()> at_the_end) {
  watcher_->leave(limit, std::move(at_the_end));
}

void membership::interrupt() { watcher_->interrupt(); }

result<listening_socket> listen_on_loopback() {
  control::address at;
  auto& in = reinterpret_cast<sockaddr_in&>(at.storage);
  in.sin_family = AF_INET;
  in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  at.size = sizeof in;
  auto fd = control::listen_at(at);
  if (!fd) return fd.failure();
  const int inheritable = ::dup(fd->get());  // without close-on-exec
  if (inheritable < 0)
    return error{fmt::format("cannot duplicate a socket: {}", std::strerror(errno))};
  return listening_socket{inheritable, control::local_address(inheritable).port()};
}

result<int> key_descriptor() {
  const auto key = control::draw_key();
  if (!key) return key.failure();
  return control::to_descriptor(*key);
}

}  // namespace rrfp::actors
