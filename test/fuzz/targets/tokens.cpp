/// Token files: the first line is the .json file, the rest the ids.
#include <unistd.h>

#include <filesystem>
#include <vector>

#include <rrfp/data/token_file.hpp>

#include "promises.hpp"

using namespace rrfp;
using fuzz::promise;

namespace {

/// A token file is found by its name: a.bin and a.json, which lead to memory.
class linked_files {
 public:
  linked_files() {
    std::filesystem::create_directory(folder_);
    std::filesystem::create_symlink(ids.path(), path());
    std::filesystem::create_symlink(sidecar.path(), sidecar_path());
  }
  linked_files(const linked_files&) = delete;
  linked_files& operator=(const linked_files&) = delete;
  ~linked_files() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  std::string path() const { return (folder_ / "a.bin").string(); }
  std::string sidecar_path() const { return (folder_ / "a.json").string(); }

  fuzz::memory_file ids, sidecar;

 private:
  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("rrfp-fuzz-tokens-" + std::to_string(::getpid()));
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const linked_files files;
  const auto input = fuzz::text_of(data, size);
  const auto line = input.find('\n');
  files.sidecar.write(input.substr(0, line));
  files.ids.write(line == input.npos ? std::string_view{} : input.substr(line + 1));
  constexpr std::uint32_t vocabulary = 60'000;
  const auto file = data::token_file::open(files.path(), vocabulary);
  if (!file) {
    const auto& e = file.failure();
    const auto sidecar = files.sidecar_path();
    fuzz::promise_error(e, e.message.starts_with(sidecar) ? sidecar : files.path());
    return 0;
  }
  std::uint64_t before = 0;
  for (const auto begin : (*file)->documents()) {
    promise(begin < (*file)->tokens() && (begin == 0 || begin > before),
            "documents ascend within the tokens");
    before = begin;
  }
  std::vector<std::int64_t> all((*file)->tokens());
  promise((*file)->copy(0, all).ok(), "tokens can be read");
  for (const auto id : all) promise(id >= 0 && id < vocabulary, "tokens are in the vocabulary");
  promise(!(*file)->copy(1, all).ok(), "no token follows the last one");
  return 0;
}
