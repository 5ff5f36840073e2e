#include <rrfp/core/membership_common.hpp>

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
  constexpr std::size_t names_max = 8;
  std::string names;
  for (std::size_t i = 0; i < std::min(nodes.size(), names_max); ++i)
    names += (names.empty() ? "" : ", ") + std::to_string(nodes[i]);
  if (nodes.size() > names_max)
    names += " and " + std::to_string(nodes.size() - names_max) + " more";
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
  const auto is_first = !last_turn_;
  const auto took = now - last_turn_.value_or(options.awake_at.value_or(now));
  last_turn_ = now;
  // The others may have heard it last two heartbeats before, but not between two memberships.
  const auto limit = options.node_timeout - (is_first ? 0 : 2 * options.heartbeat);
  if (took > limit && options.process != process_id{}) overslept_until_ = now;
  if (loss_ && !over_ && has_overslept(now)) fence(options.process);
  if (is_first) return;
  if (took > options.node_timeout / 2) stalled_until_ = now;
  if (took > options.heartbeat) stall_ += took - options.turn();
}

std::string common_part::overslept() const {
  return name_of(options.node, options.description, status) +
         " was lost: it was stopped or stalled for " + seconds_text(options.node_timeout) +
         " or longer";
}

void common_part::fence(process_id process) {
  if (process == process_id{} || options.process == process_id{}) return;
  if (fenced_.insert(process).second) act(action::fence{process});
}

void common_part::lose(node_id node, std::string message, bool is_silent) {
  if (loss_ || leaving_ || over_) return;
  loss_ = {node, std::move(message), is_silent};
  act(*loss_);
}

void common_part::report_left() {
  if (!std::exchange(left_, true)) act(action::left{});
}

// ---- exchanges

std::optional<shared_bytes> arriving_bytes::add(const piece& p) {
  if (p.bytes_total > gather_bytes_max || p.bytes.size() > p.bytes_total) return std::nullopt;
  if (bytes_.empty()) bytes_.reserve(p.bytes_total);
  bytes_ += p.bytes;
  if (bytes_.size() > p.bytes_total) return std::nullopt;
  if (bytes_.size() < p.bytes_total)
    return p.bytes.empty() ? std::nullopt : std::optional{shared_bytes{}};
  return std::make_shared<const std::string>(std::exchange(bytes_, {}));
}

bool common_part::begin_exchange(const event::contributed& e) {
  if (exchange_failed_) {
    auto why = refusal_.empty() ? "an earlier exchange failed: no further one is possible"
                                : std::exchange(refusal_, {});
    act(action::exchange_failed{{loss_ ? loss_->message : std::move(why), error_kind::node_lost}});
    return false;
  }
  exchange_ = e;
  last_ = e.last;
  return true;
}

void common_part::end_exchange(std::vector<shared_bytes> all) {
  exchange_.reset();
  act(action::exchanged{std::move(all)});
}

void common_part::fail_exchange(error why) {
  if (std::exchange(exchange_failed_, true)) return;
  if (!exchange_) return static_cast<void>(refusal_ = std::move(why.message));
  exchange_.reset();
  act(action::exchange_failed{std::move(why)});
}

void common_part::settle_exchange() {
  if (loss_)
    fail_exchange({loss_->message, error_kind::node_lost});
  else if (interrupted_)
    fail_exchange({"interrupted during an exchange", error_kind::interrupted});
  else if (leaving_)
    fail_exchange({"this node leaves the job during an exchange", error_kind::failed});
}

}  // namespace rrfp::membership_core
