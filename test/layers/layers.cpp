#include "layers.hpp"

#include <algorithm>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string_view>

namespace rrfp::testing {

namespace {

namespace fs = std::filesystem;
using names = std::set<std::string, std::less<>>;

struct layer {
  std::string folder;
  names may_include;    ///< other layers (base is open to all), or single public headers of them
  names third_parties;  ///< the watched ones that it may include
};

const names torch{"torch", "ATen", "c10"};
/// The CUDA runtime, the parts of libtorch that need it, and NCCL.
const names cuda{"cuda", "nccl.h"};

names with(names a, const names& b) {
  a.insert(b.begin(), b.end());
  return a;
}

const std::map<std::string, layer, std::less<>>& layers() {
  static const std::map<std::string, layer, std::less<>> all{
      {"base", {"libpipeline/base", {}, {}}},
      {"schedule", {"libpipeline/schedule", {}, {}}},
      {"job_core", {"libactors/job/core", {"schedule"}, {}}},
      {"recovery_core", {"libactors/recovery/core", {}, {}}},
      {"transport_core", {"libactors/transport/ucx/core", {"schedule"}, {}}},
      {"checkpoint_core", {"libpipeline/checkpoint/core", {"schedule"}, {}}},
      {"stragglers", {"libpipeline/stragglers", {}, {}}},
      {"weather", {"libpipeline/weather", {"schedule"}, {}}},
      {"simulate", {"libpipeline/simulate", {"schedule", "weather"}, {}}},
      {"workload", {"libpipeline/workload", {"schedule", "weather"}, {}}},
      {"hugging_face",
       {"libpipeline/hugging_face",
        {"schedule", "json", "rrfp/job/options.hpp", "rrfp/job/model_rules.hpp"},
        {}}},
      // Jobs are read and planned with the policies that the caller passes in.
      {"job", {"libpipeline/job", {"schedule", "weather", "workload", "hugging_face"}, {"toml++"}}},
      {"plan", {"libpipeline/plan", {"schedule", "weather", "simulate", "workload", "job"}, {}}},
      {"html", {"libpipeline/html", {}, {}}},
      // The only layer that calls the JSON library's parser.
      {"json", {"libpipeline/json", {}, {}}},
      {"files", {"libpipeline/files", {"schedule"}, {}}},
      // A file format, independent of models and of the tensor library.
      {"safetensors", {"libpipeline/safetensors", {"files", "schedule", "json"}, {}}},
      {"checkpoint",
       {"libpipeline/checkpoint",
        {"checkpoint_core", "files", "schedule", "safetensors", "json"},
        {}}},
      // Writes recorded durations in the simulator's format, but does not run the simulator.
      {"report",
       {"libpipeline/report",
        {"schedule", "stragglers", "html", "json", "rrfp/simulate/duration_table.hpp"},
        {}}},
      // What a rank computes, without a framework, and with libtorch.
      {"compute",
       {"libpipeline/compute",
        {"schedule", "rrfp/job/options.hpp", "rrfp/job/model_rules.hpp"},
        {}}},
      {"torch",
       {"libpipeline/torch",
        {"schedule", "compute", "safetensors", "rrfp/job/options.hpp", "rrfp/job/model_rules.hpp"},
        torch}},
      {"data",
       {"libpipeline/data",
        {"schedule", "json", "rrfp/torch/batch_source.hpp", "rrfp/compute/keyed_hash.hpp",
         "rrfp/compute/microbatch_layout.hpp", "rrfp/job/byte_level.hpp", "rrfp/job/options.hpp"},
        {"ATen", "c10", "png.h", "turbojpeg.h"}}},
      {"policies", {"policies", {"schedule"}, {}}},
      // Above libpipeline and policies.
      {"experiment",
       {"apps/rrfp-jitter/experiment",
        {"files", "schedule", "weather", "simulate", "policies", "job", "plan", "workload", "html",
         "json"},
        {}}},
      // Part of a library that programs load at run time.
      {"nccl", {"libtp_coord/nccl", {"schedule", "tp_coord"}, cuda}},
      {"tp_coord", {"libtp_coord", {"schedule"}, {}}},
      {"actors",
       {"libactors",
        {"plan", "compute", "data", "tp_coord", "job", "weather", "simulate", "schedule",
         "job_core", "recovery_core", "transport_core", "checkpoint", "safetensors", "metrics",
         "accelerator", "files", "stragglers", "torch"},
        with(torch, {"caf"})}},
      // The interface to devices, and the implementation for CUDA.
      {"accelerator",
       {"libactors/accelerator", {"schedule", "tp_coord", "compute"}, {"ATen", "c10"}}},
      {"cuda",
       {"libactors/cuda",
        {"schedule", "tp_coord", "accelerator", "nccl", "compute"},
        with({"ATen", "c10"}, cuda)}},
      {"trainer",
       {"libactors/trainer",
        {"actors", "plan", "compute", "job", "policies", "tp_coord", "schedule", "checkpoint",
         "metrics", "torch"},
        torch}},
      {"python",
       {"python",
        {"compute", "report", "actors", "policies", "plan", "simulate", "job", "schedule"},
        {}}},
      {"wall_clock",
       {"apps/rrfp-jitter/wall_clock",
        {"actors", "experiment", "plan", "simulate", "job", "schedule"},
        {}}},
      // Counters and their text; serving it is up to the programs.
      {"metrics", {"libactors/metrics", {"schedule"}, {}}},
      {"membership_core", {"libactors/membership/core", {}, {}}},
      // Membership needs no actors and no tensors, so it builds and is tested separately.
      {"membership",
       {"libactors/membership",
        {"membership_core", "rrfp/actors/launch_environment.hpp", "rrfp/actors/membership.hpp"},
        {"openssl"}}},
      {"apps",
       {"apps",
        {"actors",   "plan",    "compute",    "data",     "tp_coord",     "job",
         "policies", "weather", "workload",   "trainer",  "hugging_face", "experiment",
         "simulate", "report",  "wall_clock", "schedule", "checkpoint",   "safetensors",
         "metrics",  "files",   "stragglers", "json",     "torch"},
        with(torch, {"caf", "CLI", "toml++", "CivetServer.h"})}},
  };
  return all;
}

/// The rooms of the actors' layer: which other rooms each may include, and whether it uses actors.
struct room {
  names may_include;
  bool uses_caf = true;
};
const std::map<std::string, room, std::less<>> rooms{
    {"transport", {{}, false}},
    {"device", {{"transport"}, false}},
    {"control", {{"device", "transport"}}},
    {"recovery", {{"control"}}},
    {"stage", {{"control", "device", "recovery"}}},
    {"node", {{"control", "recovery", "stage"}}},
    {"job", {{"control"}}},
    {"bring_up", {{"control", "device", "job", "node", "recovery", "transport"}}},
    {"torch", {{"device", "transport"}, false}},
};
constexpr std::string_view rooms_folder = "libactors/";

/// The room of the actors' layer that includes libtorch. The others are the runtime, which knows no
/// framework.
constexpr std::string_view torch_room = "libactors/torch/";
const names of_torch_room{"torch", "data", "accelerator"};

/// Third parties that only some layers may include, by the folder of their headers.
const names watched{"torch",   "ATen",  "c10",         "caf",           "CLI",  "toml++",
                    "openssl", "png.h", "turbojpeg.h", "CivetServer.h", "cuda", "nccl.h"};

/// The name under which a header is watched: its folder; CUDA's headers have no common folder.
std::string watched_name(const std::string& target) {
  for (const auto* const head : {"cuda", "ATen/cuda/", "c10/cuda/", "torch/csrc/cuda/"})
    if (target.starts_with(head)) return "cuda";
  return target.substr(0, target.find('/'));
}

/// Parsers without a depth limit, and the only files that may call them: these limit the depth
/// first.
struct guarded_parser {
  std::string_view call;
  std::string_view allowed_in;
  std::string_view instead;
};
constexpr guarded_parser guarded_parsers[] = {
    {"json::parse(", "libpipeline/json/", "parse_json()"},
    {"json::sax_parse(", "libpipeline/json/", "parse_json()"},
    {"json::accept(", "libpipeline/json/", "parse_json()"},
    {"toml::parse(", "libpipeline/job/toml_reader.cpp", "read_toml()"},
    {"toml::parse_file(", "libpipeline/job/toml_reader.cpp", "read_toml()"},
};

/// Folders whose sources must all belong to a layer.
constexpr std::string_view product_folders[] = {"libpipeline", "libtp_coord", "policies",
                                                "libactors",   "apps",        "python"};

/// Layers that use a pure part of the standard library, base and themselves alone.
const names pure_layers{"base",           "schedule",        "job_core",      "membership_core",
                        "transport_core", "checkpoint_core", "recovery_core", "stragglers"};

/// The part of the standard library that a pure core may use.
const names pure_headers{
    "algorithm",   "array",   "bit",         "bitset",        "charconv",      "compare",
    "concepts",    "cstddef", "cstdint",     "deque",         "functional",    "initializer_list",
    "iterator",    "limits",  "map",         "memory",        "new",           "numeric",
    "optional",    "queue",   "ranges",      "set",           "span",          "string",
    "string_view", "tuple",   "type_traits", "unordered_map", "unordered_set", "utility",
    "variant",     "vector"};

/// Parts of another layer that are as pure as the core and include no other part of their layer.
constexpr std::string_view pure_folders[] = {"libtp_coord/order/",
                                             "libtp_coord/include/rrfp/tp_coord/order/"};
constexpr std::string_view pure_public_headers = "rrfp/tp_coord/order/";

bool is_in_pure_folder(const std::string& file) {
  return std::any_of(std::begin(pure_folders), std::end(pure_folders),
                     [&](auto folder) { return file.starts_with(folder); });
}

/// Only a failed check may print and abort.
const names check_headers{"cstdio", "cstdlib"};

bool is_source(const fs::path& file) {
  static const names endings{".hpp", ".cpp", ".h", ".cc", ".cu", ".cuh", ".ipp", ".inc", ".cxx"};
  return endings.contains(file.extension().string());
}

/// The layer that owns a file, by its path relative to the root: the innermost folder counts. Empty
/// if none does.
std::string owner_of(const std::string& file) {
  std::string owner;
  std::size_t longest = 0;
  for (const auto& [name, l] : layers()) {
    if (!file.starts_with(l.folder + "/") || l.folder.size() < longest) continue;
    owner = name;
    longest = l.folder.size();
  }
  return owner;
}

std::string first_part(const std::string& path) { return path.substr(0, path.find('/')); }

/// The room of a file of the actors' layer; null elsewhere.
const std::pair<const std::string, room>* room_of(const std::string& file) {
  if (!file.starts_with(rooms_folder) || owner_of(file) != "actors") return nullptr;
  const auto found = rooms.find(first_part(file.substr(rooms_folder.size())));
  return found == rooms.end() ? nullptr : &*found;
}

struct inclusion {
  std::string target;
  bool quoted = false;
};

class reader {
 public:
  explicit reader(fs::path root) : root_(std::move(root)) {}

  std::vector<std::string> read() {
    std::set<fs::path> files;
    for (const auto folder : product_folders)
      if (fs::exists(root_ / folder))
        for (const auto& entry : fs::recursive_directory_iterator(root_ / folder))
          if (entry.is_regular_file() && is_source(entry.path())) files.insert(entry.path());
    for (const auto& file : files) read_file(file);
    std::sort(found_.begin(), found_.end());
    return found_;
  }

 private:
  void read_file(const fs::path& path) {
    static const std::regex include{R"(^\s*#\s*include\s*([<"])([^>"]+)[>"])"};
    file_ = path.lexically_relative(root_).generic_string();
    owner_ = owner_of(file_);
    line_ = 0;
    is_private_ = false;
    if (owner_.empty()) return report("belongs to no layer");
    std::ifstream in{path};
    for (std::string text; std::getline(in, text);) {
      ++line_;
      check_calls(text);
      check_private_type(text);
      std::smatch match;
      if (!std::regex_search(text, match, include)) continue;
      const inclusion i{match[2], match[1] == "\""};
      if (i.quoted)
        check_quoted(path, i.target);
      else
        check_angled(i.target);
    }
  }

  void check_calls(const std::string& text) {
    const auto code = text.substr(0, text.find("//"));
    for (const auto& parser : guarded_parsers)
      if (code.find(parser.call) != std::string::npos && !file_.starts_with(parser.allowed_in))
        report("calls a parser without a depth limit: expected " + std::string{parser.instead});
  }

  /// A unity build compiles several sources as one, so the types in their unnamed namespaces must
  /// have different names; which sources share a unit depends on the preset.
  void check_private_type(const std::string& text) {
    static const std::regex type{R"(^(?:struct|class|enum class) (\w+)(?: final)?(?: :.*)? \{)"};
    if (text == "namespace {") is_private_ = true;
    if (text == "}  // namespace") is_private_ = false;
    std::smatch match;
    if (!is_private_ || !std::regex_search(text, match, type)) return;
    const auto program = owner_ == "apps" ? fs::path{file_}.parent_path().string() : owner_;
    const auto [first, is_new] = private_types_.emplace(program + " " + match[1].str(), file_);
    if (!is_new && first->second != file_)
      report("type " + match[1].str() + " in the unnamed namespace is also in that of " +
             first->second);
  }

  void check_quoted(const fs::path& path, const std::string& target) {
    const auto home = root_ / layers().at(owner_).folder;
    for (const auto& base : {path.parent_path(), home}) {
      const auto file = (base / target).lexically_normal();
      const auto inside = file.lexically_relative(home).generic_string();
      const auto included = file.lexically_relative(root_).generic_string();
      if (fs::exists(file) && !inside.starts_with("..") && owner_of(included) == owner_)
        return check_room(included);
    }
    report("includes \"" + target + "\", which is not a file of its own layer");
  }

  void check_room(const std::string& included) {
    const auto* const from = room_of(file_);
    const auto* const to = room_of(included);
    if (from != nullptr && to != nullptr && from != to &&
        !from->second.may_include.contains(to->first))
      report("includes " + included + ": room " + from->first + " may not include room " +
             to->first);
  }

  void check_angled(const std::string& target) {
    if (first_part(target) == "rrfp") return check_layer(target);
    const auto& own = layers().at(owner_);
    const auto party = watched_name(target);
    if (watched.contains(party) && !own.third_parties.contains(party))
      return report("includes <" + target + ">: layer " + owner_ + " may not include " + party);
    if (is_runtime_file() && torch.contains(party))
      report("includes <" + target + ">: the runtime knows no framework");
    if (const auto* in = room_of(file_); party == "caf" && in != nullptr && !in->second.uses_caf)
      report("includes <" + target + ">: room " + in->first + " may not include caf");
    if (!pure_layers.contains(owner_) && !is_in_pure_folder(file_)) return;
    const bool is_check = file_ == "libpipeline/base/check.cpp";
    if (!pure_headers.contains(target) && !(is_check && check_headers.contains(target)))
      report("includes <" + target +
             ">: " + (pure_layers.contains(owner_) ? "the core" : "the order") + " is pure");
  }

  bool is_runtime_file() const { return owner_ == "actors" && !file_.starts_with(torch_room); }

  void check_layer(const std::string& target) {
    // Headers directly under rrfp/ belong to the trainer, the interface for embedding programs.
    const auto part = first_part(target.substr(5));
    const auto other = part.ends_with(".hpp") ? std::string{"trainer"} : std::string{part};
    if (is_runtime_file() &&
        (of_torch_room.contains(other) || target.starts_with("rrfp/actors/torch_")))
      return report("includes <" + target + ">: the runtime knows no framework");
    const auto& may = layers().at(owner_).may_include;
    if (!layers().contains(other)) return report("includes <" + target + "> of an unknown layer");
    if (is_in_pure_folder(file_) && other == owner_ && !target.starts_with(pure_public_headers))
      return report("includes <" + target + ">: the order is pure");
    if (other != owner_ && other != "base" && !may.contains(other) && !may.contains(target))
      report("includes <" + target + ">: " + owner_ + " may not depend on " + other);
  }

  void report(const std::string& problem) {
    found_.push_back(file_ + ":" + std::to_string(line_) + ": " + problem);
  }

  const fs::path root_;
  std::string file_;
  std::string owner_;
  int line_ = 0;
  bool is_private_ = false;                           ///< in an unnamed namespace
  std::map<std::string, std::string> private_types_;  ///< the file of "layer type"
  std::vector<std::string> found_;
};

bool starts_with_any(std::string_view text, std::initializer_list<std::string_view> heads) {
  return std::any_of(heads.begin(), heads.end(), [&](auto h) { return text.starts_with(h); });
}

bool is_runtime(std::string_view symbol) {
  static const names plain{"memcpy",       "memmove",       "memset",
                           "memcmp",       "bcmp",          "memchr",
                           "strlen",       "strcmp",        "abort",
                           "fprintf",      "fflush",        "fputs",
                           "fwrite",       "stderr",        "__stack_chk_fail",
                           "__dso_handle", "__popcountdi2", "_GLOBAL_OFFSET_TABLE_"};
  if (plain.contains(symbol) || symbol == "__libc_single_threaded") return true;  // of shared_ptr
  const bool is_std = starts_with_any(symbol, {"_ZNSt", "_ZNKSt", "_ZSt", "_ZTVSt", "_ZTISt"});
  for (const auto* word : {"chrono", "thread", "mutex", "condition_variable", "random_device",
                           "fstream", "filebuf", "filesystem", "iostream", "future"})
    if (is_std && symbol.find(word) != std::string_view::npos) return false;
  return is_std || starts_with_any(symbol, {"_Zn", "_Zd", "_ZTVN10__cxxabiv", "__cxa_", "__gxx_",
                                            "_Unwind_", "__asan_", "__ubsan_", "__tsan_"});
}

}  // namespace

std::vector<std::string> layer_violations(const std::filesystem::path& root) {
  return reader{root}.read();
}

std::vector<std::string> foreign_symbols(const std::vector<std::string>& undefined,
                                         const std::vector<std::string>& defined) {
  const names own{defined.begin(), defined.end()};
  std::vector<std::string> foreign;
  for (const auto& symbol : undefined)
    if (!own.contains(symbol) && !is_runtime(symbol)) foreign.push_back(symbol);
  return foreign;
}

}  // namespace rrfp::testing
