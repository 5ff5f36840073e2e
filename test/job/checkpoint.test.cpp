/// [checkpoint]: its keys, and the settings that must be equal for a run to resume.
#include <catch2/catch.hpp>

#include <algorithm>

#include "job_texts.hpp"

namespace rrfp::testing {
namespace {

using job::job_use;

const std::string trainable = "[data]\ntext = [\"/\"]\n";

std::string value_of(const std::vector<setting>& all, const std::string& key) {
  const auto at = std::find_if(all.begin(), all.end(), [&](auto& s) { return s.key == key; });
  return at == all.end() ? "none" : at->value;
}

bool same(const std::vector<setting>& a, const std::vector<setting>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.key == y.key && x.value == y.value;
  });
}

TEST_CASE("A job saves nothing unless it names a folder") {
  const auto j = good("");
  CHECK(j.checkpoint.dir.empty());
  CHECK(j.checkpoint.every == 0);
  CHECK(j.checkpoint.keep == 3);
  CHECK(j.checkpoint.resume == job::resume_kind::automatic);
  const auto other = good("[checkpoint]\ndir = \"a\"\nevery = 5\nkeep = 1\nresume = \"must\"\n");
  CHECK(other.checkpoint.dir == (std::filesystem::current_path() / "a").string());
  CHECK(other.checkpoint.every == 5);
  CHECK(other.checkpoint.keep == 1);
  CHECK(other.checkpoint.resume == job::resume_kind::must);
}

TEST_CASE("An invalid checkpoint section is refused with the key") {
  const auto refused = [](const std::string& text) {
    return refusal(trainable + text, {}, job_use::train);
  };
  CHECK(refused("[checkpoint]\nkeep = 0") ==
        "x.toml:4: checkpoint.keep: expected an integer >= 1, got 0");
  CHECK(refused("[checkpoint]\nevery = -1") ==
        "x.toml:4: checkpoint.every: expected an integer >= 0, got -1");
  CHECK(refused("[checkpoint]\nresume = \"must\"") ==
        "x.toml:4: checkpoint.resume: \"must\" expects checkpoint.dir, got none");
  CHECK(refused("[checkpoint]\ndir = \"/a\"\n[device]\nkind = \"emulated\"") ==
        "x.toml:4: checkpoint.dir: expected none with device.kind = \"emulated\", which computes "
        "nothing that could be saved, got \"/a\"");
  CHECK(refused("[checkpoint]\ndir = \"/proc/self/status\"") ==
        "x.toml:4: checkpoint.dir: expected a folder, got the file \"/proc/self/status\"");
  CHECK(refused("[checkpoint]\ndir = \"/a\"") == "accepted");
}

TEST_CASE("Each run of a comparison has its own checkpoint folder, named after it") {
  const auto all = job::variants(
      good("[checkpoint]\ndir = \"/c\"\n[[compare]]\nname = \"in order\"\n[[compare]]\n"
           "name = \"a/b\"\n[[compare]]\nname = \"a%2Fb\"\n[[compare]]\nname = \"..\"\n"
           "[[compare]]\nname = \"own\"\ncheckpoint.dir = \"/d\"\n"));
  REQUIRE(all.size() == 5);
  CHECK(all[0].checkpoint.dir == "/c/in order");
  CHECK(all[1].checkpoint.dir == "/c/a%2Fb");
  CHECK(all[2].checkpoint.dir == "/c/a%252Fb");
  CHECK(all[3].checkpoint.dir == "/c/%2E.");
  CHECK(all[4].checkpoint.dir == "/d/own");
  CHECK(job::variants(good("[[compare]]\nname = \"a\"\n"))[0].checkpoint.dir.empty());
}

TEST_CASE("The identity of a training holds what determines its results, not how it runs") {
  const auto plain = job::identity(good(trainable));
  CHECK(value_of(plain, "model.hidden") == "128");
  CHECK(value_of(plain, "train.seed") == "1");
  CHECK(value_of(plain, "train.optimizer") == "\"adamw\"");
  CHECK(value_of(plain, "data.sequence_length") == "128");
  CHECK(value_of(plain, "pipeline.microbatches") == "8");
  CHECK(value_of(plain, "data.text") == "none");
  CHECK(value_of(plain, "train.lr") == "none");
  for (const std::string same_training :
       {"pipeline.stages=4", "pipeline.tp=2", "dispatch.policy=fb", "dispatch.mode=in-order",
        "jitter.level=J3", "checkpoint.every=3", "train.lr=1", "train.steps=7", "data.text=/b",
        "transport.listen=localhost", "data.tokenizer=bytes"}) {
    CAPTURE(same_training);
    CHECK(same(job::identity(good(trainable, {same_training})), plain));
  }
  for (const std::string other_training :
       {"model.layers=5", "model.dropout=0.5", "model.tied_head=true", "train.seed=2",
        "train.optimizer=sgd", "data.microbatch_size=1", "data.pack=cost", "data.max_tokens=512",
        "data.pack_delay=2", "pipeline.microbatches=9", "pipeline.replicas=2"}) {
    CAPTURE(other_training);
    CHECK_FALSE(same(job::identity(good(trainable, {other_training})), plain));
  }
  // The same number of microbatches per step, split between two replicas.
  CHECK(same(job::identity(good(trainable, {"pipeline.replicas=2", "pipeline.microbatches=4"})),
             plain));
}

TEST_CASE("The course of a training holds what may change on resume and changes results") {
  const auto plain = job::course(good(trainable));
  CHECK(value_of(plain, "train.seed") == "none");
  for (const std::string changed : {"train.lr=1", "train.steps=7", "train.weight_decay=0",
                                    "pipeline.tp=2", "pipeline.replicas=2"}) {
    CAPTURE(changed);
    CHECK_FALSE(same(job::course(good(trainable, {changed})), plain));
  }
  CHECK(same(job::course(good(trainable, {"pipeline.stages=2"})), plain));
}

TEST_CASE("The model is restored from an identity") {
  const auto j = good(trainable, {"model.family=llama", "model.kv_heads=2", "model.hidden=64"});
  const auto model = job::model_of(job::identity(j));
  REQUIRE(model);
  CHECK(*model == j.model);
  // The files with the initial weights are not part of the model.
  auto with_files = job::identity(j);
  with_files.push_back({"model.pretrained", "xxh64 0123456789abcdef"});
  CHECK(*job::model_of(with_files) == j.model);
  const std::vector<setting> unknown{{"model.colour", "3"}};
  CHECK(job::model_of(unknown).message() == "model.colour: unknown key");
  const std::vector<setting> unreadable{{"model.hidden", "\"many\""}};
  CHECK_THAT(job::model_of(unreadable).message(), Catch::Contains("model.hidden: expected"));
}

}  // namespace
}  // namespace rrfp::testing
