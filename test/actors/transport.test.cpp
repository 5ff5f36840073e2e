#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include <rrfp/transport/transport.hpp>

// Last: libtorch has a CHECK of its own.
#include <catch2/catch.hpp>

namespace {

using namespace rrfp;
using namespace rrfp::actors;

const rank_address alice{stage_id{0}, rank_id{0}};
const rank_address bob{stage_id{1}, rank_id{0}};

message message_of(std::uint32_t mb) {
  return {{payload::activation, step_id{0}, microbatch_id{mb}, chunk_id{0}, alice, bob},
          make_host_buffer(dtype::float32, {2})};
}

/// Collects microbatch numbers as they arrive.
struct inbox {
  std::mutex mutex;
  std::vector<std::uint32_t> got;

  message_sink sink() {
    return [this](message m) {
      const std::lock_guard lock{mutex};
      got.push_back(m.header.mb.value());
    };
  }
  std::vector<std::uint32_t> wait_for(std::size_t count) {
    for (int i = 0; i < 2000; ++i) {
      {
        const std::lock_guard lock{mutex};
        if (got.size() >= count) return got;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds{5});
    }
    return got;
  }
};

}  // namespace

TEST_CASE("in one process the tensor itself is handed over") {
  const auto wire = make_in_process_transport();
  const void* arrived = nullptr;
  wire->bind(bob, [&](message m) { arrived = m.tensor.data; });
  auto m = message_of(3);
  const void* const sent = m.tensor.data;
  wire->send(std::move(m));
  CHECK(arrived == sent);
}

TEST_CASE("a closed transport delivers nothing") {
  const auto wire = make_in_process_transport();
  inbox box;
  wire->bind(bob, box.sink());
  wire->close();
  wire->send(message_of(1));
  CHECK(box.got.empty());
}

TEST_CASE("delayed messages overtake each other, and none is lost or duplicated") {
  const auto wire =
      make_delaying_transport(make_in_process_transport(), [](const message_header& h) {
        return h.mb.value() == 0 ? 120.0 : h.mb.value() == 1 ? 40.0 : 0.0;
      });
  inbox box;
  wire->bind(bob, box.sink());
  for (std::uint32_t mb = 0; mb < 3; ++mb) wire->send(message_of(mb));
  const std::vector<std::uint32_t> latest_first{2, 1, 0};
  CHECK(box.wait_for(3) == latest_first);
}

TEST_CASE("no message of many concurrent senders is lost") {
  std::atomic<std::uint32_t> delay = 0;
  const auto wire = make_delaying_transport(
      make_in_process_transport(), [&](const message_header&) { return ++delay % 3 * 0.5; });
  inbox box;
  wire->bind(bob, box.sink());
  std::vector<std::thread> senders;
  for (std::uint32_t t = 0; t < 4; ++t)
    senders.emplace_back([&, t] {
      for (std::uint32_t i = 0; i < 500; ++i) wire->send(message_of(t * 500 + i));
    });
  for (auto& s : senders) s.join();
  auto got = box.wait_for(2000);
  std::sort(got.begin(), got.end());
  REQUIRE(got.size() == 2000);
  CHECK(std::adjacent_find(got.begin(), got.end()) == got.end());
  CHECK(got.back() == 1999);
}

TEST_CASE("closing drops delayed messages at once") {
  inbox box;
  const auto wire = make_delaying_transport(make_in_process_transport(),
                                            [](const message_header&) { return 60'000.0; });
  wire->bind(bob, box.sink());
  wire->send(message_of(1));
  const auto begun = std::chrono::steady_clock::now();
  wire->close();
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds{10});
  CHECK(box.got.empty());
}
