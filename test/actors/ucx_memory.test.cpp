/// The bounded structures under the transport: slabs and mailboxes.
#include <cstring>
#include <thread>

#include <catch2/catch.hpp>

#include <rrfp/transport/slab_pool.hpp>
#include <rrfp/transport/ucx/byte_exchange.hpp>

namespace rrfp::actors::ucx {
namespace {

using std::chrono::milliseconds;

std::span<const std::byte> bytes_of(const char* text) {
  return std::as_bytes(std::span{text, std::strlen(text)});
}

}  // namespace

TEST_CASE("Slabs are aligned, do not overlap, and are reused") {
  const auto pool = slab_pool::make(1 << 20);
  std::vector<slab> taken;
  for (const std::size_t bytes : {0U, 1U, 64U, 256U, 257U, 4096U, 100'000U}) {
    taken.push_back(pool->take(bytes));
    CHECK(reinterpret_cast<std::uintptr_t>(taken.back().data()) % 64 == 0);
    std::memset(taken.back().data(), static_cast<int>(taken.size()), bytes);
  }
  for (std::size_t i = 1; i < taken.size(); ++i)
    CHECK(taken[i].data()[0] == static_cast<std::byte>(i + 1));
  CHECK(pool->count().slabs_in_use == 7);
  CHECK(pool->count().bytes_in_use == 4 * 256 + 512 + 4096 + 131'072);
  auto* const last = taken.back().data();
  taken.clear();
  CHECK(pool->count().slabs_in_use == 0);
  CHECK(pool->count().bytes_in_use == 0);
  CHECK(pool->take(70'000).data() == last);
}

TEST_CASE("A pool keeps unused memory only up to its limit") {
  const auto pool = slab_pool::make(10'000);
  std::vector<slab> taken;
  for (int i = 0; i < 8; ++i) taken.push_back(pool->take(4096));
  taken.clear();
  CHECK(pool->count().bytes_cached == 8192);
  auto moved = pool->take(4096);
  CHECK(pool->count().bytes_cached == 4096);
  moved = slab{};
  CHECK(pool->count().bytes_cached == 8192);
}

#ifndef __SANITIZE_ADDRESS__  // the sanitizer aborts instead
TEST_CASE("Without system memory take() returns an empty slab and does not count it") {
  const auto pool = slab_pool::make(0);
  CHECK(pool->take(std::size_t{1} << 47).data() == nullptr);
  CHECK(pool->count().slabs_in_use == 0);
  CHECK(pool->count().bytes_in_use == 0);
}
#endif

TEST_CASE("A slab outlives its pool's owner and may be returned by any thread") {
  auto pool = slab_pool::make(1 << 20);
  std::vector<slab> taken;
  for (int i = 0; i < 100; ++i) taken.push_back(pool->take(1000));
  const std::weak_ptr<slab_pool> watch = pool;
  pool.reset();
  CHECK_FALSE(watch.expired());
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (std::size_t i = t; i < taken.size(); i += 4) taken[i] = {};
    });
  for (auto& t : threads) t.join();
  CHECK(watch.expired());
}

TEST_CASE("A mailbox keeps unexpected bytes by sender and tag, in order, up to a limit") {
  byte_mailbox box{slab_pool::make(1 << 20), 3 * (64 + 5)};
  CHECK(box.arrive(rank_id{1}, 7, bytes_of("first")));
  CHECK(box.arrive(rank_id{1}, 7, bytes_of("later")));
  CHECK(box.arrive(rank_id{2}, 7, bytes_of("other")));
  CHECK_FALSE(box.arrive(rank_id{2}, 8, bytes_of("")));
  char into[5];
  const auto receive = [&](std::uint32_t from, std::uint64_t tag) -> std::string {
    const auto s =
        box.receive(rank_id{from}, tag, std::as_writable_bytes(std::span{into}), milliseconds{1});
    if (!s) return s.message();
    return *s ? std::string(into, **s) : "nothing";
  };
  CHECK(receive(2, 7) == "other");
  CHECK(receive(1, 7) == "first");
  CHECK(receive(1, 7) == "later");
  CHECK(receive(1, 7) == "nothing");
  CHECK(box.arrive(rank_id{1}, 9, bytes_of("four")));
  CHECK(receive(1, 9) == "four");
  CHECK(box.arrive(rank_id{1}, 9, bytes_of("too long")));
  CHECK(receive(1, 9) == "a rank channel expected at most 5 bytes, got 8");
}

TEST_CASE("A waiting receive ends with its message, the loss of its sender, or close()") {
  byte_mailbox box{slab_pool::make(1 << 20), 1 << 20};
  box.set_members({node_id{0}, node_id{1}, node_id{2}}, {});
  char into[5] = {};
  const auto wait_while = [&](auto action) {
    std::string outcome;
    std::thread waits{[&] {
      const auto s =
          box.receive(rank_id{1}, 3, std::as_writable_bytes(std::span{into}), milliseconds{20'000});
      outcome = !s ? s.message() : *s ? std::string(into, **s) : "nothing";
    }};
    std::this_thread::sleep_for(milliseconds{GENERATE(0, 20)});
    action();
    waits.join();
    return outcome;
  };
  CHECK(wait_while([&] {
          box.arrive(rank_id{1}, 4, bytes_of("other"));
          box.arrive(rank_id{2}, 3, bytes_of("other"));
          box.arrive(rank_id{1}, 3, bytes_of("right"));
        }) == "right");
  CHECK(wait_while([&] { box.arrive(rank_id{1}, 3, bytes_of("wrong size")); }) ==
        "a rank channel expected at most 5 bytes, got 10");
  CHECK(wait_while([&] {
          box.end(node_id{2}, "not this");
          box.arrive(rank_id{2}, 3, bytes_of("other"));
          box.end(node_id{1}, "node 1 is gone");
        }) == "node 1 is gone");
  CHECK(wait_while([] {}) == "node 1 is gone");
  box.close("the transport is closed");
  CHECK(wait_while([] {}) == "the transport is closed");
}

}  // namespace rrfp::actors::ucx
