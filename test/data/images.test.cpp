// data.images: texts with images, from a file of lines.
#include <array>

#include <rrfp/data/image_tensor.hpp>

#include "support.hpp"

namespace rrfp::data::test {

namespace {

struct folder_of_images {
  scratch_folder folder;
  const std::string lines = folder / "train.jsonl";

  folder_of_images() {
    write_png(folder / "small.png", 8, 16);   // 2 patches of 8
    write_png(folder / "large.png", 16, 24);  // 6 patches
  }

  source_config config(const std::string& text) const {
    write(lines, text);
    return config_of([&](job::data_options& d) {
      d.images = {lines};
      d.order = job::sample_order::file;
      d.microbatch_size = 1;
    });
  }
};

std::string line(const std::string& images, const std::string& text) {
  return "{\"images\": [" + images + "], \"text\": \"" + text + "\"}\n";
}

compute::microbatch first_of(const source_config& config) {
  return open_good(config)->load(step_id{0}, microbatch_id{0});
}

}  // namespace

TEST_CASE("images come before the text, or where <image> is") {
  const folder_of_images f;
  const auto both = "\"small.png\", \"large.png\"";
  const auto check = [&](const std::string& text, const std::string& inputs,
                         const std::string& targets, std::size_t images) {
    const auto config = f.config(text);
    const auto batch = first_of(config);
    INFO(text);
    CHECK(inputs_of(batch) == std::vector{inputs});
    CHECK(targets_of(batch) == std::vector{targets});
    CHECK(batch.images.size() == images);
    check_promises(*open_good(config), config);
  };
  // The last patch predicts the first byte after it; nothing predicts a patch.
  check(line("\"small.png\"", "ab"), "@@ab$", "_ab$_", 1);
  check(line(both, "ab"), "@@@@@@@@ab$", "_______ab$_", 2);
  check(line(both, "a<image>b<image>c"), "a@@b@@@@@@c$", "__b______c$_", 2);
  check(line(both, "<image><image>c"), "@@@@@@@@c$", "_______c$_", 2);
  check(line("\"small.png\"", "ab<image>"), "ab@@$", "b__$_", 1);
  check(line("", "no image"), "no image$", "o image$_", 0);
  check("{\"text\": \"x\", \"image\": \"small.png\"}\n", "@@x$", "_x$_", 1);
}

TEST_CASE("images are in the order of their positions, with three normalised colours") {
  const folder_of_images f;
  auto config = f.config(line("\"large.png\", \"small.png\"", "x"));
  const auto batch = first_of(config);
  REQUIRE(batch.images.size() == 2);
  CHECK(batch.images[0].sizes().equals({3, 16, 24}));
  CHECK(batch.images[1].sizes().equals({3, 8, 16}));
  const auto expected = picture(8, 16);
  const auto at = [&](const at::Tensor& image, int c, int y, int x) {
    return image[c][y][x].item<float>();
  };
  for (const auto& [c, y, x] : std::vector<std::array<int, 3>>{{0, 0, 0}, {1, 3, 5}, {2, 7, 15}}) {
    const auto raw = expected.rgb[static_cast<std::size_t>(3 * (16 * y + x) + c)];
    CHECK(at(batch.images[1], c, y, x) == Approx(raw / 255.0 / 0.5 - 1).margin(1e-6));
  }
  config.data.image_mean = {0.1, 0.2, 0.3};
  config.data.image_std = {0.25};
  const auto other = first_of(config).images[1];
  for (const int c : {0, 1, 2}) {
    const auto raw = expected.rgb[static_cast<std::size_t>(3 * (16 * 2 + 4) + c)];
    CHECK(at(other, c, 2, 4) == Approx((raw / 255.0 - 0.1 * (c + 1)) / 0.25).margin(1e-6));
  }
}

TEST_CASE("an image is shrunk to image_side_max and fitted to patches") {
  source_config config;
  config.patch = 16;
  config.data.image_side_max = 100;
  const auto scaler = image_scaler::make(config).value();
  const auto fits = [&](std::int64_t h, std::int64_t w, std::int64_t to_h, std::int64_t to_w) {
    INFO(h << " x " << w);
    CHECK(scaler.fitted({h, w}) == compute::image_size{to_h, to_w});
    const auto made = scaler.scale(picture(h, w));
    CHECK(made.sizes().equals({3, to_h, to_w}));
    CHECK(scaler.patches({to_h, to_w}) == static_cast<std::uint64_t>(to_h * to_w / 256));
  };
  fits(16, 32, 16, 32);
  fits(23, 25, 16, 32);
  fits(24, 39, 32, 32);
  fits(1, 1, 16, 16);
  fits(7, 99, 16, 96);     // 96 is the last multiple within 100
  fits(200, 400, 48, 96);  // 50 x 100
  fits(1000, 10, 96, 16);
  fits(2, 3000, 16, 96);
  config.data.image_side_max = 15;
  CHECK(image_scaler::make(config).message() ==
        "data.image_side_max: expected at least the model's patch of 16 pixels, got 15");
}

TEST_CASE("shrinking is antialiased: fine stripes become their mean") {
  source_config config;
  config.patch = 8;
  config.data.image_side_max = 8;
  pixels stripes{{64, 64}, {}};
  const std::array<std::uint8_t, 2> tones{0, 255};
  for (std::size_t i = 0; i < 64 * 64; ++i) stripes.rgb.insert(stripes.rgb.end(), 3, tones[i % 2]);
  const auto made = image_scaler::make(config).value().scale(stripes);
  CHECK(made.abs().max().item<float>() < 0.05F);
}

TEST_CASE("blind, the samples are the same without images") {
  const folder_of_images f;
  auto config =
      f.config(line("\"small.png\"", "a<image>b") + line("\"large.png\"", "cd") + line("", "ef"));
  const auto seeing = open_good(config);
  config.data.blind = true;
  const auto s = open_good(config);
  const auto at = [&](std::uint32_t mb) { return s->load(step_id{0}, microbatch_id{mb}); };
  CHECK(inputs_of(at(0)) == std::vector<std::string>{"ab$"});
  CHECK(inputs_of(at(1)) == std::vector<std::string>{"cd$"});
  CHECK(targets_of(at(1)) == std::vector<std::string>{"d$_"});
  CHECK(inputs_of(at(2)) == std::vector<std::string>{"ef$"});
  CHECK(at(0).images.empty());
  CHECK(s->fingerprint() == seeing->fingerprint());
  check_promises(*s, config);

  // The choice of samples and the cuts do not depend on it.
  config.data.sequence_length = 8;
  CHECK(refusal(config).find("got 9") != std::string::npos);
  config.data.when_too_long = job::too_long::cut;
  CHECK(inputs_of(open_good(config)->load(step_id{0}, microbatch_id{1})) ==
        std::vector<std::string>{"cd"});
  std::filesystem::remove(f.folder / "large.png");
  CHECK(refusal(config).find("large.png: cannot be read") != std::string::npos);
}

TEST_CASE("a text with images that is too long may lose its end but no image") {
  const folder_of_images f;
  auto config = f.config(line("\"large.png\"", "abcdef"));
  config.data.sequence_length = 8;
  config.data.when_too_long = job::too_long::cut;
  CHECK(inputs_of(first_of(config)) == std::vector<std::string>{"@@@@@@ab"});
  CHECK(targets_of(first_of(config)) == std::vector<std::string>{"_____ab_"});
  for (const std::uint32_t length : {5U, 6U}) {
    config.data.sequence_length = length;
    CHECK(refusal(config) ==
          f.lines + ":1: cut to " + std::to_string(length) + " tokens, the images leave no text");
  }
  config.data.when_too_long = job::too_long::skip;
  CHECK(refusal(config) ==
        "'" + f.lines + "' holds no sample that can be used: 1 left out: 1 too long");
}

TEST_CASE("a bad sample is refused by its line, or left out and counted") {
  const folder_of_images f;
  const auto good = line("\"small.png\"", "good");
  auto whole = encode_png(picture(16, 16)).value();
  whole.resize(whole.size() - 30);
  write(f.folder / "cut.png", whole);
  write(f.folder / "text.png", "no image");
  auto huge = encode_png(picture(16, 16)).value();
  huge[16] = 0x10;
  write(f.folder / "huge.png", huge);

  struct bad {
    std::string line;
    std::string what;
  };
  const std::vector<bad> all{
      {"{]\n", "expected a JSON object, got a line that is not JSON at byte 2"},
      {"{\"text\": \"a\"}\n",
       "\"images\": expected an array of paths, or \"image\" with one, got an object with neither "
       "key"},
      {"{\"text\": \"a\", \"images\": [], \"image\": \"b\"}\n",
       "\"images\": expected an array of paths, or \"image\" with one, got both keys"},
      {"{\"text\": \"a\", \"images\": \"small.png\"}\n",
       "\"images\": expected an array of paths, got string"},
      {"{\"text\": \"a\", \"images\": [3]}\n",
       "\"images\": expected an array of paths, got an entry that is number"},
      {"{\"text\": \"a\", \"image\": null}\n", "\"image\": expected a path, got null"},
      {"{\"images\": [\"small.png\"]}\n",
       "\"text\": expected a string, got an object without that key"},
      {line("\"small.png\"", ""), "expected text, got none"},
      {line("\"small.png\"", "<image>"), "expected text, got none"},
      {line("\"small.png\"", "<image>a<image>"),
       "expected <image> once for each of 1 images or nowhere, got it 2 times"},
      {line("\"none.png\"", "a"),
       (f.folder / "none.png") + ": cannot be read: No such file or directory"},
      {line("\"text.png\"", "a"),
       (f.folder / "text.png") + ": expected a PNG or JPEG image, got something else"},
      {line("\"huge.png\"", "a"), (f.folder / "huge.png") +
                                      ": expected an image of at most 67108864 pixels, got "
                                      "268435472 x 16"}};
  std::string every;
  for (const auto& b : all) {
    INFO(b.line);
    CHECK(refusal(f.config(good + b.line)) == f.lines + ":2: " + b.what);
    every += b.line;
  }

  // Pixels are decoded on load, or with `skip` when the source is opened.
  auto config = f.config(good + line("\"cut.png\"", "a"));
  const auto s = open_good(config);
  CHECK_NOTHROW(s->load(step_id{0}, microbatch_id{0}));
  CHECK_THROWS_WITH(
      s->load(step_id{0}, microbatch_id{1}),
      Catch::Contains(f.lines + ":2: " + (f.folder / "cut.png") + ": the PNG does not decode"));
  CHECK_NOTHROW(s->layout(step_id{0}, microbatch_id{1}));

  config = f.config(every + good + line("\"cut.png\"", "a"));
  config.data.when_bad = job::bad_samples::skip;
  const auto skipped = open_good(config);
  CHECK(skipped->report() ==
        "1 sample with 1 image in 1 file, 14 left out: 1 not JSON, 6 missing key, 2 empty text, "
        "1 image count mismatch, 1 missing image, 2 corrupt image, 1 image too large");
  check_promises(*skipped, config);
}

TEST_CASE("an image that changes after it was opened is an error, not another sample") {
  const folder_of_images f;
  const auto config = f.config(line("\"small.png\"", "a"));
  const auto s = open_good(config);
  write_png(f.folder / "small.png", 8, 17);  // fits to the same size
  CHECK_NOTHROW(s->load(step_id{0}, microbatch_id{0}));
  write_png(f.folder / "small.png", 24, 16);
  CHECK_THROWS_WITH(
      s->load(step_id{0}, microbatch_id{0}),
      f.lines + ":1: " + (f.folder / "small.png") + ": has changed since it was opened");
}

TEST_CASE("the fingerprint covers the sizes of images") {
  const folder_of_images f;
  const auto config = f.config(line("\"small.png\"", "a"));
  const auto before = open_good(config)->fingerprint();
  CHECK(open_good(config)->fingerprint() == before);
  write_png(f.folder / "small.png", 8, 24);
  CHECK(open_good(config)->fingerprint() != before);
}

}  // namespace rrfp::data::test
