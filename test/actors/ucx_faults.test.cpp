/// How a node handles a peer that violates the protocol, and messages of other jobs.
#include <atomic>
#include <mutex>

#include "ucx_nodes.hpp"

#include <catch2/catch.hpp>

namespace rrfp::testing {
namespace {

using namespace rrfp::actors;
using std::chrono::milliseconds;

message from_0_to_1(std::uint32_t mb, std::int64_t floats) {
  return {{payload::activation, step_id{2}, microbatch_id{mb}, chunk_id{0}, on_node(0), on_node(1)},
          make_host_buffer(dtype::float32, {floats})};
}

/// What the receiver observes of one fault: the failures reported and the messages received.
struct verdict {
  std::mutex mutex;
  std::vector<std::string> reports;
  std::atomic<std::uint32_t> got = 0;

  std::function<void(node_id, std::string)> note() {
    return [this](node_id, std::string why) {
      const std::lock_guard lock{mutex};
      reports.push_back(std::move(why));
    };
  }
  std::vector<std::string> all() {
    const std::lock_guard lock{mutex};
    return reports;
  }
};

using change = std::function<void(ucx_options&)>;
using act = std::function<void(ucx_transport&)>;
using judge = std::function<void(ucx_transport&, verdict&)>;

/// Node 0 runs `sends`, node 1 checks with `judges`.
std::string one_way(const std::string& tls, const change& options_0, const change& options_1,
                    const act& sends, const judge& judges) {
  return run_nodes(tls, {[&](test_node& node) {
                           auto options = node.options();
                           options_0(options);
                           const auto wire = node.connected(options);
                           node.barrier();
                           sends(*wire);
                           node.barrier();
                         },
                         [&](test_node& node) {
                           auto options = node.options();
                           options_1(options);
                           verdict v;
                           const auto wire = node.connected(options, v.note());
                           wire->bind(on_node(1), [&](message) { ++v.got; });
                           node.barrier();
                           judges(*wire, v);
                           node.barrier();
                         }});
}

void as_it_is(ucx_options&) {}

void expect_report(verdict& v, const std::string& start) {
  expect(eventually([&] { return !v.all().empty(); }), "no failure was reported");
  const auto all = v.all();
  expect(all.size() == 1, "several failures were reported");
  expect(all[0].starts_with(start), all[0]);
}

}  // namespace

TEST_CASE("Data that does not match its checksum is a failure of the sender, small or large") {
  const auto tls = GENERATE(as<std::string>{}, "posix", "tcp");
  const std::int64_t floats = GENERATE(25, 1'000'000);
  CHECK(one_way(
            tls,
            [](ucx_options& o) {
              o.inject = [](const message_header& h) {
                fault f;
                f.corrupt = h.mb.value() == 1;
                return f;
              };
            },
            as_it_is,
            [&](ucx_transport& wire) {
              wire.send(from_0_to_1(0, floats));
              wire.send(from_0_to_1(1, floats));
            },
            [&](ucx_transport&, verdict& v) {
              expect_report(v,
                            "node 0: the data does not match its checksum: an activation of step "
                            "3, microbatch 1, chunk 0 (stage 0 rank 0 of replica 0 -> stage 1 "
                            "rank 0 of replica 0, " +
                                std::to_string(floats * 4) + " bytes)");
              expect(v.got <= 1, "damaged data was delivered");
            }) == "");
}

TEST_CASE("Messages of another job or epoch are dropped, and their sender is not a failure") {
  const auto tls = GENERATE(as<std::string>{}, "posix", "tcp");
  const bool another_job = GENERATE(true, false);
  CHECK(one_way(
            tls,
            [&](ucx_options& o) {
              o.job_token += another_job ? 1 : 0;
              o.epoch += another_job ? 0 : 1;
            },
            as_it_is,
            [](ucx_transport& wire) {
              for (std::uint32_t mb = 0; mb < 10; ++mb) wire.send(from_0_to_1(mb, 4));
              for (std::uint32_t mb = 0; mb < 10; ++mb) wire.send(from_0_to_1(mb, 100'000));
            },
            [](ucx_transport& wire, verdict& v) {
              expect(eventually([&] { return wire.counters().dropped_stale == 20; }),
                     [&] { return "dropped: " + std::to_string(wire.counters().dropped_stale); });
              expect(v.got == 0 && v.all().empty(),
                     "a message was delivered or a failure reported");
            }) == "");
}

TEST_CASE("A message above the limit is refused where it is sent and where it arrives") {
  const auto tls = GENERATE(as<std::string>{}, "posix", "tcp");
  const auto limit = [](ucx_options& o) { o.message_bytes_max = 1'000'000; };
  const auto sends = [](ucx_transport& wire) { wire.send(from_0_to_1(0, 250'001)); };
  CHECK(one_way(tls, as_it_is, limit, sends, [](ucx_transport&, verdict& v) {
          expect_report(v, "node 0: it sent more than message_bytes_max, 1000000: an activation");
        }) == "");
  // The sender gives up on the receiver, which sees the connection end.
  CHECK(run_nodes(tls, {[&](test_node& node) {
                          auto options = node.options();
                          limit(options);
                          verdict v;
                          const auto wire = node.connected(options, v.note());
                          node.barrier();
                          sends(*wire);
                          expect_report(v,
                                        "node 1: a message of 1000004 bytes to it exceeds "
                                        "message_bytes_max, 1000000");
                          node.barrier();
                        },
                        [](test_node& node) {
                          const auto wire = node.connected(node.options());
                          node.barrier();
                          node.barrier();
                        }}) == "");
}

TEST_CASE("A message to an unbound address is a failure of the sender") {
  const auto tls = GENERATE(as<std::string>{}, "posix", "tcp");
  CHECK(one_way(
            tls, as_it_is, as_it_is,
            [](ucx_transport& wire) {
              wire.route({stage_id{5}, rank_id{6}}, node_id{1});
              auto m = from_0_to_1(0, 4);
              m.header.to = {stage_id{5}, rank_id{6}};
              wire.send(std::move(m));
            },
            [](ucx_transport&, verdict& v) {
              expect_report(v,
                            "node 0: no receiver on this node: an activation of step 3, microbatch "
                            "0, chunk 0 (stage 0 rank 0 of replica 0 -> stage 5 rank 6");
            }) == "");
}

TEST_CASE("A lost message is reported when the window is full; later messages arrive") {
  const auto tls = GENERATE(as<std::string>{}, "posix", "tcp");
  constexpr std::uint32_t window = 65'536;
  CHECK(one_way(
            tls,
            [](ucx_options& o) {
              o.inject = [](const message_header& h) {
                fault f;
                f.drop = h.mb.value() == 0;
                return f;
              };
            },
            as_it_is,
            [](ucx_transport& wire) {
              for (std::uint32_t mb = 0; mb <= window; ++mb) wire.send(from_0_to_1(mb, 1));
            },
            [](ucx_transport&, verdict& v) {
              expect_report(v,
                            "node 0: a message was lost: one of the 65536 before this one never "
                            "arrived: an activation of step 3, microbatch 65536");
              expect(v.got == window - 1, "arrived: " + std::to_string(v.got));
            }) == "");
}

TEST_CASE("After give_up() a node is reported once, and nothing is sent to it") {
  const auto tls = GENERATE(as<std::string>{}, "posix", "tcp");
  CHECK(one_way(
            tls, as_it_is, as_it_is, [](ucx_transport& wire) { wire.send(from_0_to_1(0, 1)); },
            [](ucx_transport& wire, verdict& v) {
              // UCX 1.13 aborts a process whose peer leaves while they still connect.
              expect(eventually([&] { return v.got == 1; }), "the connection is not up");
              wire.give_up(node_id{0}, "no heartbeat for 5 s");
              wire.give_up(node_id{0}, "again");
              expect_report(v, "node 0: no heartbeat for 5 s");
              auto m = from_0_to_1(0, 1);
              std::swap(m.header.from, m.header.to);
              wire.send(std::move(m));
              expect(eventually([&] { return wire.counters().dropped_unreachable == 1; }),
                     "a message was sent to it");
            }) == "");
}

TEST_CASE("Invalid, damaged and repeated addresses are refused with a message") {
  const auto body = [](test_node& node) {
    auto opened = ucx_transport::open(node.options());
    expect(opened.ok(), "does not open");
    auto& wire = **opened;
    const auto refusal = [&](const std::string& address) {
      const auto s = wire.connect(node_id{9}, address);
      return s ? std::string{"none"} : s.message();
    };
    expect(refusal("") == "connecting to node 9: not the UCX address of a node (0 bytes)",
           refusal(""));
    auto other = ucx_transport::open(node.options());
    const auto good = (*other)->address();
    for (std::size_t size = 0; size < good.size(); ++size)
      expect(refusal(good.substr(0, size)) != "none", "a cut address passed");
    for (std::size_t i = 0; i < good.size(); ++i) {
      auto bad = good;
      bad[i] = static_cast<char>(bad[i] ^ 1);
      expect(refusal(bad) != "none", "a damaged address passed");
    }
    expect(refusal(good) == "none", "a good address does not pass");
    expect(refusal(good) == "node 9 is connected already", "a second time passes");
    wire.close();
    expect(refusal(good) == "the transport is closed", refusal(good));
    auto options = node.options();
    options.inflight_bytes_max = options.message_bytes_max - 1;
    expect(!ucx_transport::open(options).ok(), "contradicting limits pass");
  };
  CHECK(run_nodes("posix", {body}) == "");
  const auto no_transport = [](test_node& node) {
    const auto opened = ucx_transport::open(node.options());
    expect(!opened.ok() && opened.message().find("UCX says") != std::string::npos,
           "an unknown transport passes");
  };
  CHECK(run_nodes("nonsense", {no_transport}) == "");
}

}  // namespace rrfp::testing
