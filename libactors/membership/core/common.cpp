#include <rrfp/membership_core/common.hpp>

#include <algorithm>
#include <charconv>

#include <rrfp/base/printable.hpp>
#include <rrfp/base/units.hpp>

namespace rrfp::membership_core {

std::string name_of(node_id node, std::string_view description, std::string_view status) {
  const auto name = "node " + std::to_string(node.value());
  if (description.empty() && status.empty()) return name;
  const auto* between = description.empty() || status.empty() ? "" : "; ";
  return printable(name + " (" + std::string{description} + between + std::string{status} + ")");
}

std::string names_of(const std::vector<std::uint32_t>& nodes) {
  std::string names;
  for (const auto node : nodes) names += (names.empty() ? "" : ", ") + std::to_string(node);
  return (nodes.size() == 1 ? "node " : "nodes ") + names;
}

std::string seconds_text(std::int64_t ns) {
  char text[32];
  const auto end =
      std::to_chars(text, text + sizeof text, seconds(ns), std::chars_format::general, 6).ptr;
  return std::string{text, end} + " s";
}

std::string printable(std::string_view text, std::size_t bytes_max) {
  constexpr std::size_t dots = 3;  // of a text that is cut
  return rrfp::printable(text, bytes_max - dots);
}

action::gone_early gone_early(const std::string& name, const std::string& why) {
  return {name + " disconnected before the job began: " + why + "; waiting for it to join again"};
}

void common_part::note_turn(std::int64_t now) {
  const auto took = now - last_turn_.value_or(now);
  last_turn_ = now;
  if (took > options.node_timeout / 2) stalled_until_ = now;
  if (took > options.heartbeat) stall_ += took - options.turn();
}

void common_part::join(std::vector<roster_entry> members) {
  for (const auto& m : members) descriptions_.push_back(m.description);
  act(action::joined{std::move(members)});
}

void common_part::lose(node_id node, std::string message) {
  if (loss_ || leaving_) return;
  loss_ = {node, std::move(message)};
  act(*loss_);
}

void common_part::report_left() {
  if (!std::exchange(left_, true)) act(action::left{});
}

std::optional<action::contribute> common_part::begin_exchange(const event::contributed& e) {
  if (exchange_failed_) {
    act(action::exchange_failed{
        {loss_ ? loss_->message : "an earlier exchange failed: no further one is possible",
         error_kind::node_lost}});
    return std::nullopt;
  }
  exchange_ = e;
  const auto round = rounds_begun_++;
  auto& received = rounds_[round];
  received.resize(options.nodes);
  received[options.node.value()] = e.bytes;
  if (e.to_node_0 && options.node == node_id{0}) return std::nullopt;
  return action::contribute{{}, e.to_node_0, round, options.node, e.bytes};
}

std::optional<shared_bytes> common_part::add_piece(const piece& p) {
  if (p.node >= options.nodes || p.node == options.node.value()) return std::nullopt;
  if (p.bytes_total > gather_bytes_max || p.bytes.size() > p.bytes_total) return std::nullopt;
  // Pieces of an exchange that failed here are dropped.
  if (exchange_failed_) return shared_bytes{};
  // No node can be further ahead than the round after this node's last one.
  if (p.round > rounds_begun_ || p.round + 1 < rounds_begun_) return std::nullopt;
  const auto key = std::pair{p.round, p.node};
  auto& bytes = pieces_[key];
  if (bytes.empty()) bytes.reserve(p.bytes_total);
  bytes += p.bytes;
  if (bytes.size() > p.bytes_total) return std::nullopt;
  if (bytes.size() < p.bytes_total)
    return p.bytes.empty() ? std::nullopt : std::optional{shared_bytes{}};
  auto whole = std::make_shared<const std::string>(std::move(bytes));
  pieces_.erase(key);
  auto& received = rounds_[p.round];
  received.resize(options.nodes);
  if (received[p.node] != nullptr) return std::nullopt;
  return received[p.node] = std::move(whole);
}

std::optional<action::contribute> common_part::settle_exchange(std::int64_t now) {
  if (!exchange_) return std::nullopt;
  const auto round = rounds_begun_ - 1;
  const bool collects = exchange_->to_node_0 && options.node == node_id{0};
  if (is_complete()) {
    auto all = std::move(rounds_[round]);
    if (exchange_->to_node_0 && !collects) all.clear();
    rounds_.erase(round);
    exchange_.reset();
    act(action::exchanged{std::move(all)});
    if (!collects) return std::nullopt;
    return action::contribute{{}, false, round, node_id{0}, std::make_shared<const std::string>()};
  }
  if (auto why = exchange_failure(now)) {
    exchange_failed_ = true;
    exchange_.reset();
    rounds_.clear();
    act(action::exchange_failed{*std::move(why)});
  }
  return std::nullopt;
}

std::span<const shared_bytes> common_part::expected() const {
  const std::span<const shared_bytes> received{rounds_.at(rounds_begun_ - 1)};
  return exchange_->to_node_0 && options.node != node_id{0} ? received.first(1) : received;
}

bool common_part::is_complete() const {
  const auto all = expected();
  return std::find(all.begin(), all.end(), nullptr) == all.end();
}

std::optional<error> common_part::exchange_failure(std::int64_t now) const {
  if (loss_) return error{loss_->message, error_kind::node_lost};
  if (interrupted_) return error{"interrupted during an exchange", error_kind::interrupted};
  if (leaving_) return error{"this node leaves the job during an exchange", error_kind::failed};
  if (departed_.empty() && now < exchange_->deadline) return std::nullopt;
  std::vector<std::uint32_t> missing;
  for (std::uint32_t node = 0; const auto& bytes : expected()) {
    if (bytes == nullptr) missing.push_back(node);
    ++node;
  }
  for (const auto node : missing)
    if (departed_.contains(node_id{node}))
      return error{
          name_of(node_id{node}, descriptions_.at(node)) + " has left the job: no exchange with it",
          error_kind::node_lost};
  if (now < exchange_->deadline) return std::nullopt;
  return error{"an exchange exceeded " + seconds_text(exchange_->limit) +
                   ": no contribution from " + names_of(missing),
               error_kind::node_lost};
}

}  // namespace rrfp::membership_core
