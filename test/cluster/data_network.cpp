#include "data_network.hpp"

namespace rrfp::cluster {

data_network::data_network(world& w, ways& through)
    : world_(w), ways_(through), random_(w.c.seed, 3), self_(w.add_sink(*this)) {}

std::uint32_t data_network::open(data_port& port) {
  ports_.push_back(&port);
  node_of_.push_back(port.place().value());
  return static_cast<std::uint32_t>(ports_.size() - 1);
}

void data_network::close(std::uint32_t number, bool crashed) {
  ports_[number] = nullptr;
  for (const auto& [from, to] : links_) {
    if (to != number || ports_[from] == nullptr) continue;
    // The other side of a dead process may notice only when it sends, or much later.
    const auto after = crashed && random_.one_in(3) ? 2 * s : random_.between(50 * us, 20 * ms);
    break_link(from, node_id{node_of_[number]}, after);
  }
  std::erase_if(links_, [&](const auto& l) { return l.first == number || l.second == number; });
}

void data_network::break_link(std::uint32_t from, node_id other, nanoseconds after) {
  world_.call(after, [this, from, other] {
    auto* const port = ports_[from];
    if (port == nullptr) return;
    const auto wait = port->resumes_at() - world_.now();
    if (wait > 0) return break_link(from, other, wait);
    port->broke(other);
  });
}

void data_network::break_between(std::uint32_t a, std::uint32_t b) {
  for (const auto& [from, to] : links_) {
    const auto x = node_of_[from];
    const auto y = node_of_[to];
    if ((x != a || y != b) && (x != b || y != a)) continue;
    broken_.try_emplace({from, to}, world_.now());
    break_link(from, node_id{y}, 0);
  }
}

std::uint32_t data_network::place_of(data_message m) {
  if (free_.empty()) {
    messages_.push_back(std::move(m));
    return static_cast<std::uint32_t>(messages_.size() - 1);
  }
  const auto place = free_.back();
  free_.pop_back();
  messages_[place] = std::move(m);
  return place;
}

void data_network::send(data_message m) {
  const auto from = node_of_[m.from];
  const auto to = node_of_[m.to];
  m.sent = world_.now();
  const auto opens = ways_.opens(from, to);
  if (opens - world_.now() > retries_max) return break_link(m.from, node_id{to}, retries_max);
  const auto delay = opens - world_.now() + ways_.draw_delay(from, to);
  const bool may_double = !std::holds_alternative<bytes_header>(m.header) && !m.is_announced;
  if (may_double && random_.one_in(128)) travel(place_of(m), delay + random_.between(0, 5 * ms));
  travel(place_of(std::move(m)), delay);
}

/// Some of what is under way to a session that has ended comes to the next one of its node.
data_port* data_network::receiver_of(const data_message& m) {
  if (ports_[m.to] != nullptr) return ports_[m.to];
  for (auto n = ports_.size(); n-- > m.to + 1;)
    if (ports_[n] != nullptr && node_of_[n] == node_of_[m.to]) return ports_[n];
  return nullptr;
}

/// A link that has broken carries nothing more, and may have lost what was on its way.
bool data_network::is_lost(const data_message& m) {
  const auto broken = broken_.find({m.from, m.to});
  return broken != broken_.end() && (m.sent >= broken->second || random_.one_in(2));
}

void data_network::on_event(std::uint32_t, std::uint32_t argument) {
  auto* const port = receiver_of(messages_[argument]);
  if (port == nullptr || is_lost(messages_[argument])) return release(argument);
  const auto wait = port->resumes_at() - world_.now();
  if (wait > 0) return travel(argument, wait);
  // A port may send while it receives, which moves the messages.
  const auto m = std::move(messages_[argument]);
  if (!m.is_announced) {
    release(argument);
    return port->arrive(m, argument);
  }
  messages_[argument] = m;
  port->arrive(m, argument);
}

}  // namespace rrfp::cluster
