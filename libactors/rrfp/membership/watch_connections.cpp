/// Where the connections of the watch thread come from: on the leader a listener, which for node 0
/// is at the rendezvous; on the others the leader.
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "life_line.hpp"
#include "watcher.hpp"

namespace rrfp::actors::control {

namespace {

constexpr std::chrono::nanoseconds connect_max{handshake_max};
/// Between two lookups of the name where node 0 listens.
constexpr std::chrono::milliseconds lookup_pause{500};
constexpr int accepts_per_turn = 16;

}  // namespace

status watcher::open_listener() {
  if (choice_.next()) {
    listener_ = options_.standing->life_line()->serve();
  } else if (listener_.open()) {
    prepare(listener_.get());
  } else if (auto open = listen_at_rendezvous(); !open) {
    return open;
  }
  const auto at = local_address(listener_.get());
  if (!key_ && !at.is_loopback())
    return error{
        fmt::format("the inherited socket listens on {}, which requires a key: set "
                    "transport.key_file or RRFP_KEY",
                    at.text())};
  if (!key_) run_key_file_.emplace(choice_.next() ? options_.rendezvous_port : at.port());
  // So that an unusable file is an error now, not at the first handshake.
  if (const auto usable = key(); !usable) return usable.failure();
  feed_listening(at);
  return options_.on_listening ? options_.on_listening(at.port()) : success();
}

status watcher::listen_at_rendezvous() {
  const auto& host = options_.rendezvous_host;
  const bool is_name = !numeric_address(host, options_.rendezvous_port).ok();
  for (;;) {
    const name_lookup lookup{host, options_.rendezvous_port};
    while (!lookup.done() && !closing()) wait_for(lookup.fd(), POLLIN, clock::now() + turn());
    if (!lookup.done()) return error{"interrupted"};
    auto open = lookup.answer() ? listen_at_one_of(*lookup.answer()) : lookup.answer().failure();
    // A name service may know the name later, or still have the address of the process before.
    if (open || !is_name || open.failure().kind != error_kind::failed) return open;
    carry_out(action::waiting{open.message()});
    wait_for(-1, 0, clock::now() + lookup_pause);
    if (closing()) return error{"interrupted"};
  }
}

status watcher::listen_at_one_of(const std::vector<address>& addresses) {
  error last{"the rendezvous host has no address"};
  for (const auto& at : addresses) {
    // Checked before the port opens.
    if (!key_ && !at.is_loopback())
      return error{
          fmt::format("listening on {} requires a key, in transport.key_file or the variable "
                      "RRFP_KEY: without one a job may listen on a loopback address only "
                      "(127.0.0.1)",
                      at.text())};
    auto fd = listen_at(at);
    if (fd) {
      listener_ = std::move(*fd);
      return success();
    }
    last = fd.failure();
  }
  return last;
}

void watcher::accept_all() {
  for (int i = 0; i < accepts_per_turn && listener_.open(); ++i) {
    auto fd = accept_from(listener_.get());
    // Without free descriptors poll() would always report "ready": skip the listener for one turn.
    listens_ = !fd && (errno == EMFILE || errno == ENFILE) ? 0 : POLLIN;
    if (!fd) return;
    open_link(std::move(*fd));
  }
}

void watcher::connect() {
  connect_at_.reset();
  const auto at =
      choice_.next().value_or(successor{0, options_.rendezvous_host, options_.rendezvous_port});
  const name_lookup lookup{at.host, at.port};
  while (!lookup.done() && !closing()) wait_for(lookup.fd(), POLLIN, clock::now() + turn());
  if (!lookup.done()) return;
  if (!lookup.answer()) return feed(event::unreachable{"rendezvous " + lookup.answer().message()});
  if (!key_ && !run_key_file_) run_key_file_.emplace(options_.rendezvous_port);
  event::unreachable problem;
  for (const auto& to : *lookup.answer()) {
    if (!key_ && !to.is_loopback())
      return feed(event::unreachable{
          fmt::format("joining at {} requires a key, in transport.key_file or the variable "
                      "RRFP_KEY: without one a job may use a loopback address only",
                      to.text()),
          true});
    auto k = key();
    if (!k) return feed(event::unreachable{k.message(), true});
    auto fd = connect_to(to, problem);
    if (!fd) continue;
    feed_listening(local_address(fd->get()));
    auto& l = open_link(*std::move(fd));
    l.io.begin_tls(tls_, *std::move(k), options_.node);
    return l.io.out().add_urgent(to_frame(own_claim()));
  }
  const auto name =
      choice_.next() ? fmt::format("node {}", at.node) : std::string{"the rendezvous"};
  problem.why = fmt::format("cannot connect to {} {}", name, problem.why);
  feed(problem);
}

void watcher::feed_listening(const address& here) {
  const bool may_lead = options_.standing != nullptr && options_.hosts.may_lack_nodes();
  feed(event::listening{here.text(), here.host(),
                        may_lead ? options_.standing->open_life_line(here) : std::uint16_t{0}});
}

claim watcher::own_claim() const {
  claim c{wire_version, job_, options_.node.value()};
  // A leader that has declared this process lost must not take the question for a new process.
  if (inquirer_) {
    c.process = inquirer_->value();
    c.again = 1;
  }
  if (options_.standing == nullptr) return c;
  c.process = options_.standing->process().value();
  c.again = options_.standing->now().has_joined ? 1 : 0;
  return c;
}

std::optional<file_descriptor> watcher::connect_to(const address& to, event::unreachable& problem) {
  auto fd = begin_connect(to);
  problem.why = fd.ok() ? to.text() + ": connection timed out" : fd.message();
  problem.is_refused = !fd && fd.failure().kind == error_kind::node_lost;
  if (!fd || !wait_for(fd->get(), POLLOUT, clock::now() + connect_max)) return std::nullopt;
  if (const int failed = connect_error(fd->get()); failed != 0) {
    problem.why = fmt::format("{}: {}", to.text(), std::strerror(failed));
    problem.is_refused = failed == ECONNREFUSED;
    return std::nullopt;
  }
  // While the port is free, TCP may connect the socket to itself.
  if (local_address(fd->get()).text() == to.text()) return std::nullopt;
  return std::move(*fd);
}

watcher::link& watcher::open_link(file_descriptor fd) {
  const connection_id id{links_opened_++};
  auto& l = links_.try_emplace(id, std::move(fd)).first->second;
  feed(event::opened{id, l.io.other_side().text(), l.io.other_side().host()});
  return l;
}

}  // namespace rrfp::actors::control
