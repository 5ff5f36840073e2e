/// Files read back as they were written.
#include "support.hpp"

#include "death.hpp"

namespace rrfp::safetensors::test {
namespace {

TEST_CASE("Every dtype reads back unchanged, in every shape") {
  const scratch_folder folder;
  const auto path = folder / "all.safetensors";
  std::vector<tensor_spec> all;
  for (const auto type : all_dtypes) {
    const std::string name{safetensors::name(type)};
    CHECK(dtype_of(name) == type);
    all.push_back({name + " scalar", type, {}});
    all.push_back({name + " empty", type, {3, 0, 2}});
    all.push_back({name + " odd", type, {3, 5, 7}});
  }
  all.push_back({"ünïcode \"and\" \\ so on", dtype::float32, {1}});
  all.push_back({"", dtype::uint8, {2}});
  const string_map metadata{{"format", "pt"}, {"näme", "a \"text\"\n"}};
  REQUIRE(write_all(path, all, metadata) == "");
  CHECK(files_beside(path) == 0);

  const auto opened = file::open(path);
  INFO((opened ? "" : opened.message()));
  REQUIRE(opened);
  const auto& f = **opened;
  CHECK(f.path() == path);
  CHECK(f.metadata() == metadata);
  REQUIRE(f.tensors().size() == all.size());
  for (const auto& spec : all) {
    const auto* const t = f.find(spec.name);
    INFO(spec.name);
    REQUIRE(t != nullptr);
    CHECK(t->type == spec.type);
    CHECK(t->shape == spec.shape);
    CHECK(as_vector(f.bytes(*t)) == bytes_for(*t));
    CHECK(reinterpret_cast<std::uintptr_t>(f.bytes(*t).data()) % item_bytes(t->type) == 0);
  }
  CHECK(f.find("none") == nullptr);
}

TEST_CASE("An open file stays readable when another replaces it") {
  const scratch_folder folder;
  const auto path = folder / "x.safetensors";
  REQUIRE(write_all(path, {{"a", dtype::float32, {100}}}) == "");
  const auto before = file::open(path);
  REQUIRE(before);
  REQUIRE(write_all(path, {{"b", dtype::float32, {2}}}) == "");
  const auto& a = (*before)->tensors()[0];
  CHECK(as_vector((*before)->bytes(a)) == bytes_for(a));
  CHECK((*file::open(path))->find("b") != nullptr);
}

TEST_CASE("A file without tensors and a file with metadata alone are valid") {
  const scratch_folder folder;
  REQUIRE(write_all(folder / "none", {}) == "");
  CHECK(text_of(folder / "none") == little_endian(8) + "{}      ");
  REQUIRE(write_all(folder / "meta", {}, {{"a", "b"}}) == "");
  CHECK((*file::open(folder / "meta"))->metadata() == string_map{{"a", "b"}});
  CHECK((*file::open(folder / "meta"))->tensors().empty());
}

TEST_CASE("The data is aligned to 8 bytes, and the observer sees all bytes in order") {
  const scratch_folder folder;
  std::string seen;
  auto w = writer::create(folder / "x", {{"a", dtype::uint8, {3}}, {"b", dtype::int64, {2}}}, {},
                          [&](std::span<const std::byte> bytes) {
                            seen.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
                          });
  REQUIRE(w);
  REQUIRE((*w)->tensors().size() == 2);
  CHECK((*w)->tensors()[0].name == "b");
  for (const auto& t : (*w)->tensors()) {
    const auto bytes = bytes_for(t);
    // In pieces.
    for (std::size_t i = 0; i < bytes.size(); ++i)
      REQUIRE((*w)->write(t.name, std::span{bytes}.subspan(i, 1)));
  }
  REQUIRE((*w)->finish());
  const auto text = text_of(folder / "x");
  CHECK(seen == text);
  CHECK((text.size() - 3 - 16) % 8 == 0);
}

TEST_CASE("A writer refuses what a reader would refuse") {
  const scratch_folder folder;
  const auto path = folder / "x";
  CHECK(write_all(path, {{"a", dtype::uint8, {1}}, {"a", dtype::uint8, {1}}}) ==
        path + ": tensor 'a' is declared twice");
  CHECK(write_all(path, {{"__metadata__", dtype::uint8, {1}}}) ==
        path + ": tensor '__metadata__': the name is reserved");
  CHECK(write_all(path, {{"a", dtype::uint8, {-1}}}) ==
        path + ": tensor 'a': shape [-1]: expected sizes >= 0");
  CHECK(write_all(path, {{"a", dtype::float32, {1LL << 40, 1LL << 40}}}) ==
        path + ": tensor 'a': shape [1099511627776, 1099511627776]: its size in bytes overflows");
  CHECK(write_all(path, {{"\xff", dtype::uint8, {1}}}) ==
        path + ": a tensor name or a metadata string is not UTF-8");
  CHECK(write_all(folder / "", {}) ==
        folder / "" + ": cannot write: expected a file name, got a folder");
  CHECK(write_all("/dev/full", {}) ==
        "/dev/full: cannot write: expected a file name, got a device or pipe");
  CHECK(write_all(folder / "none/x", {}) ==
        folder / "none/x" + ": cannot write: No such file or directory");
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("An unfinished file leaves the old file and no temporary file") {
  const scratch_folder folder;
  const auto path = folder / "x";
  write_text(path, "old");
  {
    auto w = writer::create(path, {{"a", dtype::uint8, {4}}}, {});
    REQUIRE(w);
    const std::byte some[2]{};
    REQUIRE((*w)->write("a", some));
    CHECK(files_beside(path) == 1);
  }
  CHECK(text_of(path) == "old");
  CHECK(files_beside(path) == 0);
}

TEST_CASE("A tensor out of order, too many bytes and too few bytes abort") {
  using rrfp::testing::abort_message;
  const scratch_folder folder;
  const std::byte some[4]{};
  const auto with_writer = [&](auto use) {
    return abort_message([&] {
      auto w =
          writer::create(folder / "x", {{"a", dtype::uint8, {2}}, {"b", dtype::uint8, {2}}}, {});
      use(**w);
    });
  };
  CHECK_THAT(with_writer([&](writer& w) { (void)w.write("b", some); }),
             Catch::Matchers::Contains("in the order"));
  CHECK_THAT(with_writer([&](writer& w) { (void)w.write("a", some); }),
             Catch::Matchers::Contains("no more bytes"));
  CHECK_THAT(with_writer([&](writer& w) {
               (void)w.write("a", std::span{some}.first(2));
               (void)w.finish();
             }),
             Catch::Matchers::Contains("every tensor is written"));
}

}  // namespace
}  // namespace rrfp::safetensors::test
