// scripts/tokenize writes what data.tokens reads. A fake `tokenizers` module of the
// test makes every character a token.
#include "support.hpp"

namespace rrfp::data::test {

namespace {

constexpr auto stub = R"(
class _Ids:
    def __init__(self, ids): self.ids = ids
class Tokenizer:
    @classmethod
    def from_file(cls, path):
        text = open(path).read()
        if text != "tokenizer":
            raise Exception("no tokenizer")
        return cls()
    def get_vocab(self): return {"a": 97, "<end>": 69999}
    def token_to_id(self, token): return 69999 if token == "<end>" else None
    def encode(self, text, add_special_tokens=True):
        assert not add_special_tokens
        return _Ids([ord(c) for c in text])
)";

struct bench {
  scratch_folder folder;
  std::string tokenizer = write(folder / "tokenizer.json", "tokenizer");

  bench() { write(folder / "tokenizers.py", stub); }

  rrfp::test::outcome tokenize(const std::string& arguments) const {
    return rrfp::test::run_program({"/bin/sh", "-c",
                                    "PYTHONPATH='" + (folder / "") +
                                        "' python3 '" RRFP_SOURCE "/scripts/tokenize' " +
                                        arguments});
  }

  source_config config() const {
    auto c = config_of([&](job::data_options& d) {
      d.tokens = {folder / "out.bin"};
      d.sequence_length = 6;
      d.microbatch_size = 2;
      d.order = job::sample_order::file;
    });
    c.vocabulary = 70000;
    return c;
  }
};

std::vector<std::int64_t> tokens_of(const std::string& text, bool ended) {
  std::vector<std::int64_t> tokens{text.begin(), text.end()};
  if (ended) tokens.push_back(69999);
  return tokens;
}

}  // namespace

TEST_CASE("documents of JSON lines become documents of tokens") {
  const bench b;
  const auto lines =
      write(b.folder / "a.jsonl", "{\"body\": \"abc\"}\n\n{\"body\": \"\"}\n{\"body\": \"de\"}\n");
  const auto o = b.tokenize(b.tokenizer + " " + (b.folder / "out.bin") + " " + lines +
                            " --text-key body --end '<end>'");
  INFO(o.err);
  REQUIRE(o.code == 0);
  CHECK(o.out == (b.folder / "out.bin") + ": 7 tokens, 2 documents, vocabulary 70000\n");
  const auto batch = open_good(b.config())->load(step_id{0}, microbatch_id{0});
  CHECK(sequences_of(batch, batch.inputs) ==
        std::vector{tokens_of("abc", true), tokens_of("de", true)});
}

TEST_CASE("plain text becomes windows of tokens") {
  const bench b;
  const auto text = write(b.folder / "a.txt", "line one\nline two\n");
  const auto o = b.tokenize(b.tokenizer + " " + (b.folder / "out.bin") + " " + text);
  INFO(o.err);
  REQUIRE(o.code == 0);
  const auto batch = open_good(b.config())->load(step_id{0}, microbatch_id{0});
  CHECK(sequences_of(batch, batch.inputs) ==
        std::vector{tokens_of("line o", false), tokens_of("ne\nlin", false)});
}

TEST_CASE("a byte order mark is no part of the text, a whole surrogate pair is") {
  const bench b;
  const auto lines = write(b.folder / "a.jsonl",
                           "\xef\xbb\xbf{\"text\": \"ab\"}\n{\"text\": \"\\ud83d\\ude00\"}\n");
  const auto o = b.tokenize(b.tokenizer + " " + (b.folder / "out.bin") + " " + lines);
  INFO(o.err);
  CHECK(o.out == (b.folder / "out.bin") + ": 3 tokens, 2 documents, vocabulary 70000\n");
  const auto text = write(b.folder / "a.txt",
                          "\xef\xbb\xbf"
                          "abc\r\n\xef\xbb\xbf"
                          "d");
  const auto plain = b.tokenize(b.tokenizer + " " + (b.folder / "out.bin") + " " + text);
  INFO(plain.err);
  CHECK(plain.out == (b.folder / "out.bin") + ": 7 tokens, vocabulary 70000\n");
}

TEST_CASE("an invalid input is refused in one line, and no file is left") {
  const bench b;
  const auto out = b.folder / "out.bin";
  const auto check = [&](const std::string& arguments, const std::string& said) {
    const auto o = b.tokenize(arguments);
    INFO(o.err);
    CHECK(o.code == 2);
    CHECK_THAT(o.err, Catch::StartsWith("tokenize: ") && Catch::Contains(said));
    CHECK(std::count(o.err.begin(), o.err.end(), '\n') == 1);
    CHECK_FALSE(std::filesystem::exists(out));
    CHECK_FALSE(std::filesystem::exists(out + ".tmp"));
  };
  const auto good = write(b.folder / "good.txt", "text");
  const auto bad = write(b.folder / "bad.jsonl", "{\"text\": \"a\"}\n{\"text\": 3}\n");
  check(b.tokenizer + " " + (b.folder / "out.txt") + " " + good, "ends in .bin");
  check((b.folder / "none.json") + " " + out + " " + good, "none.json: no such file");
  check(good + " " + out + " " + good, "expected a tokenizer.json: no tokenizer");
  check(b.tokenizer + " " + out + " " + bad,
        bad + ":2: expected a JSON object with a string \"text\"");
  const auto check_line = [&](const std::string& line, const std::string& said) {
    const auto file = write(b.folder / "line.jsonl", "{\"text\": \"a\"}\n" + line + "\n");
    check(b.tokenizer + " " + out + " " + file, file + ":2: " + said);
  };
  check_line("{\"text\": \"b\\ud800\"}",
             "\"text\": expected Unicode text, got \\ud800, half of a surrogate pair");
  check_line("{\"text\": " + std::string(100'000, '[') + std::string(100'000, ']') + "}",
             "expected a JSON object, got one that is nested too deeply");
  check_line("{\"text\": " + std::string(10'000, '9') + "}", "expected a JSON object");
  check_line("{\"text\": \"b\xff\"}",
             "expected UTF-8, got byte 0xff at byte 12 of the line (invalid start byte)");
  const auto latin = write(b.folder / "latin.txt", "one\ntw\xf6\n");
  check(b.tokenizer + " " + out + " " + latin,
        latin + ":2: expected UTF-8, got byte 0xf6 at byte 3");
  check(b.tokenizer + " " + out + " " + (b.folder / "none.txt"), "none.txt");
  check(b.tokenizer + " " + out + " " + (b.folder / ""), "Is a directory");
  check(b.tokenizer + " " + out + " " + write(b.folder / "empty.txt", ""), "holds no text");
  check(b.tokenizer + " " + out + " " + good + " --end '<fin>'", "no token '<fin>'");
}

TEST_CASE("a file that is read is not replaced by one that is written") {
  const bench b;
  const auto text = write(b.folder / "text.json", "text");
  for (const auto& [out, read] : {std::pair{"tokenizer.bin", b.tokenizer}, {"text.bin", text}}) {
    const auto before = rrfp::test::text_of(read);
    const auto o = b.tokenize(b.tokenizer + " " + (b.folder / out) + " " + text);
    CHECK(o.code == 2);
    CHECK_THAT(o.err, Catch::Contains("would replace " + read + ", which is read"));
    CHECK(rrfp::test::text_of(read) == before);
  }
}

}  // namespace rrfp::data::test
