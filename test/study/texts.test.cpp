#include <catch2/catch.hpp>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include <rrfp/simulate/keyed_random.hpp>
#include <rrfp/study/presets.hpp>
#include <rrfp/study/spreads.hpp>

namespace rrfp::study {

using namespace workload;

namespace {

constexpr std::uint32_t text_draws = 100'000;

/// How often each length was drawn.
std::map<std::uint32_t, double> census(const text_options& options) {
  simulate::keyed_random random{1, 2, 3, 4};
  std::map<std::uint32_t, double> shares;
  for (std::uint32_t i = 0; i < text_draws; ++i)
    shares[draw_text(options, random)] += 1.0 / text_draws;
  return shares;
}

double mean_of(const std::map<std::uint32_t, double>& shares) {
  double mean = 0;
  for (const auto& [tokens, share] : shares) mean += tokens * share;
  return mean;
}

/// A histogram with this text, or the error without the path.
result<std::vector<text_bin>> read(const std::string& text) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("rrfp_texts_" + std::to_string(::getpid()) + ".csv");
  std::ofstream{path} << text;
  auto bins = read_histogram(path);
  std::filesystem::remove(path);
  if (bins) return bins;
  auto message = bins.message();
  REQUIRE(message.starts_with(path.string()));
  return error{message.substr(path.string().size())};
}

std::string refusal_of_histogram(const std::string& text) {
  const auto bins = read(text);
  return bins ? "accepted" : bins.message();
}

}  // namespace

TEST_CASE("uniform lengths range from 1 to twice the mean") {
  const text_options options{text_spread::uniform, 10};
  const auto shares = census(options);
  CHECK(shares.begin()->first == 1);
  CHECK(shares.rbegin()->first == 19);
  CHECK(mean_of(shares) == Approx(10).epsilon(0.01));
  CHECK(mean_text(options) == 10);
  CHECK(census({text_spread::uniform, 1}).size() == 1);
  const auto cut = census({text_spread::uniform, 10, 15});
  CHECK(cut.rbegin()->first == 15);
  CHECK(cut.rbegin()->second > 0.2);
}

TEST_CASE("lengths of a histogram come as often as it says") {
  text_options options{text_spread::histogram};
  options.bins = *read("tokens,count\n10,1\n20,0\n40,3\n");
  const auto shares = census(options);
  CHECK(shares.size() == 2);
  CHECK(shares.at(10) == Approx(0.25).epsilon(0.03));
  CHECK(shares.at(40) == Approx(0.75).epsilon(0.03));
  CHECK(mean_text(options) == 32.5);
  options.most = 20;
  CHECK(census(options).rbegin()->first == 20);
  CHECK(mean_text(options) == 17.5);
}

TEST_CASE("a histogram may end lines with CRLF and leave lines empty") {
  const auto bins = *read("tokens,count\r\n1,2\r\n\r\n1048576,1000000000000");
  REQUIRE(bins.size() == 2);
  CHECK(bins[1].tokens == text_tokens_max);
  CHECK(bins[1].up_to == 1'000'000'000'002);
}

TEST_CASE("a bad histogram is refused with its line") {
  const std::string head = "tokens,count\n";
  const std::string row =
      ": expected tokens from 1 to 1048576 and a count up to 1000000000000, got ";
  CHECK(refusal_of_histogram("") ==
        ": expected the header tokens,count and a row with a count above 0, got none");
  CHECK(refusal_of_histogram("length,n\n") ==
        ":1: expected the header tokens,count, got \"length,n\"");
  CHECK(refusal_of_histogram(head) ==
        ": expected the header tokens,count and a row with a count above 0, got none");
  CHECK(refusal_of_histogram(head + "5,0\n").ends_with("got none"));
  for (const auto* bad : {"5", "5;3", "0,3", "-1,3", "5,-3", "5,3,1", "5, 3", "1e3,2", "1048577,1",
                          "5,1000000000001", "5,99999999999999999999999"})
    CHECK(refusal_of_histogram(head + "1,1\n" + bad + "\n") == ":3" + row + '"' + bad + '"');
  CHECK(refusal_of_histogram(head + "5,1\n5,1\n") ==
        ":3: expected more tokens than in the row before, 5, got \"5,1\"");
  CHECK(refusal_of_histogram(head + std::string(1000, 'x')).size() < 200);
  CHECK(read_histogram("/no/such/file").message() ==
        "/no/such/file: cannot be read: No such file or directory");
  CHECK(read_histogram("/tmp").message() == "/tmp: cannot be read: Is a directory");
}

TEST_CASE("the tokens of a sample are those of its text and of its images") {
  const auto m = *preset("qwen3-1.7b-vit-h");
  const image_counts two{image_spread::fixed, 2, 4};
  text_options texts{text_spread::histogram};
  texts.bins = {{100, 1}};
  const auto l = load_source{m, 3, two, texts, {}, 1}.of(step_id{0}, 0);
  CHECK(l.samples == 3);
  CHECK(l.images == 6);
  CHECK(l.tokens == 3 * (100 + 2 * 256));
  CHECK(l.token_squares == 3.0 * (100 + 2 * 256) * (100 + 2 * 256));
  const auto padded = load_source{m, 3, two, {}, {}, 1}.of(step_id{0}, 0);
  CHECK(padded.images == 6);
  CHECK(padded.tokens == 0);
}

TEST_CASE("lengths depend on seed, step and microbatch alone") {
  const text_options texts{text_spread::uniform, 1000};
  const auto at = [&](std::uint64_t seed, std::uint64_t step, std::uint64_t mb) {
    return load_source{*preset("mixtral-8x7b"), 2, {}, texts, {}, seed}
        .of(step_id{step}, mb)
        .tokens;
  };
  CHECK(at(1, 2, 3) == at(1, 2, 3));
  CHECK(at(1, 2, 3) != at(2, 2, 3));
  CHECK(at(1, 2, 3) != at(1, 3, 3));
  CHECK(at(1, 2, 3) != at(1, 2, 4));
}

TEST_CASE("shapes vary with images or with texts") {
  const auto vary = [](const char* name, const text_options& texts) {
    return load_source{*preset(name), 1, {}, texts, {}, 1}.shapes_vary();
  };
  CHECK_FALSE(vary("gpt3-large", {}));
  CHECK(vary("gpt3-large", {text_spread::uniform}));
  CHECK(vary("qwen3-1.7b-vit-h", {}));
}

}  // namespace rrfp::study
