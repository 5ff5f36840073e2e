#include <rrfp/accelerator/load.hpp>

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <optional>

#include <rrfp/accelerator/determinism.hpp>

namespace rrfp::accelerator {

namespace {

namespace fs = std::filesystem;

/// The file that contains this code: the program, or a module of Python.
fs::path this_file() {
  std::error_code failed;
  Dl_info info{};
  static const int here = 0;
  if (dladdr(&here, &info) == 0 || info.dli_fname == nullptr) return {};
  // The name of a program may be relative to a folder that is no longer the current one.
  const auto program = fs::read_symlink("/proc/self/exe", failed);
  const fs::path file{info.dli_fname};
  return file.filename() == program.filename() ? program : file;
}

/// $RRFP_CUDA_LIBRARY; else beside this file (build tree, Python package) or in ../lib
/// (installation).
std::optional<fs::path> find_library() {
  if (const auto* const given = std::getenv(cuda_library_variable); given != nullptr) return given;
  std::error_code failed;
  const auto beside = this_file().parent_path();
  const auto prefix = beside.parent_path();
  for (const auto& folder : {beside, prefix, prefix / "lib", prefix / RRFP_LIBRARY_FOLDER})
    if (fs::exists(folder / cuda_library, failed)) return folder / cuda_library;
  return std::nullopt;
}

/// An installation does not include libtorch's CUDA libraries, which take gigabytes: `library`
/// looks for them in the folder cuda beside it.
error cannot_load(const fs::path& library, const std::string& why) {
  const auto wheel = "torch==" RRFP_TORCH_VERSION;
  return error{"cannot load " + library.string() + ": " + why +
               "; libtorch's CUDA libraries come with pip install --target " +
               (library.parent_path() / "cuda").string() + " " + wheel};
}

result<std::shared_ptr<platform>> load(const fs::path& library, bool deterministic) {
  // Never unloaded: threads that it started live as long as the process.
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return cannot_load(library, dlerror());
  const auto open = reinterpret_cast<open_function>(dlsym(handle, open_symbol));
  if (open == nullptr)
    return error{library.string() + ": expected an rrfp plugin that exports " + open_symbol};
  opened answer;
  open(plugin_version, deterministic, answer);
  if (answer.made == nullptr) return error{answer.failure};
  return answer.made;
}

}  // namespace

result<std::shared_ptr<platform>> load_cuda(bool deterministic) {
  static std::shared_ptr<platform> loaded;
  static bool is_deterministic = false;
  if (loaded != nullptr && deterministic != is_deterministic)
    return error{"device.deterministic must be the same for all runs of a process: expected " +
                 std::string{is_deterministic ? "true" : "false"} + " as in the first run"};
  if (loaded != nullptr) return loaded;
  const auto library = find_library();
  if (!library)
    return error{std::string{"this build has no CUDA part: "} + cuda_library +
                 " is not beside the program, and " + cuda_library_variable + " is not set"};
  if (deterministic) {
    const auto missing = missing_variables([](const char* name) { return std::getenv(name); });
    if (!missing) return missing.failure();
    for (const auto& [name, value] : *missing) setenv(name.c_str(), value.c_str(), 1);
  }
  // One hardware queue per stream on a device that many stages share.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  auto made = load(*library, deterministic);
  if (made) loaded = *made;
  is_deterministic = deterministic;
  return made;
}

}  // namespace rrfp::accelerator
