// The task of coloured shapes: its samples, and that memory and files give the same ones.
#include <algorithm>
#include <map>
#include <regex>
#include <set>

#include <xxhash.h>

#include "support.hpp"

namespace rrfp::data::test {

namespace {

source_config config_of_shapes(std::uint32_t samples) {
  return config_of([&](job::data_options& d) {
    d.shapes = samples;
    d.sequence_length = 256;
  });
}

/// The pixels of each colour that captions name, by hue and depth.
std::string colour_of(const std::uint8_t* p) {
  const int r = p[0], g = p[1], b = p[2];
  if (std::min({r, g, b}) > 200) return "paper";
  if (std::max({r, g, b}) < 60) return "black";
  if (r > 150 && g > 150) return "yellow";
  if (r > 190) return "red";
  if (g > 130) return "green";
  return r > 110 ? "purple" : "blue";
}

}  // namespace

TEST_CASE("a sample depends on its key alone, and differs between keys") {
  std::set<std::string> texts;
  std::set<std::vector<std::uint8_t>> pictures;
  std::size_t images = 0;
  for (std::uint64_t n = 0; n < 200; ++n) {
    const auto sample = draw_shapes(1, n, 8);
    const auto again = draw_shapes(1, n, 8);
    CHECK(sample.text == again.text);
    CHECK((sample.images == again.images));
    const auto outline = draw_shapes(1, n, 8, shapes_pixels::left_out);
    CHECK(outline.text == sample.text);
    REQUIRE(outline.images.size() == sample.images.size());
    for (std::size_t i = 0; i < sample.images.size(); ++i)
      CHECK((outline.images[i] == pixels{sample.images[i].size, {}}));
    texts.insert(sample.text);
    images += sample.images.size();
    for (const auto& image : sample.images) pictures.insert(image.rgb);
  }
  CHECK(texts.size() > 120);
  CHECK(pictures.size() == images);
  CHECK((draw_shapes(2, 1, 8).text != draw_shapes(1, 1, 8).text));
}

TEST_CASE("samples are fixed, because data sets outlive versions") {
  const auto sample = draw_shapes(1, 0, 8);
  CHECK(sample.text == "#<image>a red circle, a black triangle");
  REQUIRE(sample.images.size() == 1);
  const auto& image = sample.images[0];
  CHECK(XXH64(image.rgb.data(), image.rgb.size(), 0) == 0xf27143bc586dde93);
}

TEST_CASE("pictures are of many sizes, all multiples of the patch") {
  using counts = std::map<std::uint32_t, std::size_t>;
  for (const auto& [patch, different] :
       counts{{1, 33}, {8, 5}, {14, 2}, {16, 3}, {40, 1}, {64, 1}}) {
    std::set<std::int64_t> sides;
    for (std::uint64_t n = 0; n < 300; ++n)
      for (const auto& image : draw_shapes(3, n, patch, shapes_pixels::left_out).images)
        sides.insert({image.size.height, image.size.width});
    INFO(patch);
    for (const auto side : sides) {
      CHECK(side % patch == 0);
      CHECK(side >= shapes_side_min);
      CHECK(side <= std::max(shapes_side_max, patch));
    }
    CHECK(sides.size() == different);
  }
}

TEST_CASE("a caption names exactly the colours of its picture") {
  const std::regex grammar{
      "#<image>((a|two|three|four) (red|green|blue|yellow|purple|black) "
      "(circle|square|triangle)s?(, )?)+"};
  int seen = 0;
  for (std::uint64_t n = 0; n < 300; ++n) {
    const auto sample = draw_shapes(5, n, 8);
    if (sample.images.empty()) CHECK(sample.text == "#nothing to see");
    if (sample.images.size() != 1) continue;
    INFO(sample.text);
    CHECK(std::regex_match(sample.text, grammar));
    std::map<std::string, int> colours;
    const auto& image = sample.images[0];
    for (std::size_t i = 0; i < image.rgb.size(); i += 3) ++colours[colour_of(&image.rgb[i])];
    CHECK(colours["paper"] > 0);
    for (const std::string name : {"red", "green", "blue", "yellow", "purple", "black"})
      CHECK((colours[name] > 0) == (sample.text.find(name) != std::string::npos));
    ++seen;
  }
  CHECK(seen > 100);
}

TEST_CASE("the beginning of a caption does not determine its colours, kinds and numbers") {
  std::map<std::string, std::map<std::string, int>> next;
  for (std::uint64_t n = 0; n < 3000; ++n) {
    const auto text = draw_shapes(1, n, 8, shapes_pixels::left_out).text;
    const std::regex words{"#<image>(\\w+) (\\w+) (circle|square|triangle)"};
    std::smatch found;
    if (!std::regex_search(text, found, words)) continue;
    ++next["number"][found[1]];
    ++next["colour after " + found[1].str()][found[2]];
    ++next["kind after " + found[2].str()][found[3]];
  }
  CHECK(next.size() == 1 + 4 + 6);
  for (const auto& [what, words] : next) {
    INFO(what);
    int all = 0, most = 0;
    for (const auto& [word, n] : words) {
      all += n;
      most = std::max(most, n);
    }
    CHECK(words.size() >= 3);
    CHECK(most < 0.7 * all);
  }
}

TEST_CASE("samples in memory satisfy the contract of every source") {
  auto config = config_of_shapes(50);
  const auto s = open_good(config);
  check_promises(*s, config);
  CHECK(s->report().starts_with("50 samples of shapes with "));
  const auto batch = s->load(step_id{0}, microbatch_id{0});
  CHECK(inputs_of(batch)[0].front() == '#');
  config.data.shapes_seed = 2;
  CHECK(open_good(config)->fingerprint() != s->fingerprint());
  config.data.sequence_length = 8;
  CHECK(refusal(config).find("sample 0: expected at most data.sequence_length = 8") == 0);
  config.data.when_too_long = job::too_long::skip;
  CHECK(refusal(config).find("no usable sample: 50 left out: 50 too long") == 0);
}

TEST_CASE("files and memory give the same microbatches") {
  const scratch_folder folder;
  const auto where = folder / "shapes";
  REQUIRE(write_shapes(where, 9, 30, 8).ok());
  auto in_memory = config_of_shapes(30);
  in_memory.data.shapes_seed = 9;
  auto on_disk = in_memory;
  on_disk.data.shapes = 0;
  on_disk.data.images = {where + "/train.jsonl"};
  for (const bool blind : {false, true}) {
    in_memory.data.blind = on_disk.data.blind = blind;
    const auto memory = open_good(in_memory);
    const auto disk = open_good(on_disk);
    for (std::uint64_t step = 0; step < 4; ++step) {
      for (std::uint32_t mb = 0; mb < 4; ++mb)
        CHECK(same(memory->load(step_id{step}, microbatch_id{mb}),
                   disk->load(step_id{step}, microbatch_id{mb})));
      CHECK(memory->step_tokens(step_id{step}) == disk->step_tokens(step_id{step}));
    }
  }
}

TEST_CASE("models with and without images predict the same bytes") {
  auto config = config_of_shapes(40);
  const auto seeing = open_good(config);
  config.data.blind = true;
  const auto blind = open_good(config);
  const auto asked = [](const source& s, std::uint64_t step, std::uint32_t mb) {
    std::vector<std::int64_t> all;
    const auto batch = s.load(step_id{step}, microbatch_id{mb});
    for (const auto t : numbers_of(batch.targets))
      if (t != compute::ignored_target) all.push_back(t);
    return all;
  };
  for (std::uint64_t step = 0; step < 4; ++step) {
    CHECK(blind->step_tokens(step_id{step}) == seeing->step_tokens(step_id{step}));
    for (std::uint32_t mb = 0; mb < 4; ++mb) {
      CHECK(asked(*blind, step, mb) == asked(*seeing, step, mb));
      CHECK(blind->load(step_id{step}, microbatch_id{mb}).images.empty());
    }
  }
}

TEST_CASE("files are written only into an empty folder") {
  const scratch_folder folder;
  const auto made = folder / "a/b";
  REQUIRE(write_shapes(made, 1, 3, 8).ok());
  CHECK(write_shapes(made, 1, 3, 8).message() ==
        made + ": expected an empty folder or none, got one with files in it");
  const auto file = write(folder / "file", "x");
  CHECK(write_shapes(file, 1, 3, 8).message() == file + ": expected a folder, got a file");
  std::filesystem::create_directory(folder / "empty");
  CHECK(write_shapes(folder / "empty", 1, 3, 8).ok());
  CHECK(rrfp::test::text_of(made + "/train.jsonl") ==
        rrfp::test::text_of(folder / "empty/train.jsonl"));
}

}  // namespace rrfp::data::test
