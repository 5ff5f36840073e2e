#include "transcript.hpp"

#include <string>
#include <vector>

#include <rrfp/core/follower_core.hpp>
#include <rrfp/core/leader_core.hpp>

#include "core_transcripts.hpp"

namespace rrfp::testing {

namespace {

using namespace membership_core;

constexpr std::int64_t ms = 1'000'000;

std::string name(leader_phase p) {
  constexpr const char* names[] = {"opening", "joining", "running", "lost", "leaving", "closed"};
  return names[static_cast<int>(p)];
}
std::string name(follower_phase p) {
  constexpr const char* names[] = {"connecting", "handshaking", "introduced", "measuring",
                                   "joined",     "ended",       "closed"};
  return names[static_cast<int>(p)];
}

std::uint32_t small(words& w) { return static_cast<std::uint32_t>(w.number()); }
std::int64_t time(words& w) { return static_cast<std::int64_t>(w.number()) * ms; }
connection_id connection(words& w) { return connection_id{small(w)}; }

piece piece_of(words& w) {
  piece p{w.number(), w.number(), {}};
  p.bytes = w.rest();
  return p;
}

/// "0.1.3"
std::vector<std::uint32_t> numbers_of(words& w) {
  std::vector<std::uint32_t> all;
  for (const auto n : words{w.next()}.parts()) all.push_back(static_cast<std::uint32_t>(n));
  return all;
}

any_message message_of(words& w) {
  const auto kind = w.next();
  if (kind == "introduce") return introduce{w.rest()};
  if (kind == "introduce_back") {
    auto quorum = numbers_of(w);
    return introduce{w.rest(), 7, std::move(quorum)};
  }
  if (kind == "start") return start{w.rest()};
  if (kind == "inquiry") return inquiry{};
  if (kind == "leader_returns") return leader_returns{};
  if (kind == "over") return over{};
  if (kind == "give_up") return give_up{w.rest()};
  if (kind == "ping") {
    const auto sent = time(w);
    return ping{sent, w.rest()};
  }
  if (kind == "pong") {
    const auto asked = time(w);
    const auto here = time(w);
    return pong{asked, here, w.rest()};
  }
  if (kind == "lost") {
    const auto node = small(w);
    return lost{node, w.rest()};
  }
  if (kind == "goodbye") return goodbye{};
  if (kind == "piece") return piece_of(w);
  if (kind == "no_exchange") return no_exchange{w.rest()};
  if (kind == "malformed") return malformed{};
  throw std::invalid_argument("unknown message '" + kind + "'");
}

event::any event_of(const std::string& kind, words& w) {
  using namespace event;
  if (kind == "listening") return listening{"10.0.0.0:7", "10.0.0.0", 7};
  if (kind == "examined") {
    const auto node = node_id{small(w)};
    return examined{node, w.next() == "gone"};
  }
  if (kind == "node_0_found") return node_0_found{};
  if (kind == "unreachable") return unreachable{w.rest()};
  if (kind == "unreachable_gone") return unreachable{w.rest(), false, true};
  if (kind == "unreachable_for_good") return unreachable{w.rest(), true};
  if (kind == "opened") {
    const auto c = connection(w);
    const auto host = "10.0.0." + std::to_string(c.value());
    return opened{c, host + ":9", host};
  }
  if (kind == "proven") {
    const auto c = connection(w);
    const auto node = node_id{small(w)};
    // A process of its own, and "again" if it has been a member before.
    if (!w.more()) return proven{c, node};
    const auto process = process_id{small(w)};
    return proven{c, node, process, w.more() && w.next() == "again"};
  }
  if (kind == "refused" || kind == "refused_for_now" || kind == "refused_as_lost") {
    const auto c = connection(w);
    const auto node = small(w);
    return event::refused{c, node_id{node}, w.rest(), kind != "refused", kind == "refused_as_lost"};
  }
  if (kind == "heard") return heard{connection(w)};
  if (kind == "received") {
    const auto c = connection(w);
    return received{c, message_of(w)};
  }
  if (kind == "garbled" || kind == "closed") {
    const auto c = connection(w);
    if (kind == "garbled") return garbled{c, w.rest()};
    return event::closed{c, w.rest()};
  }
  if (kind == "contributed") {
    const auto deadline = time(w);
    const auto bytes = w.rest();
    const bool last = bytes == "last";
    return contributed{std::make_shared<const std::string>(bytes), 300 * ms, deadline, last};
  }
  if (kind == "answered") {
    answered e;
    while (w.more()) e.answers.push_back(std::make_shared<const std::string>(w.next()));
    return e;
  }
  if (kind == "interrupted") return interrupted{};
  if (kind == "status_set") return status_set{w.rest()};
  if (kind == "leave") return leave{};
  if (kind == "closing") return closing{w.rest()};
  if (kind == "woke") return woke{};
  if (kind == "turn") return turn{};
  throw std::invalid_argument("unknown event '" + kind + "'");
}

std::string number(std::uint64_t n) { return std::to_string(n); }
std::string told(const std::string& text) { return text.empty() ? "" : ": " + text; }
std::string in_ms(std::int64_t ns) { return std::to_string(ns / ms); }
std::string list(const std::vector<connection_id>& to) {
  std::string all;
  for (const auto c : to) all += " " + number(c.value());
  return all;
}

std::string text_of(const malformed&) { return "malformed"; }
std::string text_of(const introduce& m) { return "introduce " + m.description; }
std::string text_of(const start& m) {
  auto line = "start" + told(m.description);
  for (const auto n : m.absent) line += " without " + number(n);
  for (const auto& s : m.successors) line += ", " + number(s.node) + " at " + s.host;
  return line;
}
std::string text_of(const over&) { return "over"; }
std::string text_of(const inquiry&) { return "inquiry"; }
std::string text_of(const leader_returns&) { return "leader_returns"; }
std::string text_of(const give_up& m) { return "give_up" + told(m.reason); }
std::string text_of(const ping& m) { return "ping " + in_ms(m.sent_ns) + told(m.status); }
std::string text_of(const pong& m) {
  return "pong " + in_ms(m.ping_sent_ns) + " " + in_ms(m.here_ns) + told(m.status);
}
std::string text_of(const lost& m) { return "lost " + number(m.node) + told(m.why); }
std::string text_of(const goodbye&) { return "goodbye"; }
std::string text_of(const piece& m) { return "piece " + number(m.round); }
std::string text_of(const no_exchange& m) { return "no_exchange" + told(m.why); }

std::string line_of(const action::connect& a) { return "connect at " + in_ms(a.at); }
std::string line_of(const action::admit& a) { return "admit " + number(a.connection.value()); }
std::string line_of(const action::refuse& a) {
  return "refuse " + number(a.connection.value()) +
         (a.lost      ? " as lost"
          : a.for_now ? " for now"
                      : "") +
         told(a.reason);
}
std::string line_of(const action::send& a) {
  return "send" + list(a.to) + ": " +
         std::visit([](const auto& m) { return text_of(m); }, a.content);
}
std::string line_of(const action::contribute& a) {
  return "contribute" + list(a.to) + ": round " + number(a.round) + " '" + *a.bytes + "'";
}
std::string line_of(const action::write_notices& a) { return "write_notices" + list(a.to); }
std::string line_of(const action::close& a) { return "close " + number(a.connection.value()); }
std::string line_of(const action::stop_listening&) { return "stop_listening"; }
std::string line_of(const action::examine& a) { return "examine " + number(a.node.value()); }
std::string line_of(const action::look_for_node_0&) { return "look_for_node_0"; }
std::string line_of(const action::leader_returns&) { return "leader_returns"; }
std::string line_of(const action::waiting& a) { return "waiting" + told(a.text); }
std::string line_of(const action::refused_join& a) { return "refused_join" + told(a.line); }
std::string line_of(const action::gone_early& a) { return "gone_early" + told(a.line); }
std::string line_of(const action::join_failed& a) {
  return std::string{"join_failed"} +
         (a.elsewhere ? " elsewhere"
          : a.for_now ? " for now"
                      : "") +
         told(a.why);
}
std::string line_of(const action::fence& a) { return "fence " + number(a.process.value()); }
std::string line_of(const action::job_over&) { return "job_over"; }
std::string line_of(const action::clock_offset& a) { return "clock_offset " + in_ms(a.ns); }
std::string line_of(const action::joined& a) {
  auto line = "joined " + number(a.members.size()) + " nodes";
  for (const auto n : a.absent) line += " without " + number(n.value());
  return line;
}
std::string line_of(const action::node_waits& a) { return "node_waits " + number(a.node.value()); }
std::string line_of(const action::lost& a) {
  return "lost " + number(a.node.value()) + told(a.message);
}
std::string line_of(const action::left&) { return "left"; }
std::string line_of(const action::exchanged& a) {
  std::string all = "exchanged";
  for (const auto& bytes : a.all) all += " '" + *bytes + "'";
  return all;
}
std::string line_of(const action::exchange_failed& a) {
  constexpr const char* kinds[] = {"bad_input", "failed", "node_lost", "interrupted"};
  return std::string{"exchange_failed "} + kinds[static_cast<int>(a.why.kind)] +
         told(a.why.message);
}

bool is_ping(const action::any& a) {
  const auto* sent = std::get_if<action::send>(&a);
  return sent != nullptr && std::holds_alternative<ping>(sent->content);
}

class player {
 public:
  std::string answer(words& w) {
    const auto kind = w.next();
    if (kind == "run") return run(w);
    if (kind != "node" && kind != "at") return fed(event_of(kind, w), false);
    if (kind == "node")
      begin(w);
    else
      now_ = time(w);
    return {};
  }

 private:
  void begin(words& w) {
    core_options o;
    o.node = node_id{small(w)};
    if (w.next() != "of") throw std::invalid_argument("expected 'of'");
    o.nodes = small(w);
    if (w.more()) o.process = process_id{small(w)};
    // After a loss: the nodes that host a rank in the replicas, "1.3"; "spares"; "expected" nodes,
    // "0.1"; the nodes of a "quorum"; the "leader", if it is not node 0; and whether it was "awake"
    // at 0, after a membership before.
    std::vector<std::vector<node_id>> ranks;
    while (w.more()) {
      const auto word = w.next();
      if (word == "awake") {
        o.awake_at = 0;
        continue;
      }
      if (word == "leader") {
        o.leader = node_id{small(w)};
        continue;
      }
      const bool is_named = word == "expected" || word == "quorum" || word == "spares";
      if (!is_named) ranks.emplace_back();
      for (const auto n : words{is_named ? w.next() : word}.parts())
        if (word == "expected")
          o.expected.insert(node_id{n});
        else if (word == "quorum")
          o.quorum.insert(node_id{n});
        else if (word == "spares")
          o.hosts.spares.emplace_back(n);
        else if (n < o.nodes)
          ranks.back().emplace_back(n);
    }
    if (o.leader != node_id{0} && o.leader != o.node) o.patience = 2000 * ms;
    o.hosts.ranks_of_replica = ranks.size();
    o.hosts.reroutes = !ranks.empty() && ranks[0].size() > 1;
    for (std::size_t i = 0; !ranks.empty() && ranks[i % ranks.size()].size() > i / ranks.size();
         ++i)
      o.hosts.nodes.push_back(ranks[i % ranks.size()][i / ranks.size()]);
    o.again = !ranks.empty();
    o.description = "stage " + std::to_string(o.node.value());
    o.heartbeat = 200 * ms;
    o.node_timeout = 1500 * ms;
    now_ = 0;
    if (o.node == o.leader)
      core_.emplace<leader_core>(o);
    else
      core_.emplace<follower_core>(o);
  }
  std::string run(words& w) {
    const auto until = time(w);
    std::vector<connection_id> heard;
    if (w.more()) w.next();
    while (w.more()) heard.push_back(connection(w));
    std::string out;
    while (now_ + 100 * ms <= until) {
      now_ += 100 * ms;
      out += fed(event::woke{}, true);
      for (const auto c : heard) out += fed(event::heard{c}, true);
      out += fed(event::turn{}, true);
    }
    return out;
  }
  std::string fed(const event::any& e, bool brief) {
    if (auto* leader = std::get_if<leader_core>(&core_)) return fed_to(*leader, e, brief);
    if (auto* follower = std::get_if<follower_core>(&core_)) return fed_to(*follower, e, brief);
    throw std::invalid_argument("expected 'node N of M' first");
  }
  std::string fed_to(auto& core, const event::any& e, bool brief) {
    const auto before = core.phase();
    std::string out;
    const std::string head = brief ? "  at " + in_ms(now_) + ": " : "  ";
    for (const auto& a : core.on(e, now_))
      if (!brief || !is_ping(a))
        out += head + std::visit([](const auto& x) { return line_of(x); }, a) + "\n";
    if (core.phase() != before) out += "  -> " + name(core.phase()) + "\n";
    return out;
  }

  std::int64_t now_ = 0;
  std::variant<std::monostate, leader_core, follower_core> core_;
};

}  // namespace

std::string replayed(const std::string& text) {
  player p;
  return replay(text, [&](words& w) { return p.answer(w); });
}

}  // namespace rrfp::testing
