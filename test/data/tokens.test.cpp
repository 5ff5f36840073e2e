// data.tokens: ids on disk, as windows or as documents.
#include <set>

#include "support.hpp"

namespace rrfp::data::test {

namespace {

template <class Id>
std::string bytes_of(const std::vector<Id>& ids) {
  return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(Id)};
}

struct pair_of_files {
  const scratch_folder* folder;
  std::vector<std::uint16_t> ids;
  std::string dtype = "\"uint16\"";
  std::string format = "\"rrfp-tokens\"";
  std::string version = "1";
  std::string tokens = {};  ///< empty: as it is
  std::string vocabulary = "1000";
  std::string documents = {};

  std::string write_as(const std::string& name) const {
    test::write(*folder / (name + ".json"),
                "{\"format\": " + format + ", \"version\": " + version + ", \"dtype\": " + dtype +
                    ", \"tokens\": " + (tokens.empty() ? std::to_string(ids.size()) : tokens) +
                    ", \"vocabulary\": " + vocabulary +
                    (documents.empty() ? "" : ", \"documents\": " + documents) +
                    ", \"tokenizer\": \"for people\"}");
    return test::write(*folder / (name + ".bin"), bytes_of(ids));
  }
};

std::vector<std::uint16_t> count_from(std::uint16_t first, std::size_t n) {
  std::vector<std::uint16_t> ids;
  for (std::size_t i = 0; i < n; ++i) ids.push_back(static_cast<std::uint16_t>(first + i));
  return ids;
}

source_config config_of_files(std::vector<std::string> files) {
  auto config = config_of([&](job::data_options& d) {
    d.tokens = std::move(files);
    d.sequence_length = 4;
    d.order = job::sample_order::file;
  });
  config.vocabulary = 2000;
  return config;
}

using rows = std::vector<std::vector<std::int64_t>>;

}  // namespace

TEST_CASE("without documents the samples are windows, the targets one token on") {
  const scratch_folder folder;
  const auto a =
      pair_of_files{&folder, count_from(10, 13)}.write_as("a");  // 3 windows, 1 token over
  const auto b = pair_of_files{&folder, count_from(500, 8)}.write_as("b");  // 1 window
  const auto config = config_of_files({a, b});
  const auto s = open_good(config);
  const auto first = s->load(step_id{0}, microbatch_id{0});
  CHECK(first.inputs.sizes().equals({3, 4}));
  CHECK(first.lengths.empty());
  CHECK(sequences_of(first, first.inputs) ==
        rows{{10, 11, 12, 13}, {14, 15, 16, 17}, {18, 19, 20, 21}});
  CHECK(at::equal(first.targets, first.inputs + 1));
  CHECK(first.tokens == 12);
  const auto second = s->load(step_id{0}, microbatch_id{1});
  CHECK(sequences_of(second, second.inputs)[0] == std::vector<std::int64_t>{500, 501, 502, 503});
  CHECK(sequences_of(second, second.inputs)[1] == std::vector<std::int64_t>{10, 11, 12, 13});
  CHECK(s->report() == "21 tokens, 4 samples");
  check_promises(*s, config);
}

TEST_CASE("a file that is truncated while it is read is an error that names it") {
  const scratch_folder folder;
  const auto a = pair_of_files{&folder, count_from(10, 900)}.write_as("a");
  const auto config = config_of_files({a});
  const auto s = open_good(config);
  s->load(step_id{0}, microbatch_id{0});
  std::filesystem::resize_file(a, 0);
  CHECK_THROWS_WITH(s->load(step_id{1}, microbatch_id{0}),
                    a + ": cannot be read: the file became shorter");
}

TEST_CASE("each document is a sequence of its own") {
  const scratch_folder folder;
  pair_of_files files{&folder, count_from(256, 9)};  // 256 and 257 are tokens like others
  files.documents = "[0, 3, 5]";
  const auto config = config_of_files({files.write_as("a")});
  const auto s = open_good(config);
  const auto batch = s->load(step_id{0}, microbatch_id{0});
  CHECK(batch.inputs.dim() == 1);
  CHECK(sequences_of(batch, batch.inputs) ==
        rows{{256, 257, 258}, {259, 260}, {261, 262, 263, 264}});
  const auto none = compute::ignored_target;
  CHECK(sequences_of(batch, batch.targets) ==
        rows{{257, 258, none}, {260, none}, {262, 263, 264, none}});
  CHECK(batch.tokens == 6);
  check_promises(*s, config);
}

TEST_CASE("files with and without documents may be combined") {
  const scratch_folder folder;
  pair_of_files documents{&folder, count_from(10, 5)};
  documents.documents = "[0, 2]";
  const auto config = config_of_files(
      {documents.write_as("a"), pair_of_files{&folder, count_from(100, 9)}.write_as("b")});
  const auto s = open_good(config);
  const auto batch = s->load(step_id{0}, microbatch_id{0});
  CHECK(sequences_of(batch, batch.inputs) == rows{{10, 11}, {12, 13, 14}, {100, 101, 102, 103}});
  CHECK(sequences_of(batch, batch.targets)[2] == std::vector<std::int64_t>{101, 102, 103, 104});
  check_promises(*s, config);
}

TEST_CASE("ids of 32 bits are read") {
  const scratch_folder folder;
  const std::vector<std::uint32_t> ids{1, 70000, 2, 65536, 99999};
  write(folder / "a.json",
        "{\"format\": \"rrfp-tokens\", \"version\": 1, \"dtype\": \"uint32\", \"tokens\": 5, "
        "\"vocabulary\": 100000}");
  auto config = config_of_files({write(folder / "a.bin", bytes_of(ids))});
  config.vocabulary = 100000;
  const auto batch = open_good(config)->load(step_id{0}, microbatch_id{0});
  CHECK(sequences_of(batch, batch.inputs)[0] == std::vector<std::int64_t>{1, 70000, 2, 65536});
  config.vocabulary = 99999;
  CHECK(refusal(config) ==
        (folder / "a.bin") + ": token 4 is 99999, but model.vocabulary is 99999");
}

TEST_CASE("a document that is too long or too short follows the rules") {
  const scratch_folder folder;
  pair_of_files files{&folder, count_from(10, 9)};
  files.documents = "[0, 5, 6]";
  const auto file = files.write_as("a");
  auto config = config_of_files({file});
  CHECK(refusal(config).starts_with(
      file + ": document 0: expected at most data.sequence_length = 4 tokens, got 5"));
  config.data.when_too_long = job::too_long::cut;
  CHECK(refusal(config) == file + ": document 1: expected at least 2 tokens, got 1");
  config.data.when_bad = job::bad_samples::skip;
  const auto s = open_good(config);
  CHECK(s->report() == "9 tokens, 2 samples, 1 left out: 1 empty text; 1 cut");
  check_promises(*s, config);
  config.data.when_too_long = job::too_long::skip;
  CHECK(open_good(config)->report() == "9 tokens, 1 sample, 2 left out: 1 empty text, 1 too long");
}

TEST_CASE("a token file that does not match its sidecar is refused by name") {
  const scratch_folder folder;
  const pair_of_files good{&folder, count_from(10, 9)};
  const auto bin = folder / "a.bin";
  const auto sidecar = folder / "a.json";
  const auto check = [&](pair_of_files files, const std::string& refused) {
    INFO(refused);
    CHECK(refusal(config_of_files({files.write_as("a")})) == refused);
  };
  check(good, "accepted");
  auto f = good;
  f.tokens = "10";
  check(f, bin + ": expected 10 tokens of 2 bytes, as its .json file says, got 18 bytes");
  f = good;
  f.format = "\"npy\"";
  check(f, sidecar + ": \"format\": expected \"rrfp-tokens\", got \"npy\"");
  f = good;
  f.version = "2";
  check(f, sidecar + ": \"version\": expected 1, got 2");
  f = good;
  f.dtype = "\"int8\"";
  check(f, sidecar + ": \"dtype\": expected \"uint16\" or \"uint32\", got \"int8\"");
  f = good;
  f.tokens = "-9";
  check(f, sidecar + ": \"tokens\": expected an integer > 0, got -9");
  f = good;
  f.vocabulary = "\"many\"";
  check(f, sidecar + ": \"vocabulary\": expected an integer > 0, got \"many\"");
  f = good;
  f.vocabulary = "18";
  check(f, bin + ": token 8 is 18, but the vocabulary of its .json file is 18");
  f.vocabulary = "19";
  check(f, "accepted");
  f = good;
  f.documents = "[]";
  check(f, sidecar + ": \"documents\": expected an array of at least one offset");
  f.documents = "[1, 4]";
  check(f, sidecar + ": \"documents\": entry 0: expected 0, got 1");
  f.documents = "[0, 4, 4]";
  check(f, sidecar + ": \"documents\": entry 2: expected 5 to 8, got 4");
  f.documents = "[0, 9]";
  check(f, sidecar + ": \"documents\": entry 1: expected 1 to 8, got 9");
  f = good;
  f.ids.resize(4);
  check(f, bin + ": holds 4 tokens; data.sequence_length = 4 needs at least 5");

  good.write_as("a");
  write(sidecar, "{\"format\"");
  CHECK(refusal(config_of_files({bin})) ==
        sidecar + ": expected a JSON object, got a file that is not JSON at byte 10");
  write(sidecar, "{\"format\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}");
  CHECK(refusal(config_of_files({bin})) ==
        sidecar + ": expected a JSON object, got a file that is nested deeper than 64 at byte 74");
  std::filesystem::remove(sidecar);
  CHECK(refusal(config_of_files({bin})) == sidecar + ": cannot be read: No such file or directory");
  CHECK(refusal(config_of_files({folder / "b.bin"})) ==
        (folder / "b.bin") + ": cannot be read: No such file or directory");
  CHECK(refusal(config_of_files({sidecar})) == sidecar + ": expected a name that ends in .bin");
}

TEST_CASE("the fingerprint of token files covers ids and documents") {
  const scratch_folder folder;
  const auto print = [&](const pair_of_files& files) {
    return open_good(config_of_files({files.write_as("a")}))->fingerprint();
  };
  pair_of_files files{&folder, count_from(10, 9)};
  std::set<std::uint64_t> prints{print(files)};
  CHECK(prints.contains(print(files)));
  files.documents = "[0, 4, 7]";
  CHECK(prints.insert(print(files)).second);
  files.documents = "[0, 3, 6]";
  CHECK(prints.insert(print(files)).second);
  files.ids[3] = 99;
  CHECK(prints.insert(print(files)).second);
}

}  // namespace rrfp::data::test
