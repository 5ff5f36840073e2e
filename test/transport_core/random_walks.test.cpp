/// Whatever a network does to messages, each is delivered once, and what waits is bounded.
#include <random>

#include <catch2/catch.hpp>

#include <rrfp/core/transport_core.hpp>

namespace rrfp::messaging {
namespace {

using random_source = std::mt19937_64;

constexpr node_id sender{0};
constexpr node_id receiver{1};
constexpr std::uint64_t inflight_max = 300;

std::uint64_t below(random_source& random, std::uint64_t limit) { return random() % limit; }

transport_core_options options_of(node_id node) { return {node, 7, 0, 64, 200, inflight_max, 200}; }

struct in_transit {
  tensor_header header;
  bool is_announced;
};

/// Moves announced data in any order, and delivers what the core says.
class receiving_driver {
 public:
  explicit receiving_driver(random_source& random) : random_(random) {}

  void arrive(const in_transit& m) {
    // A descriptor only has to be not null.
    const auto what = core.arrived(m.header, m.header.data_bytes,
                                   m.is_announced ? static_cast<void*>(&random_) : nullptr);
    if (what == disposition::deliver) deliver(m.header);
    if (what == disposition::keep) ++kept_;
  }
  void fetch_some() {
    while (auto next = core.next_fetch()) {
      --kept_;
      if (!next->is_stale) fetching_.push_back(std::move(next->header));
    }
    CHECK(core.counts().inflight_bytes <= inflight_max);
    CHECK(core.counts().announced == kept_);
    // Something is always fetched while something waits, so all of it is fetched in the end.
    CHECK((kept_ == 0 || !fetching_.empty()));
    if (fetching_.empty()) return;
    const auto which = below(random_, fetching_.size());
    const auto h = fetching_[which];
    fetching_.erase(fetching_.begin() + static_cast<std::ptrdiff_t>(which));
    if (core.fetched(h) == disposition::deliver) deliver(std::get<tensor_header>(h));
  }
  bool is_idle() const { return kept_ == 0 && fetching_.empty(); }

  transport_core core{options_of(receiver)};
  std::map<std::uint32_t, int> delivered;

 private:
  void deliver(const tensor_header& h) {
    ++delivered[h.message.mb.value()];
    core.delivered(h, delivery::done);
  }

  random_source& random_;
  std::size_t kept_ = 0;
  std::vector<any_header> fetching_;
};

}  // namespace

TEST_CASE("Reordered, repeated and delayed messages are delivered once each, and none is lost") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    INFO("seed " << seed);
    random_source random{seed};
    transport_core from{options_of(sender)};
    from.connected(receiver, &from);
    receiving_driver to{random};
    std::vector<in_transit> network;
    std::uint64_t repeated = 0;
    const std::uint32_t count = 300;
    std::uint32_t sent = 0;
    while (sent < count || !network.empty() || !to.is_idle()) {
      const auto what = below(random, 4);
      if (what == 0 && sent < count) {
        tensor_header h;
        h.message.mb = microbatch_id{sent++};
        h.message.to.stage = stage_id{static_cast<std::uint32_t>(below(random, 3))};
        h.data_bytes = below(random, 201);
        REQUIRE(from.number(receiver, h));
        const auto by = from.link_for(receiver, h);
        REQUIRE(by.link == &from);
        network.push_back({h, by.is_announced});
      } else if (what == 1 && !network.empty()) {
        const auto which = below(random, network.size());
        to.arrive(network[which]);
        if (below(random, 5) == 0)
          ++repeated;  // a copy stays in the network
        else
          network.erase(network.begin() + static_cast<std::ptrdiff_t>(which));
      } else {
        to.fetch_some();
      }
    }
    CHECK(to.delivered.size() == count);
    for (const auto& [mb, times] : to.delivered) REQUIRE(times == 1);
    const auto& c = to.core.counts();
    CHECK(c.received == count);
    CHECK(c.received_bytes == from.counts().sent_bytes);
    CHECK(c.dropped_duplicate == repeated);
    CHECK(c.announced + c.inflight_bytes + to.core.fetching() == 0);
    CHECK(c.inflight_bytes_peak <= inflight_max);
    CHECK_FALSE(to.core.has_ends());
  }
}

TEST_CASE("Whatever arrives, each node ends at most once, and nothing is sent to it after that") {
  std::uint64_t ended = 0;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    INFO("seed " << seed);
    random_source random{seed};
    transport_core core{options_of(receiver)};
    int links[3] = {};
    std::set<node_id> has_ended;
    std::vector<any_header> fetching;
    for (int i = 0; i < 200; ++i) {
      const node_id node{static_cast<std::uint32_t>(below(random, 3))};
      tensor_header h;
      h.job_token = below(random, 9) == 0 ? 8 : 7;
      h.from_node = node;
      h.sequence = below(random, 300) == 0 ? 1 << 20 : below(random, 50);
      h.message.from.stage = stage_id{node.value()};
      h.data_bytes = below(random, 202);
      switch (below(random, 8)) {
        case 0:
          if (core.may_connect(node)) core.connected(node, &links[node.value()]);
          break;
        case 1: {
          const auto by = core.link_for(node, h);
          CHECK((by.link == nullptr || !has_ended.contains(node)));
          break;
        }
        case 2: {
          disconnect_header f;
          f.job_token = h.job_token;
          f.from_node = node;
          f.is_answer = below(random, 20) > 0;
          core.arrived(f);
          break;
        }
        case 3:
          while (auto next = core.next_fetch())
            if (!next->is_stale) fetching.push_back(std::move(next->header));
          CHECK(core.counts().inflight_bytes <= inflight_max);
          CHECK(core.fetching() == fetching.size());
          break;
        case 4:
          if (fetching.empty()) break;
          core.fetched(fetching.back(), below(random, 40) == 0 ? "the wire is cut" : "");
          fetching.pop_back();
          break;
        case 5:
          if (below(random, 30) == 0) core.broke(node, "cut");
          break;
        case 6: {
          const bool is_announced = h.data_bytes > 64;
          const auto what = core.arrived(h, h.data_bytes, is_announced ? &links : nullptr);
          CHECK(what != (is_announced ? disposition::deliver : disposition::keep));
          if (what == disposition::deliver)
            core.delivered(h, below(random, 90) == 0 ? delivery::damaged : delivery::done);
          break;
        }
        default:
          for (const auto& e : core.settle())
            if (e.is_new) CHECK(has_ended.insert(e.node).second);
      }
      for (const auto n : core.connected()) CHECK_FALSE(has_ended.contains(n));
    }
    ended += has_ended.size();
  }
  CHECK(ended > 500);
}

}  // namespace rrfp::messaging
