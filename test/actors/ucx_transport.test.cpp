/// Tensors between real processes, over shared memory and TCP.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <thread>

#include "ucx_nodes.hpp"

#include <catch2/catch.hpp>

namespace rrfp::testing {
namespace {

using namespace rrfp::actors;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t mib = std::size_t{1} << 20;

message message_of(std::uint32_t from, std::uint32_t to, std::uint32_t mb, tensor_buffer tensor) {
  return {
      {payload::activation, step_id{7}, microbatch_id{mb}, chunk_id{1}, on_node(from), on_node(to)},
      std::move(tensor)};
}

/// The contents follow from the number, so the receiver can check them.
tensor_buffer small_tensor(std::uint32_t mb) {
  auto t = make_host_buffer(dtype::float32, {static_cast<std::int64_t>(mb % 97) + 1});
  std::ranges::fill(std::span{static_cast<float*>(t.data), mb % 97 + 1}, static_cast<float>(mb));
  return t;
}

tensor_buffer large_tensor(std::uint32_t mb, std::size_t bytes) {
  auto t = make_host_buffer(dtype::int32, {static_cast<std::int64_t>(bytes / 4)});
  for (std::uint32_t i = 0; auto& n : std::span{static_cast<std::uint32_t*>(t.data), bytes / 4})
    n = i++ * (2654435761u + mb);
  return t;
}

bool same_bits(const tensor_buffer& a, const tensor_buffer& b) {
  return a.type == b.type && a.sizes == b.sizes && std::ranges::equal(a.content(), b.content());
}

/// Collects messages in the order of arrival.
class inbox {
 public:
  message_sink sink() {
    return [this](message m) {
      const std::lock_guard lock{mutex_};
      got_.push_back(std::move(m));
    };
  }
  std::size_t size() {
    const std::lock_guard lock{mutex_};
    return got_.size();
  }
  std::vector<message> take() {
    const std::lock_guard lock{mutex_};
    return std::exchange(got_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<message> got_;
};

/// The failures that a transport reported.
class failures {
 public:
  std::function<void(node_id, std::string)> note() {
    return [this](node_id node, std::string why) {
      const std::lock_guard lock{mutex_};
      all_.emplace_back(node, std::move(why));
    };
  }
  std::vector<std::pair<node_id, std::string>> all() {
    const std::lock_guard lock{mutex_};
    return all_;
  }
  std::string text() {
    std::string t;
    for (const auto& [_, why] : all()) t += why + "\n";
    return t;
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<node_id, std::string>> all_;
};

std::size_t entries_of(const char* folder) {
  const std::filesystem::directory_iterator all{folder};
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

}  // namespace

TEST_CASE("10,000 reordered, duplicated and delayed messages arrive once each at a slow receiver") {
  const auto tls = GENERATE(as<std::string>{}, "posix", "tcp");
  constexpr std::uint32_t count = 10'000;
  const auto fault_of = [](const message_header& h) {
    std::mt19937 random{h.mb.value()};
    fault f;
    f.duplicates = random() % 10 == 0 ? 1 + random() % 2 : 0;
    if (random() % 3 == 0) f.delay = std::chrono::microseconds{random() % 30'000};
    return f;
  };
  std::uint64_t duplicates = 0;
  for (std::uint32_t mb = 0; mb < count; ++mb)
    duplicates += fault_of(message_of(0, 1, mb, {}).header).duplicates;
  REQUIRE(duplicates > 1000);

  const auto sends = [&](test_node& node) {
    auto options = node.options();
    options.inject = fault_of;
    const auto wire = node.connected(options);
    node.barrier();
    std::vector<std::uint32_t> order(count);
    std::iota(order.begin(), order.end(), 0U);
    std::shuffle(order.begin(), order.end(), std::mt19937{1});
    for (const auto mb : order) wire->send(message_of(0, 1, mb, small_tensor(mb)));
    node.barrier();
    expect(wire->counters().sent == count + duplicates, "not all was sent");
  };
  const auto receives = [&](test_node& node) {
    auto options = node.options();
    options.cached_bytes_max = mib;
    const auto wire = node.connected(options);
    inbox box;
    wire->bind(on_node(1), box.sink());
    node.barrier();
    std::map<std::uint32_t, int> times;
    std::uint32_t seen = 0;
    bool any_overtook = false;
    const auto all_here = [&] {
      for (const auto& m : box.take()) {
        const auto mb = m.header.mb.value();
        any_overtook |= mb < seen;
        seen = mb;
        ++times[mb];
        expect(same_bits(m.tensor, small_tensor(mb)), "wrong data in " + std::to_string(mb));
        if (mb % 100 == 0) std::this_thread::sleep_for(milliseconds{2});
      }
      return times.size() == count && wire->counters().dropped_duplicate == duplicates;
    };
    expect(eventually(all_here), [&] {
      return std::to_string(times.size()) + " arrived, of " + std::to_string(duplicates) +
             " duplicates were dropped " + std::to_string(wire->counters().dropped_duplicate);
    });
    for (const auto& [mb, n] : times) expect(n == 1, "not once: " + std::to_string(mb));
    const auto now = wire->counters();
    expect(any_overtook, "the test sent in order");
    expect(now.received == count, "counted " + std::to_string(now.received));
    expect(now.slabs_in_use == 0, "slabs are held after their tensors were destroyed");
    expect(now.slab_bytes_cached <= options.cached_bytes_max, "too much is cached");
    expect(now.dropped_invalid + now.dropped_stale == 0, "valid messages were dropped");
    node.barrier();
  };
  CHECK(run_nodes(tls, {sends, receives}) == "");
}

TEST_CASE("Many large tensors at once are fetched within the limit, bit for bit") {
  const auto tls = GENERATE(as<std::string>{}, "posix", "tcp");
  constexpr std::uint32_t count = 16;
  constexpr auto bytes = 4 * mib;
  const auto body = [&](test_node& node) {
    auto options = node.options();
    options.message_bytes_max = 8 * mib;
    options.inflight_bytes_max = 10 * mib;
    failures failed;
    const auto wire = node.connected(options, failed.note());
    const auto own = node.id().value();
    inbox box;
    wire->bind(on_node(own), box.sink());
    node.barrier();
    // Made before the first one is sent, which takes less time.
    std::vector<message> messages;
    for (std::uint32_t mb = 0; mb < count; ++mb)
      messages.push_back(message_of(own, 1 - own, mb, large_tensor(mb + own, bytes)));
    for (auto& m : messages) wire->send(std::move(m));
    expect(eventually([&] { return box.size() == count; }, seconds{40}),
           [&] { return "arrived: " + std::to_string(box.size()) + " " + failed.text(); });
    const auto now = wire->counters();
    expect(now.inflight_bytes_peak <= options.inflight_bytes_max, "more in flight than allowed");
    expect(now.inflight_bytes_peak == 2 * bytes,
           "expected two fetches at a time, peak " + std::to_string(now.inflight_bytes_peak));
    // The counters follow the delivery.
    expect(eventually([&] {
             const auto last = wire->counters();
             return last.inflight_bytes == 0 && last.announced == 0;
           }),
           "a transfer is left");
    for (const auto& m : box.take()) {
      expect(reinterpret_cast<std::uintptr_t>(m.tensor.data) % 64 == 0, "not aligned");
      expect(m.tensor.contiguous, "not contiguous");
      expect(same_bits(m.tensor, large_tensor(m.header.mb.value() + 1 - own, bytes)), "wrong data");
    }
    node.barrier();
  };
  CHECK(run_nodes(tls, {body, body}) == "");
}

TEST_CASE(
    "Large tensors without a checksum are fetched into the memory that device_allocator returns") {
  const bool checked = GENERATE(false, true);
  constexpr std::uint32_t count = 6;
  constexpr std::uint32_t rooms_max = 4;
  const auto sends = [&](test_node& node) {
    auto options = node.options();
    options.checksum_data = checked;
    const auto wire = node.connected(options);
    wire->route(on_node(1), node_id{1});
    node.barrier();
    for (std::uint32_t mb = 0; mb < count; ++mb)
      wire->send(message_of(0, 1, mb, large_tensor(mb, mib)));
    wire->send(message_of(0, 1, count, small_tensor(count)));
    node.barrier();
  };
  const auto receives = [&](test_node& node) {
    std::mutex mutex;
    std::set<std::thread::id> entered;
    auto options = node.options();
    options.enter_thread = [&] {
      const std::lock_guard lock{mutex};
      entered.insert(std::this_thread::get_id());
    };
    const auto wire = node.connected(options);
    expect(entered.size() == 2, "not on the thread that opens and the progress thread");
    std::set<const void*> rooms;
    std::uint32_t asked = 0;
    wire->fetch_to_devices(
        [&](const rank_address& to, std::span<const std::int64_t> sizes, dtype type) {
          expect(to == on_node(1) && type == dtype::int32, "asked for another tensor");
          if (++asked > rooms_max) return tensor_buffer{};
          auto room = make_host_buffer(type, {sizes.begin(), sizes.end()});
          rooms.insert(room.data);
          return room;
        });
    inbox box;
    wire->bind(on_node(1), box.sink());
    node.barrier();
    expect(eventually([&] { return box.size() == count + 1; }), "not all have arrived");
    std::uint32_t in_rooms = 0;
    for (const auto& m : box.take()) {
      const auto mb = m.header.mb.value();
      expect(same_bits(m.tensor, mb == count ? small_tensor(mb) : large_tensor(mb, mib)), "bits");
      in_rooms += rooms.contains(m.tensor.data);
    }
    expect(asked == (checked ? 0 : count), "asked " + std::to_string(asked) + " times");
    expect(in_rooms == (checked ? 0 : rooms_max), std::to_string(in_rooms) + " in rooms");
    node.barrier();
  };
  CHECK(run_nodes("posix", {sends, receives}) == "");
}

TEST_CASE("Every dtype and shape arrives unchanged") {
  const auto tls = GENERATE(as<std::string>{}, "posix", "tcp");
  const auto tensor_of = [](std::uint32_t i) {
    const std::vector<std::vector<std::int64_t>> shapes{
        {}, {0}, {1}, {3, 0, 5}, {17}, {5, 7}, {1, 2, 1, 3, 1, 2, 1, 3}, {129, 257}};
    auto t = make_host_buffer(static_cast<dtype>(1 + i / shapes.size()), shapes[i % shapes.size()]);
    for (std::uint32_t n = i; auto& b : t.content()) b = static_cast<std::byte>(n++);
    return t;
  };
  constexpr std::uint32_t count = 8 * 13;
  const auto sends = [&](test_node& node) {
    const auto wire = node.connected(node.options());
    node.barrier();
    for (std::uint32_t i = 0; i < count; ++i) {
      auto m = message_of(0, 1, i, tensor_of(i));
      m.header.kind = static_cast<payload>(i % 3);
      m.header.step = step_id{std::uint64_t{1} << 40};
      wire->send(std::move(m));
    }
    node.barrier();
  };
  const auto receives = [&](test_node& node) {
    const auto wire = node.connected(node.options());
    inbox box;
    wire->bind(on_node(1), box.sink());
    node.barrier();
    expect(eventually([&] { return box.size() == count; }),
           [&] { return "arrived: " + std::to_string(box.size()); });
    for (const auto& m : box.take()) {
      const auto i = m.header.mb.value();
      expect(same_bits(m.tensor, tensor_of(i)), "differs: " + std::to_string(i));
      expect(m.header.kind == static_cast<payload>(i % 3), "another kind");
      expect(m.header.step == step_id{std::uint64_t{1} << 40}, "another step");
      expect(m.header.chunk == chunk_id{1} && m.header.from == on_node(0), "another header");
    }
    node.barrier();
  };
  CHECK(run_nodes(tls, {sends, receives}) == "");
}

TEST_CASE("A killed node is reported once, idle or under traffic, and closing is prompt") {
  const auto tls = GENERATE(as<std::string>{}, "posix", "tcp");
  const std::uint32_t traffic = GENERATE(0U, 40U);
  // Over shared memory only the keepalive (500 ms, two rounds) detects it.
  const auto limit = tls == "tcp" ? milliseconds{2000} : milliseconds{5000};
  const auto dies = [&](test_node& node) {
    const auto wire = node.connected(node.options());
    wire->bind(on_node(1), [](message) {});
    node.barrier();
    for (std::uint32_t mb = 0; mb < traffic; ++mb)
      wire->send(message_of(1, 0, mb, large_tensor(mb, 4 * mib)));
    node.barrier();
    ::kill(::getpid(), SIGKILL);
  };
  const auto survives = [&](test_node& node) {
    auto options = node.options();
    options.message_bytes_max = 4 * mib;
    options.inflight_bytes_max = 4 * mib;
    failures failed;
    const auto wire = node.connected(options, failed.note());
    inbox box;
    wire->bind(on_node(0), box.sink());
    const auto channel = wire->open_channel({1, {on_node(0), on_node(1)}}, rank_id{0});
    node.barrier();
    for (std::uint32_t mb = 0; mb < traffic / 4; ++mb)
      wire->send(message_of(0, 1, mb, large_tensor(mb, 4 * mib)));
    node.barrier();
    std::byte never[8];
    const auto begun = std::chrono::steady_clock::now();
    const auto got = channel->receive(rank_id{1}, 0, never, seconds{30});
    expect(!got && got.message().find("node 1") != std::string::npos, "the channel did not end");
    expect(eventually([&] { return !failed.all().empty(); }, limit), "nobody noticed");
    const auto took = std::chrono::steady_clock::now() - begun;
    expect(took < limit, "noticed late");
    for (std::uint32_t mb = 0; mb < 10; ++mb) wire->send(message_of(0, 1, mb, small_tensor(mb)));
    expect(eventually([&] { return wire->counters().dropped_unreachable == 10; }),
           "messages to a dead node are not dropped");
    std::this_thread::sleep_for(milliseconds{300});
    expect(failed.all().size() == 1, "reported more than once: " + failed.text());
    expect(failed.all()[0].first == node_id{1}, "another node");
    const auto closes = std::chrono::steady_clock::now();
    wire->close();
    expect(std::chrono::steady_clock::now() - closes < seconds{3}, "closing hung");
    box.take();
    expect(wire->counters().slabs_in_use == 0,
           "slabs leaked: " + std::to_string(wire->counters().slabs_in_use));
  };
  CHECK(run_nodes(tls, {survives, dies}, true) == "");
}

TEST_CASE("Closing under traffic is prompt, leaks nothing, and the other node reports no failure") {
  const auto tls = GENERATE(as<std::string>{}, "posix", "tcp");
  const auto body = [&](test_node& node) {
    const auto own = node.id().value();
    // UCX keeps resources open for reuse; only growth after the first round is a leak.
    std::size_t descriptors = 0;
    std::size_t threads = 0;
    for (int round = 0; round < 3; ++round) {
      auto options = node.options();
      options.message_bytes_max = 4 * mib;
      options.inflight_bytes_max = 8 * mib;
      options.close_max = milliseconds{1000};
      failures failed;
      const auto wire = node.connected(options, failed.note());
      inbox box;
      std::atomic<bool> is_closed = false;
      std::atomic<int> late = 0;
      wire->bind(on_node(own), [&, keep = box.sink()](message m) {
        if (is_closed) ++late;
        keep(std::move(m));
      });
      node.barrier();
      for (std::uint32_t mb = 0; mb < 200; ++mb) {
        wire->send(message_of(own, 1 - own, mb, small_tensor(mb)));
        if (mb % 5 == 0) wire->send(message_of(own, 1 - own, mb, large_tensor(mb, 4 * mib)));
      }
      expect(eventually([&] { return box.size() >= 20; }), [&] { return failed.text(); });
      // Node 0 closes at once; node 1 closes later and must not report a failure.
      if (own == 1) std::this_thread::sleep_for(milliseconds{700});
      const auto begun = std::chrono::steady_clock::now();
      wire->close();
      is_closed = true;
      const auto took = std::chrono::steady_clock::now() - begun;
      expect(took < seconds{2}, "closing took long");
      wire->send(message_of(own, 1 - own, 0, small_tensor(0)));
      wire->send(message_of(own, own, 0, small_tensor(0)));
      std::this_thread::sleep_for(milliseconds{50});
      expect(late == 0, "a sink was called after close()");
      expect(failed.all().empty(), "reported as a failure: " + failed.text());
      const auto kept = box.take();
      expect(same_bits(kept[0].tensor, kept[0].tensor.bytes() < mib
                                           ? small_tensor(kept[0].header.mb.value())
                                           : large_tensor(kept[0].header.mb.value(), 4 * mib)),
             "a received tensor does not outlive close()");
      expect(wire->counters().slabs_in_use == kept.size(),
             "slabs leaked: " + std::to_string(wire->counters().slabs_in_use) + " of " +
                 std::to_string(kept.size()));
      node.barrier();
      if (round == 0) {
        descriptors = entries_of("/proc/self/fd");
        threads = entries_of("/proc/self/task");
      }
      // The transport object still exists, closed.
      expect(entries_of("/proc/self/fd") <= descriptors, "descriptors leaked");
      expect(entries_of("/proc/self/task") <= threads, "threads leaked");
    }
  };
  const auto segments = entries_of("/dev/shm");
  CHECK(run_nodes(tls, {body, body}) == "");
  // Other processes of the machine may have some for a moment.
  CHECK(eventually([&] { return entries_of("/dev/shm") <= segments; }));
}

TEST_CASE("Actor messages of any size are read in the order in which their node sent them") {
  const auto tls = GENERATE(as<std::string>{}, "posix", "tcp");
  constexpr std::uint32_t count = 3000;
  // A long message takes many fragments, and the short one after it must not overtake it.
  const auto encoded_message = [](std::uint32_t from, std::uint32_t i) {
    const std::size_t size = i % 50 == 0 ? 200'000 : i % 7 == 0 ? 20'000 : 1 + i % 90;
    return std::string(size, static_cast<char>('a' + (from + i) % 26));
  };
  const node_body body = [&](test_node& node) {
    std::map<node_id, std::uint32_t> read;
    std::atomic<std::uint32_t> wrong = 0, total = 0;
    failures failed;
    auto wire = node.connected(node.options(), failed.note());
    wire->on_actor_message([&](node_id from, std::string_view message) {
      if (message != encoded_message(from.value(), read[from]++)) ++wrong;
      ++total;
      return success();
    });
    node.barrier();
    for (std::uint32_t i = 0; i < count; ++i)
      for (std::uint32_t to = 0; to < 3; ++to)
        if (node_id{to} != node.id())
          wire->send_actor_message(node_id{to}, encoded_message(node.id().value(), i));
    expect(eventually([&] { return total == 2 * count; }), "actor messages are missing");
    expect(wrong == 0, "actor messages came in another order");
    node.barrier();
    wire->close();
    expect(failed.all().empty(), failed.text());
  };
  CHECK(run_nodes(tls, {body, body, body}) == "");
}

TEST_CASE(
    "Actor messages larger than tensors may be are read, and so are those sent before close()") {
  const node_body closes = [](test_node& node) {
    auto options = node.options();
    options.message_bytes_max = options.inflight_bytes_max = 1000;
    auto wire = node.connected(std::move(options));
    std::atomic<bool> reads = false;
    wire->on_actor_message([&](node_id, std::string_view) {
      reads = true;
      std::this_thread::sleep_for(milliseconds{300});  // the progress thread cannot send
      return success();
    });
    node.barrier();
    expect(eventually([&] { return reads.load(); }), "no actor messages came");
    wire->send_actor_message(node_id{1}, std::string(2000, 'x'));
    wire->close();
    node.barrier();
  };
  const node_body reader = [](test_node& node) {
    auto options = node.options();
    options.message_bytes_max = options.inflight_bytes_max = 1000;
    failures failed;
    std::atomic<std::size_t> bytes = 0;
    auto wire = node.connected(std::move(options), failed.note());
    wire->on_actor_message([&](node_id, std::string_view message) {
      bytes = message.size();
      return success();
    });
    node.barrier();
    wire->send_actor_message(node_id{0}, "hello");
    expect(eventually([&] { return bytes == 2000; }), "the last actor message is missing");
    node.barrier();
    expect(failed.all().empty(), failed.text());
  };
  CHECK(run_nodes("posix", {closes, reader}) == "");
}

TEST_CASE("A sender rests while the receiver has no room") {
  const auto tls = GENERATE(as<std::string>{}, "posix", "tcp");
  constexpr milliseconds busy{800};
  const node_body sender = [&](test_node& node) {
    auto wire = node.connected(node.options());
    node.barrier();
    for (int i = 0; i < 16; ++i) wire->send_actor_message(node_id{1}, std::string(4 * mib, 'x'));
    std::this_thread::sleep_for(busy / 4);
    const auto before = std::clock();
    std::this_thread::sleep_for(busy / 2);
    const auto used = milliseconds{(std::clock() - before) * 1000 / CLOCKS_PER_SEC};
    expect(used < busy / 4, "the sender polled for " + std::to_string(used.count()) + " ms");
    node.barrier();
    wire->close();
  };
  const node_body receiver = [&](test_node& node) {
    auto wire = node.connected(node.options());
    std::atomic<int> read = 0;
    wire->on_actor_message([&](node_id, std::string_view) {
      if (read == 0) std::this_thread::sleep_for(busy);
      ++read;
      return success();
    });
    node.barrier();
    expect(eventually([&] { return read == 16; }), "actor messages are missing");
    node.barrier();
  };
  CHECK(run_nodes(tls, {sender, receiver}) == "");
}

TEST_CASE("A node whose actor message is not understood has failed") {
  const node_body sender = [](test_node& node) {
    auto wire = node.connected(node.options());
    node.barrier();
    wire->send_actor_message(node_id{1}, "hello");
    node.barrier();
  };
  const node_body reader = [](test_node& node) {
    failures failed;
    auto wire = node.connected(node.options(), failed.note());
    wire->on_actor_message([](node_id, std::string_view) { return error{"no such actor"}; });
    node.barrier();
    expect(eventually([&] { return !failed.all().empty(); }), "no failure was reported");
    expect(
        failed.text() == "node 0: cannot be understood: actor message 0 (5 bytes): no such actor\n",
        failed.text());
    node.barrier();
  };
  CHECK(run_nodes("posix", {sender, reader}) == "");
}

TEST_CASE("A tensor to an address bound here is handed over; others are sent to their node") {
  const auto tls = GENERATE(as<std::string>{}, "posix", "tcp");
  const auto body = [&](test_node& node) {
    const auto wire = node.connected(node.options());
    const auto own = node.id().value();
    inbox box;
    inbox near;
    const rank_address neighbour{stage_id{own}, rank_id{1}};
    wire->bind(on_node(own), box.sink());
    wire->bind(neighbour, near.sink());
    wire->route(on_node(own), node_id{own});
    node.barrier();
    auto m = message_of(own, own, 5, small_tensor(5));
    m.header.to = neighbour;
    const auto* const sent = m.tensor.data;
    wire->send(std::move(m));
    const auto got = near.take();
    expect(got.size() == 1 && got[0].tensor.data == sent, "it was copied");
    wire->send(message_of(own, 1 - own, 6, small_tensor(6)));
    expect(eventually([&] { return box.size() == 1; }), "nothing arrived from the other node");
    expect(eventually([&] { return wire->counters().sent == 1; }), "nothing was sent there");
    expect(wire->transports().find(tls) != std::string::npos, wire->transports());
    node.barrier();
    expect(wire->counters().sent == 1, "the local message was sent over the network too");
  };
  CHECK(run_nodes(tls, {body, body}) == "");
}

}  // namespace rrfp::testing
