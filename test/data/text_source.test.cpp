#include <filesystem>
#include <fstream>
#include <set>

#include <ATen/ATen.h>
#include <catch2/catch.hpp>

#include <rrfp/data/text_source.hpp>

#include <unistd.h>

namespace rrfp::data::test {

namespace {

namespace fs = std::filesystem;

/// A temporary folder, removed at the end.
struct scratch {
  fs::path folder = fs::temp_directory_path() / ("rrfp_text_source_" + std::to_string(::getpid()));

  scratch() { fs::create_directories(folder); }
  ~scratch() { fs::remove_all(folder); }
  scratch(const scratch&) = delete;
  scratch& operator=(const scratch&) = delete;

  std::string write(const std::string& name, const std::string& text) const {
    fs::create_directories((folder / name).parent_path());
    std::ofstream(folder / name, std::ios::binary) << text;
    return (folder / name).string();
  }
};

source_config config_of_text(std::vector<std::string> text) {
  source_config c;
  c.data.text = std::move(text);
  c.data.microbatch_size = 3;
  c.data.sequence_length = 8;
  c.seed = 5;
  c.microbatches = 4;
  return c;
}

std::string alphabet(std::size_t n) {
  std::string text;
  for (std::size_t i = 0; i < n; ++i) text.push_back(static_cast<char>('a' + i % 26));
  return text;
}

void check_refused(const source_config& c, const std::string& path, const std::string& why,
                   std::uint64_t bytes_max = corpus_bytes_max) {
  const auto source = open_text(c, bytes_max);
  REQUIRE(!source.ok());
  CHECK_THAT(source.message(), Catch::Contains(path));
  CHECK_THAT(source.message(), Catch::Contains(why));
}

}  // namespace

TEST_CASE("a microbatch is windows of the text, the targets one byte on") {
  const scratch s;
  const auto source = open_text(config_of_text({s.write("a", alphabet(100))})).value();
  const auto batch = source->load(step_id{2}, microbatch_id{1});
  CHECK(batch.inputs.sizes().equals({3, 8}));
  CHECK(batch.tokens == 24);
  CHECK(source->step_tokens(step_id{2}) == 4 * 24);
  CHECK(source->layout(step_id{2}, microbatch_id{1}) == compute::layout_of(batch));
  // In an alphabet every target is its input's successor.
  CHECK(at::equal(batch.targets, (batch.inputs - 'a' + 1).remainder(26) + 'a'));
  CHECK(at::equal(batch.inputs.narrow(1, 1, 7), batch.targets.narrow(1, 0, 7)));
}

TEST_CASE("loads give the same result in any order and from any source object") {
  const scratch s;
  const auto config = config_of_text({s.write("a", alphabet(1000))});
  const auto source = open_text(config).value();
  const auto again = open_text(config).value();
  const auto load = [](const auto& from, std::uint64_t step, std::uint32_t mb) {
    return from->load(step_id{step}, microbatch_id{mb}).inputs;
  };
  const auto first = load(source, 3, 2);
  load(source, 0, 0);
  CHECK(at::equal(load(source, 3, 2), first));
  CHECK(at::equal(load(again, 3, 2), first));
  CHECK(source->fingerprint() == again->fingerprint());
  CHECK(!at::equal(load(source, 3, 1), first));
  CHECK(!at::equal(load(source, 2, 2), first));
  auto other = config;
  other.seed = 6;
  CHECK(!at::equal(load(open_text(other).value(), 3, 2), first));
}

TEST_CASE("windows reach every position of the text, also the first and the last") {
  const scratch s;
  auto config = config_of_text({s.write("a", alphabet(12))});  // windows begin at 0, 1, 2, 3
  const auto source = open_text(config).value();
  std::set<std::int64_t> first_bytes;
  for (std::uint64_t step = 0; step < 50; ++step) {
    const auto inputs = source->load(step_id{step}, microbatch_id{0}).inputs;
    for (std::int64_t i = 0; i < 3; ++i) first_bytes.insert(inputs[i][0].item<std::int64_t>());
  }
  CHECK(first_bytes == std::set<std::int64_t>{'a', 'b', 'c', 'd'});
}

TEST_CASE("a folder means its files, sorted by path") {
  const scratch s;
  s.write("corpus/b.txt", "second half.");
  s.write("corpus/a/deep.txt", "First half, ");
  const auto whole = s.write("whole", "First half, second half.");
  const auto of_folder = open_text(config_of_text({(s.folder / "corpus").string()})).value();
  const auto of_file = open_text(config_of_text({whole})).value();
  CHECK(of_folder->fingerprint() == of_file->fingerprint());
}

TEST_CASE("unusable text is refused by name") {
  const scratch s;
  const auto missing = (s.folder / "missing.txt").string();
  check_refused(config_of_text({missing}), missing, "does not exist");
  check_refused(config_of_text({}), "names no file", "or folder");

  fs::create_directories(s.folder / "nothing");
  const auto nothing = (s.folder / "nothing").string();
  check_refused(config_of_text({nothing}), nothing, "holds no regular file");

  const auto empty = s.write("empty", "");
  check_refused(config_of_text({empty}), empty, "holds 0 bytes");
  const auto short_text = s.write("short", alphabet(8));
  check_refused(config_of_text({short_text}), short_text, "needs at least 9");
  CHECK(open_text(config_of_text({s.write("enough", alphabet(9))})).ok());

  const auto limited = config_of_text({s.write("long", alphabet(100))});
  check_refused(limited, "long", "longer than the limit of 99 bytes", 99);
  CHECK(open_text(limited, 100).ok());

  const auto odd = s.write("odd", alphabet(20) + "\xff");
  auto narrow = config_of_text({odd});
  narrow.vocabulary = 255;
  check_refused(narrow, odd, "byte 255");

  check_refused(config_of_text({"/dev/null"}), "/dev/null", "neither a regular file nor a folder");

  if (::geteuid() != 0) {  // root reads everything
    const auto locked = s.write("locked", alphabet(100));
    fs::permissions(locked, fs::perms::none);
    check_refused(config_of_text({locked}), locked, "cannot be read");
  }
}

}  // namespace rrfp::data::test
