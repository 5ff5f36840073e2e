/// The state of a rank as bytes, and the copies that a process holds.
#include <cstring>
#include <random>

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include <rrfp/actors/recovery.hpp>

#include "recovery/state_bytes.hpp"

namespace rrfp::actors {
namespace {

using state = std::vector<compute::named_tensor>;

at::Tensor room(std::int64_t bytes) { return at::full({bytes}, 0xee, at::kByte); }

state some_state() {
  compute::shard part;
  part.whole = {8, 3};
  part.dimension = 0;
  part.offset = 4;
  part.length = 4;
  return {{"weight", at::arange(12, at::kFloat).view({4, 3}), part},
          {"optimizer.weight.step", at::tensor(7.0), std::nullopt},
          {"half", at::arange(5, at::kFloat).to(at::kBFloat16), std::nullopt},
          {"empty", at::empty({0, 3}, at::kFloat), std::nullopt},
          {"count", at::tensor({1L << 40, -2L}, at::kLong), std::nullopt}};
}

void check_equal(const state& a, const state& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    INFO(a[i].name);
    CHECK(a[i].name == b[i].name);
    CHECK(a[i].value.scalar_type() == b[i].value.scalar_type());
    CHECK(at::equal(a[i].value, b[i].value));
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
    CHECK(bytes.numel() % 64 == 0);
    after = state_of_bytes(bytes);
  }
  // The tensors keep the bytes.
  REQUIRE(after);
  check_equal(before, *after);
  for (const auto& t : *after)
    CHECK(reinterpret_cast<std::uintptr_t>(t.value.const_data_ptr()) % t.value.element_size() == 0);
}

TEST_CASE("equal states have equal bytes, whatever was in the memory before") {
  const auto a = bytes_of_state(some_state(), room);
  const auto b = bytes_of_state(some_state(), [](auto n) { return at::zeros({n}, at::kByte); });
  CHECK(at::equal(a, b));
}

TEST_CASE("a state without tensors is bytes, too") {
  const auto after = state_of_bytes(bytes_of_state({}, room));
  REQUIRE(after);
  CHECK(after->empty());
}

TEST_CASE("bytes that end early are an error") {
  const auto bytes = bytes_of_state(some_state(), room);
  // The data of the last tensor is 16 bytes, then 48 of padding follow.
  for (std::int64_t size = 0; size < bytes.numel() - 48; ++size) {
    INFO(size << " of " << bytes.numel());
    CHECK_FALSE(state_of_bytes(bytes.slice(0, 0, size).clone()));
  }
}

TEST_CASE("bytes that are no state are an error or some state, and nothing outside is read") {
  const auto good = bytes_of_state(some_state(), room);
  std::mt19937_64 random{1};
  int errors = 0;
  for (int i = 0; i < 30000; ++i) {
    auto bytes = good.clone();
    auto* const data = bytes.mutable_data_ptr<std::uint8_t>();
    std::int64_t header = 0;
    std::memcpy(&header, data, sizeof header);
    for (int n = 0; n < 3; ++n)
      data[random() % static_cast<std::uint64_t>(header + 8)] = static_cast<std::uint8_t>(random());
    const auto read = state_of_bytes(bytes);
    if (!read) {
      ++errors;
      continue;
    }
    const auto* const begin = static_cast<const std::byte*>(bytes.const_data_ptr());
    for (const auto& t : *read) {
      const auto* const at = static_cast<const std::byte*>(t.value.const_data_ptr());
      if (t.value.numel() == 0) continue;
      CHECK(at >= begin);
      CHECK(at + t.value.nbytes() <= begin + bytes.numel());
    }
  }
  CHECK(errors > 10000);
}

TEST_CASE("a store gives the memory of a dropped copy to the next one, unless somebody reads it") {
  copy_store store;
  const auto key = [](std::uint64_t step) { return copy_key{step, stage_id{0}, rank_id{0}}; };
  const auto put = [&](std::uint64_t step) {
    auto made = store.make_room(key(step), 64);
    const auto* const data = made.const_data_ptr();
    store.put(key(step), {std::move(made), step}, step - 1);
    store.keep({step, "record"});
    return data;
  };
  const auto* const first = put(1);
  put(2);
  CHECK(put(3) == first);
  const auto read = store.find(key(3));
  REQUIRE(read);
  CHECK(read->xxh64 == 3);
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
