/// Errors in the files that a job names.
#include <sys/stat.h>
#include <catch2/catch.hpp>

#include <rrfp/job/job.hpp>
#include <rrfp/policies/registry.hpp>

#include "job_texts.hpp"

namespace rrfp::testing {
namespace {

using job::job_use;
using job::load_job;

std::string load_refusal(const std::string& path, job_use use = job_use::simulate) {
  const auto made = load_job(path, policies::registry(), {}, use);
  return made ? "accepted" : made.message();
}

TEST_CASE("A job file that cannot be read is named with the reason") {
  const scratch_folder folder;
  CHECK(load_refusal(folder.at("none.toml")) ==
        folder.at("none.toml") + ": cannot be read: No such file or directory");
  CHECK(load_refusal(folder.at("")) == folder.at("") + ": cannot be read: Is a directory");
  const auto large = folder.write("large.toml", std::string(job::job_bytes_max + 1, '#'));
  CHECK(load_refusal(large) == large + ": expected a job file of at most 1048576 bytes, got more");
  const auto full = folder.write("full.toml", std::string(job::job_bytes_max, '#'));
  CHECK(load_refusal(full) == "accepted");
}

TEST_CASE("TOML is refused before it is nested too deeply to be held") {
  const auto repeated = [](const std::string& text) {
    std::string all;
    for (int i = 0; i < 100'000; ++i) all += text;
    return all;
  };
  const std::string too_deep = "expected tables, arrays and keys of at most 32 levels, got more";
  CHECK(refusal("\n" + repeated("a.") + "a = 1") == "x.toml:2:64: " + too_deep);
  CHECK(refusal("[" + repeated("a.") + "a]") == "x.toml:1:65: " + too_deep);
  CHECK(refusal("[[" + repeated("'a' . ") + "a]]") == "x.toml:1:193: " + too_deep);
  CHECK(refusal("a = " + repeated("[")) == "x.toml:1:37: " + too_deep);
  CHECK(refusal("a = " + repeated("{a = ")) == "x.toml:1:165: " + too_deep);
  CHECK(refusal("", {"train.steps=" + repeated("[")}).find("expected an integer") !=
        std::string::npos);
  // Dots and brackets in strings and comments do not nest.
  const auto dots = repeated("a.["), quotes = repeated("\\\"");
  CHECK(refusal("# " + dots + "\nname = \"" + quotes + dots + "\" # " + dots) == "accepted");
  CHECK(refusal("name = '" + dots + "'") == "accepted");
  CHECK(refusal("name = \"\"\"" + dots + "\\\"\"\"\"") == "accepted");
  CHECK_THAT(refusal("name = \"\"\"" + dots + "\"\"\"\n" + dots),
             Catch::StartsWith("x.toml:2:") && Catch::Contains(too_deep));
  CHECK_THAT(refusal("name = '''" + dots + "\n'''\n" + dots),
             Catch::StartsWith("x.toml:3:") && Catch::Contains(too_deep));
  CHECK_THAT(refusal("name = \"a\n" + dots),
             Catch::StartsWith("x.toml:2:") && Catch::Contains(too_deep));
}

TEST_CASE("Held-out data is checked as data") {
  const scratch_folder folder;
  const auto with = [&](const std::string& more) {
    const auto path = folder.write("job.toml",
                                   "[model]\nvocabulary = 256\n[data]\n"
                                   "text = \"job.toml\"\n[eval]\n" +
                                       more);
    const auto refused = load_refusal(path, job_use::train);
    return refused.starts_with(path) ? refused.substr(path.size()) : refused;
  };
  CHECK(with("text = \"job.toml\"") == "accepted");
  CHECK(with("text = \"/nowhere\"") ==
        ":6: eval.text: cannot read /nowhere: No such file or directory");
  CHECK(with("text = \"job.toml\"\nshapes = 3") ==
        ":7: eval.shapes: expected one kind of data, got eval.text as well");
  CHECK_THAT(with("shapes = 3"), Catch::Contains("model.vocabulary: expected at least 258"));
  CHECK_THAT(with("batches = 0"), Catch::Contains("eval.batches: expected an integer >= 1, got 0"));
}

TEST_CASE("An error about a value of model.pretrained names its config.json") {
  const scratch_folder folder;
  const auto path =
      folder.write("job.toml",
                   "[model]\npretrained = \"m\"\n[pipeline]\ntp = 2\n[data]\n"
                   "text = \"job.toml\"\nsequence_length = 8\ntokenizer = \"bytes\"\n");
  std::filesystem::create_directory(folder.at("m"));
  const auto config = folder.at("m/config.json");
  const auto with = [&](const std::string& more) {
    std::ofstream{config}
        << R"({"model_type": "gpt2", "n_positions": 16, "n_embd": 8, "n_head": 2, )"
        << R"("n_layer": 2, )" << more << "}";
    return load_refusal(path, job_use::train);
  };
  CHECK(with(R"("vocab_size": 300)") == "accepted");
  CHECK(with(R"("vocab_size": 301)") ==
        path + ":4: model.vocabulary: expected a multiple of pipeline.tp = 2, got 301 (from " +
            config + ")");
  std::ofstream{path, std::ios::app} << "[train]\nlr = 1e-3\n[run]\n";
  const auto long_path = folder.write(
      "long.toml",
      "[model]\npretrained = \"m\"\n[data]\ntext = \"job.toml\"\nsequence_length = 32\n"
      "tokenizer = \"bytes\"\n");
  CHECK(load_refusal(long_path, job_use::train) ==
        long_path + ":5: data.sequence_length: expected at most model.context = 16 (from " +
            config + "), got 32");
  // A value that no key accepts is refused in config.json, too.
  CHECK(with(R"("vocab_size": 300, "layer_norm_epsilon": -1)") ==
        path + ":2: model.pretrained: " + config +
            ": as model.norm_epsilon expected a number > 0, got -1.0");
  CHECK_THAT(with(R"("vocab_size": 2147483646)"),
             Catch::Contains("as model.vocabulary expected an integer <= 16777216"));
}

TEST_CASE("A job that a program made is checked like a job from a file") {
  const auto refusal_of = [](auto change) {
    job::job j;
    change(j);
    const auto checked = job::check_job(j, policies::registry(), job_use::embed);
    return checked ? "accepted" : checked.message();
  };
  CHECK(refusal_of([](job::job&) {}) == "accepted");
  CHECK(refusal_of([](job::job& j) { j.train.lr = -1; }) ==
        "the job: train.lr: expected a number >= 0, got -1.0");
  CHECK(refusal_of([](job::job& j) { j.pipeline.stages = 0; }) ==
        "the job: pipeline.stages: expected an integer >= 1, got 0");
  CHECK_THAT(refusal_of([](job::job& j) { j.dispatch.policy = "best"; }),
             Catch::StartsWith("the job: dispatch.policy: expected one of "));
  CHECK_THAT(refusal_of([](job::job& j) {
               j.pipeline.nodes = {0, 1, 0};
             }),
             Catch::StartsWith("the job: pipeline.nodes: expected 1 entries"));
  // A value that was changed after reading keeps the place of its key.
  auto read = good("[train]\nlr = 1e-3\n", {"train.steps=3"});
  read.train.lr = -1;
  CHECK(job::check_job(read, policies::registry(), job_use::embed).message() ==
        "x.toml:2: train.lr: expected a number >= 0, got -1.0");
  read.train.lr = 1;
  read.train.steps = 0;
  CHECK(job::check_job(read, policies::registry(), job_use::embed).message() ==
        "--set train.steps=3: expected an integer >= 1, got 0");
}

TEST_CASE("Names and paths that are not UTF-8 are refused with the position of the byte") {
  const scratch_folder folder;
  const auto odd = folder.write("o\xe9.toml", "");
  CHECK(load_refusal(odd) == odd +
                                 ": name: expected UTF-8, got the byte 0xE9 at 1, in the file "
                                 "name, which is the default name of the job");
  const auto named = folder.write("p\xe9.toml", "name = \"good\"\n");
  CHECK(load_refusal(named) == "accepted");
  const auto plain = folder.write("plain.toml", "");
  // Truncated, overlong, a surrogate, and beyond the last code point.
  const std::vector<std::pair<std::string, std::string>> bad{{"a\xc3", "0xC3 at 1"},
                                                             {"\xc0\xaf", "0xC0 at 0"},
                                                             {"\xed\xa0\x80", "0xED at 0"},
                                                             {"\xf4\x90\x80\x80", "0xF4 at 0"}};
  for (const auto& [text, at] : bad) {
    const std::vector<std::string> settings{"name=" + text};
    const auto made = load_job(plain, policies::registry(), settings, job_use::simulate);
    REQUIRE_FALSE(made);
    CHECK_THAT(made.message(), Catch::Matchers::Contains("expected UTF-8, got the byte " + at));
  }
  const std::vector<std::string> good{"name=\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"};
  CHECK(load_job(plain, policies::registry(), good, job_use::simulate).ok());
}

TEST_CASE("Text paths are relative to the job file, and a missing file is named") {
  const scratch_folder folder;
  const auto path = folder.write("job.toml", "[data]\ntext = [\"a.txt\", \"sub\"]\n");
  folder.write("a.txt", "a");
  CHECK(load_refusal(path, job_use::train) ==
        path + ":2: data.text: cannot read " + folder.at("sub") + ": No such file or directory");
  std::filesystem::create_directory(folder.at("sub"));
  CHECK(load_refusal(path, job_use::train) == "accepted");
  std::filesystem::remove(folder.at("a.txt"));
  REQUIRE(mkfifo(folder.at("a.txt").c_str(), 0600) == 0);
  CHECK(load_refusal(path, job_use::train) == path + ":2: data.text: cannot read " +
                                                  folder.at("a.txt") +
                                                  ": neither a file nor a folder");
  const auto made = load_job(path, policies::registry(), {}, job_use::simulate);
  REQUIRE(made);
  CHECK(made->data.text == texts{folder.at("a.txt"), folder.at("sub")});
  CHECK(made->name == "job");
  CHECK(made->source == path);
}

TEST_CASE("Training needs data, but simulation does not") {
  const std::string needed =
      "data.text: expected data.text, or else data.jsonl, data.tokens, data.images or data.shapes, "
      "got none";
  CHECK(refusal("", {}, job_use::train) == "x.toml: " + needed);
  CHECK(refusal("[data]\ntext = []", {}, job_use::train) == "x.toml:2: " + needed);
  CHECK(refusal("[data]\nshapes = 0", {}, job_use::train) == "x.toml: " + needed);
  CHECK(refusal("[device]\nkind = \"emulated\"", {}, job_use::train) == "accepted");
  CHECK(refusal("[data]\ntext = \"/nowhere\"", {}, job_use::simulate) == "accepted");
}

TEST_CASE("A second kind of data is refused with both keys") {
  const scratch_folder folder;
  const auto file = folder.write("a", "a");
  const std::string kinds[] = {"text", "jsonl", "tokens", "images"};
  const auto given = [&](const std::string& kind) { return kind + " = \"" + file + "\"\n"; };
  const auto train = [](const std::string& data) {
    return refusal("[model]\nvocabulary = 258\n[data]\n" + data, {"vision.layers=1"},
                   job_use::train);
  };
  for (std::size_t a = 0; a < 4; ++a) {
    CHECK(train(given(kinds[a])) == "accepted");
    CHECK(train(kinds[a] + " = \"/nowhere\"") ==
          "x.toml:4: data." + kinds[a] + ": cannot read /nowhere: No such file or directory");
    const auto both = [&](const std::string& later) {
      return "x.toml:5: data." + later + ": expected one kind of data, got data." + kinds[a] +
             " as well";
    };
    for (std::size_t b = a + 1; b < 4; ++b)
      CHECK(train(given(kinds[a]) + given(kinds[b])) == both(kinds[b]));
    CHECK(train(given(kinds[a]) + "shapes = 3") == both("shapes"));
  }
  CHECK(train("shapes = 3") == "accepted");
}

TEST_CASE("Images need a model with a vision encoder") {
  const auto train = [](const std::string& more) {
    return refusal("[model]\nvocabulary = 258\n[data]\nshapes = 3\n" + more, {}, job_use::train);
  };
  CHECK(train("") ==
        "x.toml:4: data.shapes: expected vision.layers >= 1 or data.blind = true, got neither");
  CHECK(train("blind = true") == "accepted");
  CHECK(train("[vision]\nlayers = 1") == "accepted");
}

TEST_CASE("Documents and images need more token ids than the byte values") {
  const auto refused = [](const std::string& place, const std::string& key,
                          const std::string& got) {
    return place +
           "model.vocabulary: expected at least 258 (256 byte values, the image token "
           "and the end token) with " +
           key + ", got " + got;
  };
  CHECK(refusal("[data]\nshapes = 3", {}, job_use::train) ==
        refused("x.toml:2: ", "data.shapes", "256 (the default)"));
  CHECK(refusal("[data]\njsonl = \"a\"\n[model]\nvocabulary = 257", {}, job_use::train) ==
        refused("x.toml:4: ", "data.jsonl", "257"));
  CHECK(refusal("[data]\nimages = \"a\"", {}, job_use::train) ==
        refused("x.toml:2: ", "data.images", "256 (the default)"));
}

TEST_CASE("Keys about images must fit the data") {
  const auto train = [](const std::string& more) {
    return refusal("[model]\nvocabulary = 258\n[data]\n" + more, {}, job_use::train);
  };
  CHECK(train("shapes = 3\nimage_mean = [0.1, 0.2, 0.3]\nimage_std = 1\nblind = true") ==
        "accepted");
  CHECK(train("shapes = 3\nimage_mean = [0.1, 0.2]") ==
        "x.toml:5: data.image_mean: expected one value or 3 (red, green, blue), got 2");
  CHECK(train("shapes = 3\nimage_std = [1, 1, 1, 1]") ==
        "x.toml:5: data.image_std: expected one value or 3 (red, green, blue), got 4");
  CHECK(train("shapes = 3\nimage_std = 0") ==
        "x.toml:5: data.image_std: expected a number > 0, got 0");
  CHECK(train("text = \".\"\nblind = true") ==
        "x.toml:5: data.blind: requires data.images or data.shapes, got neither");
}

TEST_CASE("Windows of a text are not packed by cost") {
  const auto train = [](const std::string& more) {
    return refusal("[model]\nvocabulary = 258\n[data]\npack = \"cost\"\n" + more,
                   {"vision.layers=1"}, job_use::train);
  };
  CHECK(train("shapes = 3") == "accepted");
  CHECK(train("shapes = 3\n[eval]\ntext = \".\"") == "accepted");
  CHECK(train("text = \".\"") ==
        "x.toml:4: data.pack: \"cost\" expects data.jsonl, data.tokens, data.images or "
        "data.shapes, whose sequences differ in length, got data.text");
  CHECK(refusal("[data]\npack = \"size\"", {}, job_use::train) ==
        "x.toml:2: data.pack: expected \"order\" or \"cost\", got \"size\"");
}

TEST_CASE("A limit of tokens that no number of microbatches keeps is refused") {
  const auto train = [](const std::string& more) {
    return refusal(
        "[model]\nvocabulary = 258\n[data]\nshapes = 9\npack = \"cost\"\nmax_tokens = 256\n" + more,
        {"vision.layers=1"}, job_use::train);
  };
  const std::string key = "x.toml:6: data.max_tokens: expected ";
  CHECK(train("") == "accepted");
  CHECK(refusal("[model]\ncontext = 512\nvocabulary = 258\n[data]\nshapes = 9\npack = \"cost\"\n"
                "max_tokens = 256\nsequence_length = 257",
                {"vision.layers=1"}, job_use::train) ==
        "x.toml:7: data.max_tokens: expected at least data.sequence_length = 257, got "
        "256");
  CHECK(refusal("[data]\nshapes = 9\nmax_tokens = 256\n", {}, job_use::train) ==
        "x.toml:3: data.max_tokens: expected 0 without data.pack = \"cost\", got 256");
  CHECK(train("pack_delay = 3") == "accepted");
  CHECK(refusal("[data]\nshapes = 9\npack = \"cost\"\npack_delay = 2\n", {}, job_use::train) ==
        "x.toml:4: data.pack_delay: expected 0 without data.max_tokens, got 2");
  CHECK(train("sequence_length = 100\nmicrobatch_size = 9000") ==
        "x.toml:8: data.microbatch_size: expected pipeline.microbatches * data.microbatch_size <= "
        "65536 with data.max_tokens, got 72000");
  CHECK(train("[device]\nkind = \"emulated\"") ==
        key + "0 with device.kind = \"emulated\", which reads no data, got 256");
  CHECK(train("[transport]\ninflight_bytes = 131071") ==
        "x.toml:8: transport.inflight_bytes: expected at least the 131072 bytes of an activation "
        "(data.max_tokens * model.hidden * 4), got 131071");
}

TEST_CASE("An override's path is relative to the current folder") {
  const scratch_folder folder;
  const auto path = folder.write("job.toml", "[data]\ntext = \"a.txt\"\n");
  const std::vector<std::string> overrides = {"data.text=here.txt"};
  const auto made = load_job(path, policies::registry(), overrides, job_use::simulate);
  REQUIRE(made);
  CHECK(made->data.text == texts{(std::filesystem::current_path() / "here.txt").string()});
}

TEST_CASE("The path of delays is relative to the job file, and a missing file is named") {
  const scratch_folder folder;
  const auto path = folder.write("job.toml", "[jitter]\nseed = 1\ndelays = \"d.csv\"\n");
  const auto refused = path + ":3: jitter.delays: cannot read " + folder.at("d.csv") + ": ";
  CHECK(load_refusal(path) == refused + "No such file or directory");
  std::filesystem::create_directory(folder.at("d.csv"));
  CHECK(load_refusal(path) == refused + "a folder");
  std::filesystem::remove(folder.at("d.csv"));
  folder.write("d.csv", "step,stage,chunk,mb,kind,ms\n");
  const auto made = load_job(path, policies::registry(), {}, job_use::simulate);
  REQUIRE(made);
  CHECK(made->delays.file == folder.at("d.csv"));
  CHECK(good("jitter.delays = \"\"").delays.file.empty());
}

TEST_CASE("A table of a schedule is read relative to the job file and checked") {
  const scratch_folder folder;
  const auto path =
      folder.write("job.toml",
                   "[pipeline]\nstages = 2\nmicrobatches = 1\n[dispatch]\nmode = \"in-order\"\n"
                   "policy = \"table:order.csv\"\n");
  const auto table = folder.at("order.csv");
  const auto head = path + ":6: dispatch.policy: " + table + ": ";

  CHECK(load_refusal(path).starts_with(head));
  folder.write("order.csv", "0F0,0B0\n1F0,1Q0\n");
  CHECK(load_refusal(path).starts_with(path + ":6: dispatch.policy: " + table + ":2: "));
  folder.write("order.csv", "0B0,0F0\n1F0,1B0\n");
  CHECK(load_refusal(path).starts_with(head + "the order can never complete; cycle of waits: "));
  folder.write("order.csv", "0F0,0B0\n1F0,1B0\n");
  CHECK(load_refusal(path) == "accepted");
  CHECK(load_job(path, policies::registry(), {}, job_use::simulate)->dispatch.policy ==
        "table:" + table);
}

}  // namespace
}  // namespace rrfp::testing
