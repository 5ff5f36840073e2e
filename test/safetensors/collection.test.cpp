/// Reading and writing models in one file or several.
#include "support.hpp"

#include <algorithm>

#include <nlohmann/json.hpp>

#include <rrfp/safetensors/collection.hpp>
#include <rrfp/safetensors/sharded_writer.hpp>

namespace rrfp::safetensors::test {
namespace {

using nlohmann::json;

std::string index_of(const json& weight_map) {
  return json{{"metadata", {{"total_size", 8}}}, {"weight_map", weight_map}}.dump();
}

std::string refusal_of_files(const std::string& path) {
  const auto opened = collection::open(path);
  return opened ? "accepted" : opened.message();
}

/// Six tensors of 400 bytes each.
std::vector<tensor_spec> six() {
  std::vector<tensor_spec> all;
  for (const char* name : {"c", "a", "f", "b", "e", "d"})
    all.push_back({name, dtype::float32, {10, 10}});
  return all;
}

std::string write_shards(const std::string& folder, const std::vector<tensor_spec>& tensors,
                         std::uint64_t shard_bytes_max) {
  auto w = sharded_writer::create(folder, tensors, {{"format", "pt"}}, shard_bytes_max);
  if (!w) return w.message();
  for (const auto& name : (*w)->order())
    for (const auto& spec : tensors) {
      if (spec.name != name) continue;
      const tensor_info t{spec, 0, *byte_size(spec.type, spec.shape)};
      if (auto written = (*w)->write(name, bytes_for(t)); !written) return written.message();
    }
  if (auto done = (*w)->finish(); !done) return done.message();
  return {};
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator{folder})
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

TEST_CASE("A model is found in a file, in a folder, and by an index") {
  const scratch_folder folder;
  const auto single = folder / "model.safetensors";
  REQUIRE(write_all(single, six()) == "");
  for (const auto& path : {single, folder / ""}) {
    const auto c = collection::open(path);
    REQUIRE(c);
    CHECK(c->tensors().size() == 6);
    REQUIRE(c->find("d") != nullptr);
    CHECK(as_vector(c->find("d")->bytes()) == bytes_for(*c->find("d")->info));
    CHECK(c->find("g") == nullptr);
    CHECK(c->files().size() == 1);
  }

  const scratch_folder other;
  REQUIRE(write_all(other / "one.safetensors",
                    {{"a", dtype::uint8, {1}}, {"x", dtype::uint8, {1}}}) == "");
  std::filesystem::create_directory(other / "sub");
  REQUIRE(write_all(other / "sub/two.safetensors", {{"b", dtype::uint8, {1}}}) == "");
  write_text(other / "model.safetensors.index.json",
             index_of({{"a", "one.safetensors"}, {"b", "sub/two.safetensors"}}));
  const auto c = collection::open(other / "");
  REQUIRE(c);
  // The index defines the model: "x" is not part of it.
  CHECK(c->tensors().size() == 2);
  CHECK(c->find("b")->source->path() == other / "sub/two.safetensors");
}

TEST_CASE("A symbolic link in the folder counts as a file of the folder") {
  const scratch_folder blobs, folder;
  REQUIRE(write_all(blobs / "1234", {{"a", dtype::uint8, {1}}}) == "");
  std::filesystem::create_symlink(blobs / "1234", folder / "one.safetensors");
  write_text(folder / "model.safetensors.index.json", index_of({{"a", "one.safetensors"}}));
  CHECK(refusal_of_files(folder / "") == "accepted");
}

TEST_CASE("A missing or invalid model is refused in one line") {
  const scratch_folder folder;
  const auto at = folder / "";
  CHECK(refusal_of_files(folder / "none") ==
        folder / "none: cannot read: No such file or directory");
  CHECK(refusal_of_files(at) ==
        at + ": expected model.safetensors or model.safetensors.index.json in the "
             "folder, found neither");
  const auto index = folder / "model.safetensors.index.json";
  REQUIRE(write_all(folder / "one.safetensors", {{"a", dtype::uint8, {1}}}) == "");
  const auto with = [&](const std::string& text) {
    write_text(index, text);
    const auto said = refusal_of_files(at);
    REQUIRE(said.starts_with(index + ": "));
    return said.substr(index.size() + 2);
  };
  const std::string no_map = "expected an object 'weight_map' with the file of each tensor";
  CHECK(with("") == "not JSON at byte 1");
  CHECK(with("[]") == no_map);
  CHECK(with("{}") == no_map);
  CHECK(with(R"({"weight_map":[]})") == no_map);
  CHECK(with(R"({"weight_map":{"a":1}})") == "tensor 'a': expected a file name, got 1");
  CHECK(with(R"({"weight_map":{"a":"one.safetensors","a":"two.safetensors"}})") ==
        "duplicate key 'a'");
  CHECK(with(index_of({{"a", "two.safetensors"}})) ==
        "tensor 'a': " + folder / "two.safetensors: cannot read: No such file or directory");
  CHECK(with(index_of({{"a", "one.safetensors"}, {"b", "one.safetensors"}})) ==
        "tensor 'b': expected in one.safetensors, which does not have it");
  for (const std::string bad : {"../one.safetensors", "/etc/passwd", "sub/../../x", "..", "", "."})
    CHECK(with(index_of({{"a", bad}})) ==
          "tensor 'a': expected a file in the folder, got '" + bad + "'");
}

TEST_CASE("A model is divided into files of a limited size, as declared") {
  const scratch_folder folder;
  const auto to = folder / "out";
  REQUIRE(write_shards(to, six(), 1000) == "");
  CHECK(names_in(to) == std::vector<std::string>{
                            "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                            "model-00003-of-00003.safetensors", "model.safetensors.index.json"});
  const auto index = json::parse(text_of(to + "/model.safetensors.index.json"));
  CHECK(index.at("metadata").at("total_size") == 2400);
  CHECK(index.at("weight_map").size() == 6);
  CHECK(index.at("weight_map").at("c") == "model-00001-of-00003.safetensors");
  CHECK(index.at("weight_map").at("a") == "model-00001-of-00003.safetensors");
  CHECK(index.at("weight_map").at("d") == "model-00003-of-00003.safetensors");
  const auto c = collection::open(to);
  REQUIRE(c);
  CHECK(c->files().size() == 3);
  CHECK(c->files()[0]->metadata() == string_map{{"format", "pt"}});
  for (const auto& [name, t] : c->tensors()) CHECK(as_vector(t.bytes()) == bytes_for(*t.info));
}

TEST_CASE(
    "A model that fits into one file has no index; a tensor above the limit has its own file") {
  const scratch_folder folder;
  REQUIRE(write_shards(folder / "one", six(), 2400) == "");
  CHECK(names_in(folder / "one") == std::vector<std::string>{"model.safetensors"});
  REQUIRE(write_shards(folder / "each", six(), 1) == "");
  CHECK(collection::open(folder / "each")->files().size() == 6);
  REQUIRE(write_shards(folder / "none", {}, 1) == "");
  CHECK(collection::open(folder / "none")->tensors().empty());
}

TEST_CASE("A folder that holds a model is refused, and an unfinished model is removed") {
  const scratch_folder folder;
  const auto to = folder / "out";
  REQUIRE(write_shards(to, six(), 1000) == "");
  CHECK(write_shards(to, six(), 1000) ==
        to + ": expected a folder without a model, found model.safetensors.index.json");
  CHECK(write_shards(folder / "bad", {{"a", dtype::uint8, {1}}, {"a", dtype::uint8, {1}}}, 1) ==
        folder / "bad: tensor 'a' is declared twice");
  {
    auto w = sharded_writer::create(folder / "half", six(), {}, 1000);
    REQUIRE(w);
    for (std::size_t i = 0; i < 3; ++i)
      REQUIRE((*w)->write((*w)->order()[i], std::vector<std::byte>(400)));
    const auto names = names_in(folder / "half");
    REQUIRE(names.size() == 2);
    CHECK(names[0] == "model-00001-of-00003.safetensors");
    CHECK_THAT(names[1], Catch::Matchers::StartsWith("model-00002-of-00003.safetensors.") &&
                             Catch::Matchers::EndsWith(".tmp"));
  }
  CHECK(names_in(folder / "half").empty());
}

}  // namespace
}  // namespace rrfp::safetensors::test
