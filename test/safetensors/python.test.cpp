/// Compatibility with the Python implementation of the format, in both directions.
#include "support.hpp"

#include <algorithm>
#include <cstring>

#include <rrfp/safetensors/collection.hpp>
#include <rrfp/safetensors/sharded_writer.hpp>

namespace rrfp::safetensors::test {
namespace {

/// The output of the program; none if Python cannot run it.
rrfp::test::outcome python(const std::string& text, const std::string& argument) {
  return rrfp::test::run_program({RRFP_PYTHON, "-c", text, argument});
}

bool has_python() {
  static const bool has = python("import safetensors, numpy", "").code == 0;
  if (!has) WARN("skipped: " RRFP_PYTHON " has no safetensors");
  return has;
}

/// Names, dtypes, shapes and the sum of all bytes, read without the library's dtypes.
const std::string describe = R"(
import sys, safetensors
from safetensors import safe_open
data = open(sys.argv[1], 'rb').read()
for name, info in sorted(safetensors.deserialize(data)):
    print(name, info['dtype'], list(info['shape']), sum(info['data']))
with safe_open(sys.argv[1], 'np') as f:
    print(sorted((f.metadata() or {}).items()))
)";

std::string line_of(const tensor_info& t, std::span<const std::byte> bytes) {
  std::uint64_t sum = 0;
  for (const auto b : bytes) sum += std::to_integer<std::uint64_t>(b);
  return t.name + " " + std::string{name(t.type)} + " " + safetensors::text_of(t.shape) + " " +
         std::to_string(sum) + "\n";
}

TEST_CASE("Python reads a file that rrfp wrote") {
  if (!has_python()) return;
  const scratch_folder folder;
  const auto path = folder / "x.safetensors";
  std::vector<tensor_spec> all;
  for (const auto type : all_dtypes) {
    const std::string name{safetensors::name(type)};
    all.push_back({"a-" + name, type, {3, 5}});
    all.push_back({"b-" + name, type, {}});
    all.push_back({"c-" + name, type, {0, 4}});
  }
  REQUIRE(write_all(path, all, {{"key", "value"}}) == "");
  std::sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.name < b.name; });
  std::string expected;
  const auto opened = file::open(path);
  REQUIRE(opened);
  for (const auto& spec : all) {
    const auto& t = *(*opened)->find(spec.name);
    expected += line_of(t, bytes_for(t));
  }
  const auto read = python(describe, path);
  INFO(read.err);
  CHECK(read.code == 0);
  CHECK(read.out == expected + "[('key', 'value')]\n");
}

TEST_CASE("rrfp reads a file that Python wrote") {
  if (!has_python()) return;
  const scratch_folder folder;
  const auto path = folder / "x.safetensors";
  const auto wrote = python(R"(
import sys, numpy as np
from safetensors.numpy import save_file
kinds = [np.bool_, np.uint8, np.int8, np.int16, np.uint16, np.float16, np.int32, np.uint32,
         np.float32, np.float64, np.int64, np.uint64]
tensors = {}
for i, kind in enumerate(kinds):
    tensors[f't{i:02}'] = (np.arange(15).reshape(3, 5) % 2).astype(kind) if i == 0 else \
        np.arange(i, i + 15).reshape(3, 5).astype(kind)
    tensors[f's{i:02}'] = np.array(1, dtype=kind)
    tensors[f'e{i:02}'] = np.zeros((2, 0), dtype=kind)
save_file(tensors, sys.argv[1], metadata={'from': 'python', 'ü': 'ö'})
)",
                            path);
  INFO(wrote.err);
  REQUIRE(wrote.code == 0);
  const auto opened = file::open(path);
  INFO((opened ? "" : opened.message()));
  REQUIRE(opened);
  const auto& f = **opened;
  CHECK(f.tensors().size() == 36);
  CHECK(f.metadata() == string_map{{"from", "python"}, {"ü", "ö"}});
  const auto& floats = *f.find("t08");
  CHECK(floats.type == dtype::float32);
  CHECK(floats.shape == std::vector<std::int64_t>{3, 5});
  for (int i = 0; i < 15; ++i) {
    float value = 0;
    std::memcpy(&value, f.bytes(floats).data() + i * sizeof value, sizeof value);
    CHECK(value == static_cast<float>(8 + i));
  }
  CHECK(f.find("s11")->shape.empty());
  CHECK(f.find("e03")->size() == 0);

  // The lines of both readers agree.
  std::string expected;
  std::vector<const tensor_info*> sorted;
  for (const auto& t : f.tensors()) sorted.push_back(&t);
  std::sort(sorted.begin(), sorted.end(), [](auto* a, auto* b) { return a->name < b->name; });
  for (const auto* t : sorted) expected += line_of(*t, f.bytes(*t));
  CHECK_THAT(python(describe, path).out, Catch::Matchers::StartsWith(expected));
}

TEST_CASE("Python finds every tensor of a divided model where the index says") {
  if (!has_python()) return;
  const scratch_folder folder;
  const auto to = folder / "out";
  auto w = sharded_writer::create(
      to, {{"a", dtype::bfloat16, {3}}, {"b", dtype::float32, {5}}, {"c", dtype::uint8, {}}}, {},
      8);
  REQUIRE(w);
  for (const auto& [name, size] : {std::pair{"a", 6}, std::pair{"b", 20}, std::pair{"c", 1}})
    REQUIRE((*w)->write(name, std::vector<std::byte>(static_cast<std::size_t>(size))));
  REQUIRE((*w)->finish());
  const auto read = python(R"(
import json, os, sys
from safetensors import safe_open
index = json.load(open(os.path.join(sys.argv[1], 'model.safetensors.index.json')))
for name, file in sorted(index['weight_map'].items()):
    with safe_open(os.path.join(sys.argv[1], file), 'np') as f:
        print(name, file, f.get_slice(name).get_shape())
print(index['metadata']['total_size'])
)",
                           to);
  INFO(read.err);
  CHECK(read.out ==
        "a model-00001-of-00003.safetensors [3]\nb model-00002-of-00003.safetensors [5]\n"
        "c model-00003-of-00003.safetensors []\n27\n");
}

}  // namespace
}  // namespace rrfp::safetensors::test
