/// Templates are valid jobs, with and without the keys that they comment out.
#include <catch2/catch.hpp>

#include <regex>
#include <sstream>

#include <rrfp/job/job_template.hpp>
#include <rrfp/job/schema.hpp>

#include "job_texts.hpp"

namespace rrfp::testing {
namespace {

using Catch::Matchers::Contains;
using job::job_template;
using job::template_kind;
using job::template_request;

std::string trained(const std::string& text) { return refusal(text, {}, job::job_use::train); }

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in{text};
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// The text with every commented-out key set, except `except`.
std::string all_on(const std::string& text, const std::string& except) {
  const std::regex off{R"(# ([a-z_.]+ = .*|\[\[compare\]\]))"};
  std::string out;
  std::smatch found;
  for (const auto& line : lines_of(text))
    out += (std::regex_match(line, found, off) && !found[1].str().starts_with(except + " =")
                ? found[1].str()
                : line) +
           "\n";
  return out;
}

}  // namespace

TEST_CASE("A template for text or images can be trained unchanged") {
  CHECK(trained(job_template({template_kind::text, {}, false, {}})) == "accepted");
  CHECK(trained(job_template({template_kind::images, {}, false, {}})) == "accepted");
}

TEST_CASE("A template names the given data, whatever characters the path contains") {
  const scratch_folder folder;
  const auto text = folder.write("a \"b\" \\ c", "text");
  const auto lines = folder.write("lines.jsonl", "");
  const auto job_of = [](template_kind kind, const texts& data, bool documents = false) {
    return good(job_template({kind, data, documents, {}}), {}, job::job_use::train);
  };
  CHECK(job_of(template_kind::text, {text, folder.at("")}).data.text == texts{text, folder.at("")});
  CHECK(job_of(template_kind::text, {lines}, true).data.jsonl == texts{lines});
  const auto images = job_of(template_kind::images, {lines});
  CHECK(images.data.images == texts{lines});
  CHECK(images.data.shapes == 0);
}

TEST_CASE("A template for a pretrained model needs only the model and the tokens") {
  CHECK_THAT(trained(job_template({template_kind::pretrained, {}, false, {}})),
             Contains("model.pretrained") && Contains("No such file"));
  const scratch_folder folder;
  folder.write("config.json",
               R"({"model_type": "gpt2", "n_layer": 4, "n_embd": 64, "n_head": 4, "vocab_size": 256,
                   "n_positions": 256})");
  folder.write("model.safetensors", "");
  const auto tokens = folder.write("a.bin", "");
  CHECK(trained(job_template({template_kind::pretrained, {tokens}, false, folder.at("")})) ==
        "accepted");
}

TEST_CASE("The commented-out keys of a template can be set") {
  const scratch_folder folder;
  const auto lines = folder.write("lines.jsonl", "");
  for (const auto& data : {texts{}, texts{lines}}) {
    const auto text = all_on(job_template({template_kind::text, data, false, {}}), "none");
    CHECK(trained(text) == "accepted");
    // `images` and `shapes` exclude each other.
    const auto images = all_on(job_template({template_kind::images, data, false, {}}),
                               data.empty() ? "images" : "shapes");
    CHECK(trained(images) == "accepted");
    CHECK(good(images, {}, job::job_use::train).compare.size() == 2);
  }
}

TEST_CASE("A template has the meanings of the reference, in lines of at most 100 columns") {
  for (const auto kind : {template_kind::text, template_kind::images, template_kind::pretrained}) {
    const auto text = job_template({kind, {}, false, {}});
    std::string words;
    for (const auto& line : lines_of(text)) {
      CHECK(line.size() <= 100);
      words += line.starts_with("# ") ? line.substr(1) : line;
    }
    for (const std::string path : {"pipeline.stages", "train.lr", "checkpoint.dir"})
      CHECK_THAT(words, Contains(job::runtime_schema().find(path)->meaning));
  }
}

}  // namespace rrfp::testing
