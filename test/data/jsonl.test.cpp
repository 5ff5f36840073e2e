// data.jsonl: documents as sequences of their own lengths.
#include <set>
#include <thread>

#include <rrfp/data/input_file.hpp>

#include "support.hpp"

namespace rrfp::data::test {

namespace {

source_config config_of_file(const std::string& file) {
  return config_of([&](job::data_options& d) {
    d.jsonl = {file};
    d.order = job::sample_order::file;
  });
}

}  // namespace

TEST_CASE("a document is its bytes and an end token, and each token predicts the next") {
  const scratch_folder folder;
  const auto config =
      config_of_file(write(folder / "a.jsonl",
                           "{\"text\": \"abc\"}\n{\"text\": \"d\", \"more\": [1]}\n\n  \n"
                           "{\"text\": \"e\\u00e9\\n\"}\r\n{\"text\": \"last\"}"));
  const auto s = open_good(config);
  const auto first = s->load(step_id{0}, microbatch_id{0});
  CHECK(inputs_of(first) == std::vector<std::string>{"abc$", "d$", "e\xc3\xa9\n$"});
  CHECK(targets_of(first) == std::vector<std::string>{"bc$_", "$_", "\xc3\xa9\n$_"});
  CHECK(first.inputs.dim() == 1);
  CHECK(first.lengths == std::vector<std::int64_t>{4, 2, 5});
  CHECK(first.tokens == 8);
  const auto second = s->load(step_id{0}, microbatch_id{1});
  CHECK(inputs_of(second) == std::vector<std::string>{"last$", "abc$", "d$"});
  CHECK(s->report() == "4 documents in 1 file");
  check_promises(*s, config);
}

TEST_CASE("each document occurs once per epoch, for any order of steps, microbatches and threads") {
  const scratch_folder folder;
  std::string lines;
  for (int i = 0; i < 20; ++i)
    lines += "{\"text\": \"" + std::string(static_cast<std::size_t>(i % 7 + 1), 'x') +
             std::to_string(i) + "\"}\n";
  auto config = config_of_file(write(folder / "a.jsonl", lines));
  config.data.order = job::sample_order::shuffled;
  const auto s = open_good(config);
  check_promises(*s, config);
  // 4 microbatches of 3 a step: 5 steps are 3 epochs.
  std::vector<std::string> run;
  for (std::uint64_t step = 0; step < 5; ++step)
    for (std::uint32_t mb = 0; mb < 4; ++mb)
      for (auto& text : inputs_of(s->load(step_id{step}, microbatch_id{mb})))
        run.push_back(std::move(text));
  std::set<std::vector<std::string>> orders;
  for (auto epoch = run.begin(); epoch != run.end(); epoch += 20) {
    CHECK(std::set<std::string>(epoch, epoch + 20).size() == 20);
    orders.insert({epoch, epoch + 20});
  }
  CHECK(orders.size() == 3);

  const auto again = open_good(config);
  std::vector<int> different(2);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 2; ++t)
    threads.emplace_back([&, t] {
      for (std::uint64_t n = 0; n < 20; ++n) {
        const auto place = t == 0 ? n : 19 - n;
        const auto batch =
            again->load(step_id{place / 4}, microbatch_id{static_cast<std::uint32_t>(place % 4)});
        for (std::size_t i = 0; i < 3; ++i)
          if (inputs_of(batch)[i] != run[3 * place + i]) ++different[t];
      }
    });
  for (auto& t : threads) t.join();
  CHECK(different == std::vector<int>(2));

  config.seed = 6;
  const auto other = open_good(config)->load(step_id{0}, microbatch_id{0});
  CHECK_FALSE(same(other, s->load(step_id{0}, microbatch_id{0})));
}

TEST_CASE("several files are one list, and another key may hold the text") {
  const scratch_folder folder;
  auto config = config_of_file(write(folder / "a.jsonl", "{\"body\": \"a\"}\n"));
  config.data.jsonl.push_back(write(folder / "b.jsonl", "{\"body\": \"b\"}\n{\"body\": \"c\"}\n"));
  config.data.text_key = "body";
  const auto s = open_good(config);
  CHECK(inputs_of(s->load(step_id{0}, microbatch_id{0})) ==
        std::vector<std::string>{"a$", "b$", "c$"});
  CHECK(s->report() == "3 documents in 2 files");
}

TEST_CASE("a document that is too long stops, is cut or is left out") {
  const scratch_folder folder;
  const auto file =
      write(folder / "a.jsonl", "{\"text\": \"abcdefg\"}\n{\"text\": \"abcdefgh\"}\n");
  auto config = config_of_file(file);
  config.data.sequence_length = 8;
  CHECK(refusal(config) == file +
                               ":2: expected at most data.sequence_length = 8 tokens, got 9 "
                               "(data.too_long may be \"cut\" or \"skip\")");
  config.data.when_too_long = job::too_long::cut;
  const auto cut = open_good(config);
  CHECK(inputs_of(cut->load(step_id{0}, microbatch_id{0})) ==
        std::vector<std::string>{"abcdefg$", "abcdefgh", "abcdefg$"});
  CHECK(targets_of(cut->load(step_id{0}, microbatch_id{0}))[1] == "bcdefgh_");
  CHECK(cut->report() == "2 documents in 1 file, 1 cut");
  check_promises(*cut, config);
  config.data.when_too_long = job::too_long::skip;
  const auto skipped = open_good(config);
  CHECK(inputs_of(skipped->load(step_id{0}, microbatch_id{0})) ==
        std::vector<std::string>{"abcdefg$", "abcdefg$", "abcdefg$"});
  CHECK(skipped->report() == "1 document in 1 file, 1 left out: 1 too long");
}

TEST_CASE("a bad document is refused by its line, or left out and counted") {
  const scratch_folder folder;
  const auto check = [&](const std::string& line, const std::string& what) {
    const auto file = write(folder / "a.jsonl", "{\"text\": \"good\"}\n" + line + "\n");
    INFO(line);
    CHECK(refusal(config_of_file(file)) == file + ":2: " + what);
  };
  check("{\"text\": ", "expected a JSON object, got a line that is not JSON at byte 10");
  check("{\"text\": \"\xff\"}", "expected a JSON object, got a line that is not JSON at byte 11");
  check("{\"text\": " + std::string(100'000, '[') + std::string(100'000, ']') + "}",
        "expected a JSON object, got a line that is nested deeper than 64 at byte 73");
  check("[\"text\"]", "expected a JSON object, got a JSON array");
  check("{\"test\": \"a\"}", "\"text\": expected a string, got an object without that key");
  check("{\"text\": 3}", "\"text\": expected a string, got number");
  check("{\"text\": \"\"}", "\"text\": expected text, got none");

  const auto file = write(folder / "b.jsonl",
                          "no\n{\"text\": \"good\"}\n{}\n{\"text\": \"\"}\n{\"text\": null}\n");
  auto config = config_of_file(file);
  config.data.when_bad = job::bad_samples::skip;
  const auto s = open_good(config);
  CHECK(s->report() == "1 document in 1 file, 4 left out: 1 not JSON, 2 missing key, 1 empty text");
  check_promises(*s, config);

  write(file, "no\n{}\n");
  CHECK(refusal(config) == "'" + file +
                               "' holds no sample that can be used: 2 left out: 1 not JSON, 1 "
                               "missing key");
  write(file, "\n \n");
  CHECK(refusal(config) == "'" + file + "' holds no sample");
}

TEST_CASE("a file of documents that cannot be read is named with the reason") {
  const scratch_folder folder;
  const auto missing = folder / "missing.jsonl";
  CHECK(refusal(config_of_file(missing)) ==
        missing + ": cannot be read: No such file or directory");
  CHECK(refusal(config_of_file(folder / "")) ==
        (folder / "") + ": cannot be read: expected a file, got a folder");
  auto config = config_of_file(write(folder / "a.jsonl", "{\"text\": \"a\"}"));
  config.vocabulary = 257;
  CHECK(refusal(config) == "expected model.vocabulary > 257, got 257");
}

TEST_CASE("a document that changes after it was opened is an error, not another sample") {
  const scratch_folder folder;
  const auto file = write(folder / "a.jsonl", "{\"text\": \"abc\"}\n");
  const auto s = open_good(config_of_file(file));
  write(file, "{\"text\": \"a\"}  \n");
  CHECK_THROWS_WITH(s->load(step_id{0}, microbatch_id{0}),
                    file + ":1: has changed since it was opened");
  write(file, "");
  CHECK_THROWS_WITH(s->load(step_id{0}, microbatch_id{0}),
                    file + ":1: cannot be read: the file became shorter");
}

TEST_CASE("lines are found across the blocks that a file is read in") {
  const scratch_folder folder;
  const auto check = [&](const std::vector<std::string>& lines, const std::string& end) {
    std::string text;
    for (const auto& line : lines) text += line + "\n";
    const auto path = write(folder / "lines", text + end);
    const auto file = input_file::open(path).value();
    std::vector<std::string> seen;
    auto read = for_each_line(*file, [&](std::string_view line, line_place place) -> status {
      seen.emplace_back(line);
      std::vector<std::uint8_t> there(place.bytes);
      REQUIRE(file->read(place.offset, there).ok());
      CHECK(std::string{there.begin(), there.end()} == line);
      CHECK(place.number == seen.size());
      return success();
    });
    CHECK(read.ok());
    CHECK(seen == lines);
  };
  constexpr std::size_t block = 1 << 20;
  check({std::string(block - 1, 'a'), "b"}, "");
  check({std::string(block, 'a'), "b"}, "");
  check({"a", std::string(3 * block, 'b'), "c", std::string(block, 'd')}, " ");
}

TEST_CASE("nodes that read different lines have different fingerprints") {
  const scratch_folder folder;
  const auto print = [&](const std::string& lines) {
    return open_good(config_of_file(write(folder / "a.jsonl", lines)))->fingerprint();
  };
  const auto a = print("{\"text\": \"a\"}\n");
  CHECK(a == print("{\"text\": \"a\"}\n"));
  const auto b = print("{\"text\": \"b\"}\n");
  CHECK(a != b);
}

}  // namespace rrfp::data::test
