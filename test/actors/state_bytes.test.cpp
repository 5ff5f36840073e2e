/// The state of a rank as bytes, and the copies that a process holds.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include <catch2/catch.hpp>

#include <rrfp/actors/recovery.hpp>
#include <rrfp/actors/recovery/state_bytes.hpp>

namespace rrfp::actors {
namespace {

using state = std::vector<compute::named_buffer>;

tensor_buffer filled(std::int64_t bytes, int value) {
  auto b = make_host_buffer(dtype::uint8, {bytes});
  std::memset(b.data, value, b.bytes());
  return b;
}
tensor_buffer room(std::int64_t bytes) { return filled(bytes, 0xee); }

template <class T>
tensor_buffer buffer_of(dtype type, std::vector<std::int64_t> sizes, const std::vector<T>& values) {
  auto b = make_host_buffer(type, std::move(sizes));
  if (b.bytes() > 0) std::memcpy(b.data, values.data(), b.bytes());
  return b;
}

tensor_buffer bytes_of_state(state tensors,
                             const std::function<tensor_buffer(std::int64_t)>& make_room) {
  state_copy copy{std::move(tensors), make_room};
  copy.finish();
  return copy.bytes();
}

bool same_bytes(const tensor_buffer& a, const tensor_buffer& b) {
  return std::ranges::equal(a.content(), b.content());
}

state some_state() {
  compute::shard part;
  part.whole = {8, 3};
  part.dimension = 0;
  part.offset = 4;
  part.length = 4;
  std::vector<float> weight(12);
  std::iota(weight.begin(), weight.end(), 0.0f);
  return {{"weight", buffer_of(dtype::float32, {4, 3}, weight), part},
          {"optimizer.weight.step", buffer_of<double>(dtype::float64, {}, {7.0})},
          {"half", buffer_of<std::uint16_t>(dtype::bfloat16, {5}, {0, 0x3f80, 0x4000, 0x4040, 1})},
          {"empty", buffer_of<float>(dtype::float32, {0, 3}, {})},
          {"count", buffer_of<std::int64_t>(dtype::int64, {2}, {1L << 40, -2L})}};
}

void check_equal(const state& a, const state& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    INFO(a[i].name);
    CHECK(a[i].name == b[i].name);
    CHECK(a[i].value.type == b[i].value.type);
    CHECK(a[i].value.sizes == b[i].value.sizes);
    CHECK(same_bytes(a[i].value, b[i].value));
    REQUIRE(a[i].part.has_value() == b[i].part.has_value());
    if (!a[i].part) continue;
    CHECK(a[i].part->whole == b[i].part->whole);
    CHECK(a[i].part->offset == b[i].part->offset);
    CHECK(a[i].part->length == b[i].part->length);
  }
}

}  // namespace

TEST_CASE("a state is the same after it was bytes") {
  const auto before = some_state();
  result<state> after = state{};
  {
    const auto bytes = bytes_of_state(before, room);
    CHECK(bytes.elements() % 64 == 0);
    after = state_of_bytes(bytes);
  }
  // The tensors keep the bytes.
  REQUIRE(after);
  check_equal(before, *after);
  for (const auto& t : *after)
    CHECK(reinterpret_cast<std::uintptr_t>(t.value.data) % item_bytes(t.value.type) == 0);
}

TEST_CASE("equal states have equal bytes, whatever was in the memory before") {
  const auto a = bytes_of_state(some_state(), room);
  const auto b = bytes_of_state(some_state(), [](auto n) { return filled(n, 0); });
  CHECK(same_bytes(a, b));
}

TEST_CASE("several threads copy a state, and each returns when all of it is copied") {
  std::vector<std::int32_t> values(3 << 20);
  std::iota(values.begin(), values.end(), 0);
  const state large{{"a", buffer_of(dtype::int32, {3 << 20}, values)},
                    {"b", buffer_of(dtype::int32, {3, 1 << 20}, values)}};
  state_copy copy{large, room};
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      copy.finish();
      const auto after = state_of_bytes(copy.bytes());
      right += after && same_bytes((*after)[0].value, large[0].value) &&
               same_bytes((*after)[1].value, large[1].value);
    });
  for (auto& t : threads) t.join();
  CHECK(right == 4);
}

TEST_CASE("a state without tensors is bytes, too") {
  const auto after = state_of_bytes(bytes_of_state({}, room));
  REQUIRE(after);
  CHECK(after->empty());
}

TEST_CASE("bytes that end early are an error") {
  const auto bytes = bytes_of_state(some_state(), room);
  // The data of the last tensor is 16 bytes, then 48 of padding follow.
  for (std::int64_t size = 0; size < bytes.elements() - 48; ++size) {
    INFO(size << " of " << bytes.elements());
    auto first = bytes;
    first.sizes = {size};
    CHECK_FALSE(state_of_bytes(copy_of(first)));
  }
}

TEST_CASE("bytes that are no state are an error or some state, and nothing outside is read") {
  const auto good = bytes_of_state(some_state(), room);
  std::mt19937_64 random{1};
  int errors = 0;
  for (int i = 0; i < 30000; ++i) {
    auto bytes = copy_of(good);
    auto* const data = static_cast<std::uint8_t*>(bytes.data);
    std::int64_t header = 0;
    std::memcpy(&header, data, sizeof header);
    for (int n = 0; n < 3; ++n)
      data[random() % static_cast<std::uint64_t>(header + 8)] = static_cast<std::uint8_t>(random());
    const auto read = state_of_bytes(bytes);
    if (!read) {
      ++errors;
      continue;
    }
    const auto* const begin = bytes.content().data();
    for (const auto& t : *read) {
      const auto* const at = t.value.content().data();
      if (t.value.elements() == 0) continue;
      CHECK(at >= begin);
      CHECK(at + t.value.bytes() <= begin + bytes.bytes());
    }
  }
  CHECK(errors > 10000);
}

TEST_CASE("a store gives the memory of a dropped copy to the next one, unless somebody reads it") {
  copy_store store;
  const auto key = [](std::uint64_t step) { return copy_key{step, stage_id{0}, rank_id{0}}; };
  const auto put = [&](std::uint64_t step) {
    auto made = store.make_room(key(step), 64);
    const auto* const data = made.data;
    store.put({key(step), 64, step}, std::move(made), step - 1);
    store.keep({step, "record"});
    return data;
  };
  const auto* const first = put(1);
  put(2);
  CHECK(put(3) == first);
  const auto read = store.find(key(3));
  REQUIRE(read);
  CHECK(read->data == first);
  CHECK(store.held().front().xxh64 == 3);
  put(4);
  CHECK(put(5) != first);
  CHECK(store.held().size() == 1);
  CHECK(store.record().step == 5);
  CHECK_FALSE(store.find(key(4)));
  store.clear();
  CHECK(store.held().empty());
  CHECK(store.record().bytes.empty());
}

}  // namespace rrfp::actors
