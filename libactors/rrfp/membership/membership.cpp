#include <cerrno>
#include <cstring>
#include <tuple>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <rrfp/membership/membership.hpp>

#include "sockets.hpp"
#include "watcher.hpp"

#include <unistd.h>

namespace rrfp::actors {

namespace {

status check(const membership_options& o) {
  if (o.nodes < 1 || o.nodes > nodes_max)
    return error{fmt::format("number of nodes: expected 1 to {}, got {}", nodes_max, o.nodes)};
  if (o.node.value() >= o.nodes)
    return error{fmt::format("node: expected 0 to {}, got {}", o.nodes - 1, o.node.value())};
  if (o.heartbeat.count() < 1 || o.node_timeout < 3 * o.heartbeat)
    return error{fmt::format("node timeout: expected three heartbeats of {} ms or more, got {} ms",
                             o.heartbeat.count(), o.node_timeout.count())};
  if (o.listen_fd >= 0 && o.node.value() != 0)
    return error{"only node 0 may have a listening socket"};
  using limited_text = std::tuple<const char*, const std::string&, std::size_t>;
  for (const auto& [name, text, size_max] :
       {limited_text{"a description", o.description, description_bytes_max},
        limited_text{"a job name", o.job_id, control::name_bytes_max},
        limited_text{"a version", o.version, control::name_bytes_max},
        limited_text{"a name of vector instructions", o.vector_instructions,
                     control::name_bytes_max}})
    if (text.size() > size_max)
      return error{fmt::format("{} of {} bytes, expected {} at most", name, text.size(), size_max)};
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
  return std::unique_ptr<membership>{std::move(watcher)};
}

std::vector<node_id> membership::absent() const {
  std::vector<node_id> all;
  for (const auto& m : members())
    if (m.is_absent) all.push_back(m.node);
  return all;
}

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
