/// Manifests: a round trip, and refusal of truncated or altered text.
#include <catch2/catch.hpp>

#include <nlohmann/json.hpp>

#include <rrfp/checkpoint/checksum.hpp>
#include <rrfp/checkpoint/manifest.hpp>
#include <rrfp/checkpoint/part.hpp>

namespace rrfp::checkpoint::test {
namespace {

using nlohmann::ordered_json;

manifest example() {
  manifest m;
  m.step = 42;
  m.written_at = "2026-01-31T12:00:00Z";
  m.identity = {{"model.hidden", "128"}, {"train.optimizer", "\"adamw\""}};
  m.course = {{"train.lr", "0.001"}};
  m.shape = {4, 2, 16, placement::v};
  m.tp = 2;
  m.replicas = 3;
  m.files = {{"stage-000-rank-00.safetensors", 123, 0xfedcba9876543210U},
             {"stage-000-rank-01.safetensors", 0, 1}};
  m.history = std::string(
      "\0\xff"
      "job",
      5);
  return m;
}

std::string refusal(const std::string& text) {
  const auto read = parse_manifest(text);
  return read ? "accepted" : read.message();
}

/// The text of a manifest with another value for `key` and a matching checksum.
std::string with(const std::string& pointer, const ordered_json& value) {
  auto made = ordered_json::parse(to_json(example()));
  made[ordered_json::json_pointer{pointer}] = value;
  made.erase("xxh64");
  made["xxh64"] = hex(checksum_of(made.dump()));
  return made.dump(1);
}

TEST_CASE("A manifest reads back as it was written") {
  const auto read = parse_manifest(to_json(example()));
  REQUIRE(read);
  const auto m = example();
  CHECK(read->step == m.step);
  CHECK(read->written_at == m.written_at);
  CHECK(read->identity == m.identity);
  CHECK(read->course == m.course);
  CHECK(read->shape == m.shape);
  CHECK(read->tp == m.tp);
  CHECK(read->replicas == m.replicas);
  CHECK(read->history == m.history);
  CHECK(read->files == m.files);
  CHECK(to_json(*read) == to_json(m));
}

TEST_CASE("A manifest of an earlier version, which has a place in the data, is read") {
  const auto text = with("/data", {{"next_step", 42}, {"microbatches_read", 2016}});
  REQUIRE(text.find("microbatches_read") != std::string::npos);
  CHECK(refusal(text) == "accepted");
}

TEST_CASE("A manifest of a job that keeps no history has none") {
  auto m = example();
  m.history.clear();
  CHECK(to_json(m).find("history") == std::string::npos);
  CHECK(parse_manifest(to_json(m))->history.empty());
}

TEST_CASE("A truncated manifest is refused, wherever it ends") {
  const auto whole = to_json(example());
  for (std::size_t length = 0; length + 2 < whole.size(); ++length) {
    const auto said = refusal(whole.substr(0, length));
    CHECK_THAT(said, Catch::Matchers::Contains("truncated or altered"));
  }
}

TEST_CASE("A manifest with any altered byte is refused") {
  const auto whole = to_json(example());
  for (std::size_t i = 0; i < whole.size(); ++i) {
    auto altered = whole;
    altered[i] = altered[i] == '7' ? '8' : '7';
    // Between tokens a changed byte breaks the syntax; within a token it changes the meaning.
    INFO("byte " << i);
    CHECK(refusal(altered) != "accepted");
  }
}

TEST_CASE("A manifest of another format or with a missing key is refused with the reason") {
  CHECK(refusal(with("/format", 2)) == "expected format 1, got 2");
  CHECK_THAT(refusal(with("/step", "x")), Catch::Matchers::StartsWith("not a manifest: "));
  CHECK_THAT(refusal("{}"), Catch::Matchers::StartsWith("not a manifest: "));
  CHECK_THAT(refusal("[]"), Catch::Matchers::StartsWith("not a manifest: "));
  CHECK(refusal(with("/files/0/name", "../x")) == "files: expected a plain file name, got '../x'");
  CHECK(refusal(with("/files/0/name", "..")) == "files: expected a plain file name, got '..'");
  CHECK(refusal(with("/files/1/xxh64", "12")) ==
        "files: stage-000-rank-01.safetensors: xxh64: expected 16 hexadecimal digits, got '12'");
  CHECK(refusal(with("/history", "abc")) ==
        "history: expected pairs of hexadecimal digits, got 'abc'");
  CHECK(refusal(with("/history", "zz")) ==
        "history: expected pairs of hexadecimal digits, got 'zz'");
  CHECK(refusal(with("/step", 43)) == "accepted");
}

TEST_CASE("Settings are compared by key, and new keys are ignored") {
  const std::vector<setting> saved{{"a", "1"}, {"b", "2"}, {"c", "3"}};
  CHECK(differences(saved, {{"c", "3"}, {"a", "1"}, {"b", "2"}, {"d", "4"}}).empty());
  CHECK(differences(saved, {{"a", "1"}, {"b", "9"}}) ==
        std::vector<difference>{{"b", "2", "9"}, {"c", "3", ""}});
}

TEST_CASE("Parts read back, and a part that does not fit its tensor is refused") {
  const parts all{{"a", {{96, 32}, 0, 3, 16, 8}}, {"b", {{4}, 0, 1, 0, 2}}};
  const auto read = parse_parts(to_json(all));
  REQUIRE(read);
  CHECK(*read == all);
  CHECK(parse_parts("{}")->empty());
  CHECK_FALSE(parse_parts("{"));
  CHECK_FALSE(parse_parts(R"({"a":{}})"));

  const auto fits = [](const shard& p, std::vector<std::int64_t> shape) {
    return check_part(p, shape).ok();
  };
  CHECK(fits({{96, 32}, 0, 3, 16, 8}, {24, 32}));
  CHECK(fits({{96, 32}, 1, 1, 24, 8}, {96, 8}));
  CHECK(fits({{96, 32}, 0, 3, 24, 8}, {24, 32}));
  CHECK_FALSE(fits({{96, 32}, 0, 3, 25, 8}, {24, 32}));  // beyond its block
  CHECK_FALSE(fits({{96, 32}, 0, 3, 16, 8}, {25, 32}));
  CHECK_FALSE(fits({{96, 32}, 0, 3, 16, 8}, {24, 31}));
  CHECK_FALSE(fits({{96, 32}, 0, 3, 16, 8}, {24}));
  CHECK_FALSE(fits({{96, 32}, 2, 3, 16, 8}, {24, 32}));
  CHECK_FALSE(fits({{96, 32}, -1, 3, 16, 8}, {24, 32}));
  CHECK_FALSE(fits({{96, 32}, 0, 5, 0, 1}, {5, 32}));
  CHECK_FALSE(fits({{96, 32}, 0, 0, 0, 1}, {0, 32}));
  CHECK_FALSE(fits({{96, 32}, 0, 3, -1, 8}, {24, 32}));
}

TEST_CASE("Stored forms read back") {
  const stored_forms all{{"a", {true, {}}}, {"b", {false, {8, 3, 4, 4}}}};
  const auto read = parse_stored(to_json(all));
  REQUIRE(read);
  CHECK(*read == all);
  CHECK(parse_stored("{}")->empty());
  CHECK_FALSE(parse_stored("["));
  CHECK_FALSE(parse_stored(R"({"a":{"transposed":1,"sizes":[]}})"));
}

TEST_CASE("A checksum does not depend on how the bytes are divided") {
  checksum a, b;
  const std::string text(10000, 'x');
  const auto bytes = std::as_bytes(std::span{text});
  a.add(bytes);
  for (std::size_t i = 0; i < bytes.size(); i += 100) b.add(bytes.subspan(i, 100));
  CHECK(a.value() == b.value());
  CHECK(a.value() == checksum_of(text));
  CHECK(a.bytes() == 10000);
  CHECK(hex(0x12) == "0000000000000012");
}

}  // namespace
}  // namespace rrfp::checkpoint::test
