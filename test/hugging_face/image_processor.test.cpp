// Image processor files: supported settings are accepted, all others refused.
#include <catch2/catch.hpp>

#include <fstream>

#include <rrfp/hugging_face/image_processor.hpp>

#include "program.hpp"

namespace rrfp::hugging_face::test {

namespace {

struct folder {
  rrfp::test::scratch_folder made;
  const std::string name = "preprocessor_config.json";

  /// The error for a file with this text, without its path; or "accepted".
  std::string refusal(const std::string& text, const job::data_options& data = {}) const {
    std::ofstream{made / name} << text;
    const auto checked = check_image_processor(made / "", data);
    if (checked) return "accepted";
    const auto path = (made / "") + name + ": ";
    INFO(checked.message());
    REQUIRE(checked.message().starts_with(path));
    return checked.message().substr(path.size());
  }
};

const std::string colours = R"("image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5])";
const std::string unsupported =
    "; rrfp keeps the aspect ratio: it shrinks images to data.image_side_max and fits them to "
    "patches, and does not resize to a fixed size, crop, pad or split them";

}  // namespace

TEST_CASE("A folder whose settings match those of the job is accepted") {
  const folder f;
  CHECK(check_image_processor(f.made / "", {}).ok());
  CHECK(f.refusal("{\"do_resize\": false, " + colours + "}") == "accepted");
  CHECK(f.refusal(R"({"do_resize": false, "do_center_crop": null, "do_pad": false,
                      "do_rescale": true, "rescale_factor": 0.00392156862745098,
                      "do_normalize": true, "do_convert_rgb": true, "size": {"height": 224},
                      "image_processor_type": "ViTImageProcessor", )" +
                  colours + "}") == "accepted");
  job::data_options data;
  data.image_mean = {0.48145466, 0.4578275, 0.40821073};
  data.image_std = {0.26862954, 0.26130258, 0.27577711};
  CHECK(f.refusal(R"({"do_resize": false, "image_mean": [0.48145466, 0.4578275, 0.40821073],
                      "image_std": [0.26862954, 0.26130258, 0.27577711]})",
                  data) == "accepted");
  data.image_mean = {0};
  data.image_std = {1};
  CHECK(f.refusal(R"({"do_resize": false, "do_normalize": false})", data) == "accepted");
}

TEST_CASE("Resizing, cropping and padding are refused with the key") {
  const folder f;
  // As transformers writes it for CLIP and for ViT.
  CHECK(f.refusal(R"({"crop_size": {"height": 224, "width": 224}, "do_center_crop": true,
                      "do_convert_rgb": true, "do_normalize": true, "do_resize": true, )" +
                  colours + "}") == "do_center_crop: expected false, got true" + unsupported);
  CHECK(f.refusal(R"({"do_normalize": true, "do_resize": true, "resample": 2,
                      "size": {"height": 224, "width": 224}, )" +
                  colours + "}") == "do_resize: expected false, got true" + unsupported);
  CHECK(f.refusal("{" + colours + "}") ==
        "do_resize: expected false, got none, which means true" + unsupported);
  CHECK(f.refusal("{\"do_resize\": false, \"do_pad\": true, " + colours + "}") ==
        "do_pad: expected false, got true" + unsupported);
  CHECK(f.refusal("{\"do_resize\": false, \"do_image_splitting\": 1, " + colours + "}") ==
        "do_image_splitting: expected false, got 1" + unsupported);
}

TEST_CASE("A mean or deviation that differs from the job's is refused with both values") {
  const folder f;
  const auto refused = [&](const std::string& text) {
    return f.refusal("{\"do_resize\": false, " + text + "}");
  };
  CHECK(refused(R"("image_mean": [0.48, 0.46, 0.41], "image_std": [0.5, 0.5, 0.5])") ==
        "image_mean: expected data.image_mean = [0.5], got [0.48,0.46,0.41]");
  CHECK(refused(R"("image_mean": 0.5, "image_std": [0.27, 0.26, 0.28])") ==
        "image_std: expected data.image_std = [0.5], got [0.27,0.26,0.28]");
  CHECK(refused(R"("image_mean": [0.5, "x", 0.5])") ==
        "image_mean: expected data.image_mean = [0.5], got [0.5,\"x\",0.5]");
  CHECK(refused(R"("image_std": [0.5])") ==
        "image_mean: expected data.image_mean = [0.5], got none");
  CHECK(refused("\"do_rescale\": false, " + colours) == "do_rescale: expected true, got false");
  CHECK(refused("\"rescale_factor\": 1.0, " + colours) ==
        "rescale_factor: expected 1 / 255, got 1.0");
  CHECK(refused("\"do_normalize\": false, " + colours) ==
        "do_normalize: expected true unless data.image_mean = 0 and data.image_std = 1, got false");
}

TEST_CASE("processor_config.json takes precedence over preprocessor_config.json") {
  const folder f;
  std::ofstream{f.made / "processor_config.json"} << "{\"image_processor\": {\"do_resize\": false, "
                                                  << colours << "}, \"patch_size\": 14}";
  CHECK(f.refusal(R"({"do_resize": true})") == "accepted");
  std::ofstream{f.made / "processor_config.json"} << R"({"image_processor": {"do_resize": true}})";
  CHECK(check_image_processor(f.made / "", {}).message() ==
        (f.made / "processor_config.json") +
            ": image_processor.do_resize: expected false, got true" + unsupported);
  std::ofstream{f.made / "processor_config.json"} << "{\"patch_size\": 14}";
  CHECK(f.refusal("{\"do_resize\": true}") == "do_resize: expected false, got true" + unsupported);
}

TEST_CASE("An unreadable processor file is an error") {
  const folder f;
  std::ofstream{f.made / f.name} << "{";
  CHECK(check_image_processor(f.made / "", {}).message() == (f.made / f.name) + ":1: not JSON");
  CHECK(f.refusal("[]") == "expected a JSON object");
}

}  // namespace rrfp::hugging_face::test
