/// A leader and its followers over a network in memory, in virtual time: delays, closed and cut
/// connections, kills and stalls by seed.
#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <set>

#include <catch2/catch.hpp>

#include <rrfp/core/follower_core.hpp>
#include <rrfp/core/leader_core.hpp>

namespace rrfp::membership_core {
namespace {

constexpr std::int64_t ms = 1'000'000;
constexpr std::int64_t step = 10 * ms;
constexpr std::int64_t heartbeat = 200 * ms;
constexpr std::int64_t node_timeout = 1500 * ms;

using random_source = std::mt19937_64;

/// One direction of a connection: what arrives, and when. No event: the connection has ended.
struct direction {
  std::deque<std::pair<std::int64_t, std::optional<event::any>>> due;
  bool cut = false;
};

core_options options_of(std::size_t nodes, std::size_t i) {
  core_options o;
  o.nodes = static_cast<std::uint32_t>(nodes);
  o.node = node_id{static_cast<std::uint32_t>(i)};
  o.heartbeat = heartbeat;
  o.node_timeout = node_timeout;
  return o;
}

struct node {
  std::variant<leader_core, follower_core> core;
  std::int64_t next_turn = 0;
  std::optional<std::int64_t> connect_at{};
  std::set<connection_id> open{};
  bool listens = false;
  bool killed = false;
  std::vector<action::lost> losses{};
  bool joined = false;
  bool left = false;
  int exchanges = 0;
};

class cluster {
 public:
  cluster(std::size_t nodes, std::uint64_t seed) : random_(seed) {
    for (std::size_t i = 0; i < nodes; ++i) {
      const auto o = options_of(nodes, i);
      if (i == 0)
        nodes_.push_back({leader_core{o}});
      else
        nodes_.push_back({follower_core{o}});
      nodes_.back().next_turn = below(100) * ms;
      if (i > 0) nodes_.back().connect_at = below(500) * ms;
    }
    nodes_[0].listens = true;
    feed(0, event::listening{"node 0", "node 0"});
  }

  std::int64_t below(std::int64_t limit) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(limit));
  }

  void run(std::int64_t time) {
    for (const auto until = now_ + time; now_ < until; now_ += step)
      for (std::size_t i = 0; i < nodes_.size(); ++i)
        if (!nodes_[i].killed && now_ >= nodes_[i].next_turn) turn(i);
  }
  bool run_until_joined() {
    for (int i = 0; i < 100 && !all(&node::joined); ++i) run(100 * ms);
    return all(&node::joined);
  }

  void feed(std::size_t i, const event::any& e) {
    auto& n = nodes_[i];
    for (const auto& a : std::visit([&](auto& core) { return core.on(e, now_); }, n.core))
      std::visit([&](const auto& x) { carry_out(i, x); }, a);
    if (!std::exchange(answers_, false)) return;
    // One for all, or one for each.
    const auto answer = std::make_shared<const std::string>("answer");
    feed(0, event::answered{std::vector(below(2) == 0 ? 1 : nodes_.size(), answer)});
  }
  void kill(std::size_t i) {
    nodes_[i].killed = true;
    for (const auto c : std::exchange(nodes_[i].open, {})) deliver(c, i, std::nullopt);
  }
  void stall(std::size_t i, std::int64_t time) { nodes_[i].next_turn = now_ + time; }
  void cut(std::size_t i) {
    for (const auto c : nodes_[i].open) at(c, 0).cut = at(c, i).cut = true;
  }
  /// Ends the connection of a node; what is under way does not arrive.
  void disconnect(std::size_t i) {
    for (const auto c : nodes_[i].open)
      for (auto* wire : {&at(c, i), &at(c, 0)}) {
        wire->due.clear();
        wire->due.emplace_back(now_, std::nullopt);
      }
  }
  void contribute(std::size_t i) {
    feed(i, event::contributed{std::make_shared<const std::string>("bytes"), node_timeout,
                               now_ + 10 * node_timeout});
  }

  node& operator[](std::size_t i) { return nodes_[i]; }
  std::size_t size() const { return nodes_.size(); }
  bool all(bool node::*flag) const {
    return std::all_of(nodes_.begin(), nodes_.end(),
                       [&](const auto& n) { return n.killed || n.*flag; });
  }

 private:
  /// What arrives at this node over the connection.
  direction& at(connection_id c, std::size_t i) { return wires_[{c, i}]; }
  std::size_t other_end(connection_id c, std::size_t i) { return i == 0 ? follower_of_[c] : 0; }

  void deliver(connection_id c, std::size_t from, std::optional<event::any> e) {
    auto& wire = at(c, other_end(c, from));
    const auto earliest = wire.due.empty() ? now_ : wire.due.back().first;
    wire.due.emplace_back(std::max(earliest, now_ + below(30) * ms), std::move(e));
  }

  void turn(std::size_t i) {
    auto& n = nodes_[i];
    n.next_turn = now_ + heartbeat / 2 - below(20) * ms;
    feed(i, event::woke{});
    if (n.connect_at && now_ >= *n.connect_at) connect(i);
    for (const auto c : std::set<connection_id>{n.open}) receive(i, c);
    feed(i, event::turn{});
  }
  void receive(std::size_t i, connection_id c) {
    auto& wire = at(c, i);
    while (!wire.cut && !wire.due.empty() && wire.due.front().first <= now_ &&
           nodes_[i].open.contains(c)) {
      const auto e = std::move(wire.due.front().second);
      wire.due.pop_front();
      if (e) feed(i, event::heard{c});
      feed(i, e ? *e : event::any{event::closed{c, "connection closed"}});
    }
  }
  void connect(std::size_t i) {
    auto& n = nodes_[i];
    n.connect_at.reset();
    if (!nodes_[0].listens || nodes_[0].killed) return feed(i, event::unreachable{"no listener"});
    const connection_id c{connections_++};
    follower_of_[c] = i;
    n.open.insert(c);
    nodes_[0].open.insert(c);
    feed(i, event::opened{c, "node 0", "node 0"});
    feed(0, event::opened{c, "a node", "a node"});
    deliver(c, i, event::proven{c, node_id{static_cast<std::uint32_t>(i)}});
  }

  void carry_out(std::size_t i, const action::connect& a) { nodes_[i].connect_at = a.at; }
  void carry_out(std::size_t i, const action::admit& a) {
    if (i == 0) deliver(a.connection, 0, event::proven{a.connection, node_id{0}});
  }
  void carry_out(std::size_t i, const action::refuse& a) {
    deliver(a.connection, i, event::refused{a.connection, node_id{0}, a.reason, a.for_now});
  }
  void carry_out(std::size_t i, const action::send& a) {
    for (const auto c : a.to) deliver(c, i, event::received{c, a.content});
  }
  void carry_out(std::size_t i, const action::contribute& a) {
    const piece whole{a.round, a.bytes->size(), *a.bytes};
    for (const auto c : a.to) deliver(c, i, event::received{c, whole});
  }
  void carry_out(std::size_t, const action::write_notices&) {}
  void carry_out(std::size_t i, const action::close& a) {
    deliver(a.connection, i, std::nullopt);
    REQUIRE(nodes_[i].open.erase(a.connection) == 1);
  }
  void carry_out(std::size_t i, const action::stop_listening&) { nodes_[i].listens = false; }
  void carry_out(std::size_t, const action::node_waits&) { FAIL("all nodes must join"); }
  void carry_out(std::size_t, const action::examine&) { FAIL("no quorum is needed"); }
  void carry_out(std::size_t, const action::look_for_node_0&) { FAIL("node 0 must join"); }
  void carry_out(std::size_t, const action::leader_returns&) { FAIL("node 0 must join"); }
  void carry_out(std::size_t, const action::waiting&) {}
  void carry_out(std::size_t, const action::refused_join&) {}
  void carry_out(std::size_t, const action::gone_early&) {}
  void carry_out(std::size_t i, const action::join_failed& a) {
    // A node whose number is still taken starts again.
    CHECK(a.for_now);
    nodes_[i].core.emplace<follower_core>(options_of(nodes_.size(), i));
    nodes_[i].connect_at = now_ + 200 * ms;
  }
  void carry_out(std::size_t, const action::fence&) {}
  void carry_out(std::size_t, const action::job_over&) {}
  void carry_out(std::size_t, const action::clock_offset&) {}
  void carry_out(std::size_t i, const action::joined& a) {
    CHECK_FALSE(nodes_[i].joined);
    CHECK(a.members.size() == (i == 0 ? nodes_.size() : 1));
    nodes_[i].joined = true;
  }
  void carry_out(std::size_t i, const action::lost& a) { nodes_[i].losses.push_back(a); }
  void carry_out(std::size_t i, const action::left&) {
    CHECK_FALSE(nodes_[i].left);
    nodes_[i].left = true;
  }
  void carry_out(std::size_t i, const action::exchanged& a) {
    ++nodes_[i].exchanges;
    if (i > 0) {
      CHECK(*a.all.at(0) == "answer");
    } else {
      CHECK(a.all.size() == nodes_.size());
      answers_ = true;
    }
  }
  void carry_out(std::size_t, const action::exchange_failed& a) { FAIL_CHECK(a.why.message); }

  random_source random_;
  std::int64_t now_ = 0;
  std::vector<node> nodes_;
  std::uint32_t connections_ = 0;
  bool answers_ = false;  ///< node 0 has the bytes of an exchange
  std::map<connection_id, std::size_t> follower_of_;
  std::map<std::pair<connection_id, std::size_t>, direction> wires_;
};

/// A cluster that has joined, in spite of nodes that are disconnected before.
cluster joined_cluster(std::uint64_t seed) {
  random_source random{seed};
  cluster c{2 + random() % 4, seed};
  for (auto i = random() % 3; i > 0; --i) {
    c.run(static_cast<std::int64_t>(random() % 400) * ms);
    if (!c[0].joined) c.disconnect(1 + random() % (c.size() - 1));
  }
  REQUIRE(c.run_until_joined());
  c.run(static_cast<std::int64_t>(random() % 1000) * ms);
  return c;
}

/// All nodes but `except` report the loss of this node, once and in the same words.
void check_loss(cluster& c, std::uint32_t lost, std::optional<std::size_t> except = {}) {
  std::set<std::string> messages;
  for (std::size_t i = 0; i < c.size(); ++i) {
    INFO("node " << i);
    if (c[i].killed || i == except) continue;
    REQUIRE(c[i].losses.size() == 1);
    CHECK(c[i].losses[0].node == node_id{lost});
    messages.insert(c[i].losses[0].message);
  }
  CHECK(messages.size() == 1);
}

constexpr std::uint64_t seeds = 300;

}  // namespace

TEST_CASE("Nodes join, exchange and leave in any order, and no goodbye is a loss") {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    auto c = joined_cluster(seed);
    for (std::size_t i = 0; i < c.size(); ++i) {
      c.contribute(i);
      c.run(c.below(100) * ms);
    }
    c.run(1000 * ms);
    std::vector<std::size_t> order(c.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random_source{seed});
    for (const auto i : order) {
      CHECK(c[i].exchanges == 1);
      c.feed(i, event::leave{});
      c.run(c.below(3000) * ms);
      // A process that has left ends.
      if (c[i].left && c.below(2) == 0) c.kill(i);
    }
    c.run(3000 * ms);
    CHECK(c.all(&node::left));
    for (std::size_t i = 0; i < c.size(); ++i) CHECK(c[i].losses.empty());
  }
}

TEST_CASE(
    "All nodes report the loss of a killed node, and nodes that end then are no second loss") {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    auto c = joined_cluster(seed);
    const auto lost = static_cast<std::size_t>(c.below(static_cast<std::int64_t>(c.size())));
    c.kill(lost);
    c.run(500 * ms);
    check_loss(c, static_cast<std::uint32_t>(lost));
    for (std::size_t i = c.size(); i-- > 1;)
      if (!c[i].killed) c.kill(i);
    c.run(3000 * ms);
    for (std::size_t i = 0; i < c.size(); ++i) CHECK(c[i].losses.size() <= 1);
  }
}

TEST_CASE("A short stall is no loss, and a long one is the loss of the node that stalled") {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    auto c = joined_cluster(seed);
    const auto who = static_cast<std::size_t>(c.below(static_cast<std::int64_t>(c.size())));
    const auto time = (100 + c.below(4000)) * ms;
    c.stall(who, time);
    c.run(time + 3000 * ms);
    std::size_t reports = 0;
    for (std::size_t i = 0; i < c.size(); ++i) reports += c[i].losses.size();
    if (time < node_timeout - 2 * heartbeat) CHECK(reports == 0);
    // Between both limits some nodes may see the stall in time.
    if (time > node_timeout + 2 * heartbeat || reports > 0)
      check_loss(c, static_cast<std::uint32_t>(who));
  }
}

TEST_CASE("A node that is cut off is lost for all others, and node 0 is lost for it") {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    auto c = joined_cluster(seed);
    const auto who = 1 + static_cast<std::size_t>(c.below(static_cast<std::int64_t>(c.size() - 1)));
    c.cut(who);
    c.run(node_timeout + 1000 * ms);
    check_loss(c, static_cast<std::uint32_t>(who), who);
    REQUIRE(c[who].losses.size() == 1);
    CHECK(c[who].losses[0].node == node_id{0});
  }
}

TEST_CASE("A node 0 that is cut off names itself if there are several others, which name it") {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    auto c = joined_cluster(seed);
    for (std::size_t i = 1; i < c.size(); ++i) c.cut(i);
    c.run(node_timeout + 1000 * ms);
    for (std::size_t i = 0; i < c.size(); ++i) {
      REQUIRE(c[i].losses.size() == 1);
      CHECK(c[i].losses[0].node == node_id{i == 0 && c.size() == 2 ? 1u : 0u});
    }
  }
}

TEST_CASE("If all nodes are stopped together, nothing is lost") {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    auto c = joined_cluster(seed);
    const auto time = (2000 + c.below(8000)) * ms;
    for (std::size_t i = 0; i < c.size(); ++i) c.stall(i, time + c.below(500) * ms);
    c.run(time + 4000 * ms);
    for (std::size_t i = 0; i < c.size(); ++i) CHECK(c[i].losses.empty());
  }
}

}  // namespace rrfp::membership_core
