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
  names may_include;    ///< other layers (base is open to all), or single headers of them
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
      {"base", {"libpipeline/rrfp/base", {}, {}}},
      {"core", {"libpipeline/rrfp/core", {}, {}}},
      // The only layer that calls the JSON library's parser.
      {"io", {"libpipeline/rrfp/io", {}, {}}},
      {"simulate", {"libpipeline/rrfp/simulate", {"core"}, {}}},
      // Sizes and weather, without the simulator.
      {"workload", {"libpipeline/rrfp/workload", {"core", "rrfp/simulate/keyed_random.hpp"}, {}}},
      {"hugging_face",
       {"libpipeline/rrfp/hugging_face",
        {"core", "io", "rrfp/job/options.hpp", "rrfp/job/model_rules.hpp"},
        {}}},
      // Jobs are read and planned with the policies that the caller passes in.
      {"job",
       {"libpipeline/rrfp/job",
        {"core", "io", "simulate", "workload", "hugging_face"},
        {"toml++"}}},
      // A file format, independent of models and of the tensor library.
      {"safetensors", {"libpipeline/rrfp/safetensors", {"core", "io"}, {}}},
      {"checkpoint", {"libpipeline/rrfp/checkpoint", {"core", "io", "safetensors"}, {}}},
      // Writes recorded durations in the simulator's format, but does not run the simulator.
      {"report",
       {"libpipeline/rrfp/report", {"core", "io", "rrfp/simulate/duration_table.hpp"}, {}}},
      // Traces of other frameworks, in the structures of the reports.
      {"foreign", {"libpipeline/rrfp/foreign", {"core", "io", "report"}, {}}},
      {"forecast", {"libpipeline/rrfp/forecast", {"core", "io", "simulate", "report"}, {}}},
      // What a rank computes, without a framework, and with libtorch.
      {"compute",
       {"libpipeline/rrfp/compute",
        {"core", "rrfp/job/options.hpp", "rrfp/job/model_rules.hpp"},
        {}}},
      {"torch",
       {"libpipeline/rrfp/torch",
        {"core", "compute", "safetensors", "rrfp/job/options.hpp", "rrfp/job/model_rules.hpp"},
        torch}},
      {"data",
       {"libpipeline/rrfp/data",
        {"core", "io", "rrfp/torch/batch_source.hpp", "rrfp/compute/estimate.hpp",
         "rrfp/compute/keyed_hash.hpp", "rrfp/compute/microbatch_layout.hpp",
         "rrfp/job/byte_level.hpp", "rrfp/job/options.hpp", "rrfp/simulate/last_steps.hpp",
         "rrfp/workload/packer.hpp"},
        {"ATen", "c10", "png.h", "turbojpeg.h"}}},
      {"policies", {"policies", {"core"}, {}}},
      {"tp_coord", {"libtp_coord/rrfp/tp_coord", {"core"}, {}}},
      // Part of a library that programs load at run time.
      {"nccl", {"libtp_coord/rrfp/nccl", {"core", "tp_coord"}, cuda}},
      // Membership needs no actors and no tensors, so it builds and is tested separately.
      {"membership", {"libactors/rrfp/membership", {"core"}, {"openssl"}}},
      // Counters and their text; serving it is up to the programs.
      {"metrics", {"libactors/rrfp/metrics", {"core"}, {}}},
      // The runtime, which knows no framework.
      {"transport", {"libactors/rrfp/transport", {"core", "tp_coord"}, {}}},
      {"device",
       {"libactors/rrfp/device",
        {"core", "compute", "metrics", "safetensors", "tp_coord", "transport"},
        {}}},
      {"actors",
       {"libactors/rrfp/actors",
        {"core", "io", "simulate", "job", "checkpoint", "safetensors", "compute", "tp_coord",
         "device", "membership", "metrics", "transport"},
        {"caf"}}},
      // The interface to devices, and the implementation for CUDA.
      {"accelerator",
       {"libactors/rrfp/accelerator", {"core", "tp_coord", "compute"}, {"ATen", "c10"}}},
      {"cuda",
       {"libactors/rrfp/cuda",
        {"core", "tp_coord", "accelerator", "nccl", "compute"},
        with({"ATen", "c10"}, cuda)}},
      // libtorch as the framework of the runtime.
      {"torch_actors",
       {"libactors/rrfp/torch_actors",
        {"core", "simulate", "job", "compute", "torch", "data", "tp_coord", "accelerator", "actors",
         "device", "transport"},
        torch}},
      {"trainer",
       {"libactors/rrfp/trainer",
        {"core", "job", "checkpoint", "compute", "torch", "policies", "tp_coord", "actors",
         "membership", "metrics", "torch_actors", "transport"},
        torch}},
      {"python",
       {"python",
        {"core", "io", "simulate", "workload", "job", "compute", "report", "foreign", "forecast",
         "policies", "study", "actors", "membership"},
        {}}},
      // Experiments: above libpipeline and policies, without actors but in one engine.
      {"jitter",
       {"apps/rrfp-jitter", {"core", "io", "simulate", "job", "study", "policies"}, {"CLI"}}},
      // What studies add to jobs; no layer of the runtime knows it.
      {"study", {"apps/rrfp/study", {"core", "simulate", "job", "workload"}, {}}},
      {"apps",
       {"apps",
        {"core",        "io",           "simulate", "workload", "hugging_face", "job",
         "safetensors", "checkpoint",   "report",   "foreign",  "forecast",     "compute",
         "torch",       "data",         "policies", "tp_coord", "actors",       "membership",
         "metrics",     "torch_actors", "trainer",  "study"},
        with(torch, {"caf", "CLI", "toml++", "CivetServer.h"})}},
  };
  return all;
}

/// The only file of its layer that may include this other layer.
const std::map<std::string, std::string, std::less<>> sole_users{
    {"apps/rrfp/study/blocking_sends.cpp", "actors"},
    {"apps/rrfp/study/blocking_sends.hpp", "transport"},
    {"apps/rrfp-jitter/wall_clock_engine.cpp", "actors"}};

/// The folders of the actors' layer, and which other folders each may include. The layer's own
/// files may include all of them; a folder may include these of them.
const std::map<std::string, names, std::less<>> actor_folders{
    {"control", {}},
    {"recovery", {"control"}},
    {"job", {"control"}},
    {"stage", {"control", "recovery"}},
};
const names actor_doors{"checkpoint_tensors.hpp", "checkpointing.hpp", "recovery.hpp",
                        "run_summary.hpp",        "session.hpp",       "trace.hpp"};
constexpr std::string_view actors_folder = "libactors/rrfp/actors/";

/// The parts of the core beside the stage's, by the names of their files: a part includes itself
/// and the stage's files alone.
const std::map<std::string, names, std::less<>> core_parts{
    {"job", {"job_core", "job_core_saves", "job_events"}},
    {"membership",
     {"clock_filter", "follower_core", "leader_choice", "leader_core", "leader_core_joining",
      "membership_common", "membership_events", "membership_messages"}},
    {"transport",
     {"connections", "message_header", "ordered_inbox", "sequence_window", "transport_core",
      "transport_frames"}},
    {"recovery", {"copy_fetches", "copy_set", "recovery_point"}},
    {"checkpoint", {"ring_plan"}},
    {"stragglers", {"stragglers"}},
    {"shares", {"share_planner"}},
};

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
    {"json::parse(", "libpipeline/rrfp/io/", "parse_json()"},
    {"json::sax_parse(", "libpipeline/rrfp/io/", "stream_json()"},
    {"json::accept(", "libpipeline/rrfp/io/", "parse_json()"},
    {"toml::parse(", "libpipeline/rrfp/job/toml_reader.cpp", "read_toml()"},
    {"toml::parse_file(", "libpipeline/rrfp/job/toml_reader.cpp", "read_toml()"},
};

/// Few enough to read: what a program that embeds rrfp needs.
constexpr std::size_t public_headers_max = 40;

/// Folders whose sources must all belong to a layer.
constexpr std::string_view product_folders[] = {"libpipeline", "libtp_coord", "policies",
                                                "libactors",   "apps",        "python"};

/// Layers that use a pure part of the standard library, base and themselves alone.
const names pure_layers{"base", "core"};

/// The part of the standard library that a pure core may use.
const names pure_headers{
    "algorithm", "array",       "bit",     "bitset",      "charconv",      "compare",
    "concepts",  "cstddef",     "cstdint", "deque",       "functional",    "initializer_list",
    "iterator",  "limits",      "map",     "memory",      "new",           "numeric",
    "optional",  "queue",       "ranges",  "set",         "span",          "stdexcept",
    "string",    "string_view", "tuple",   "type_traits", "unordered_map", "unordered_set",
    "utility",   "variant",     "vector"};

/// Files of another layer that are as pure as the core and include no other file of their layer.
constexpr std::string_view order_folder = "libtp_coord/rrfp/tp_coord/";
const names order_files{"fingerprint.hpp", "fingerprint.cpp", "launch_order.hpp",
                        "launch_order.cpp"};

std::string file_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }
std::string stem(const std::string& path) { return fs::path{path}.stem().string(); }

bool is_order(const std::string& file) {
  return file.starts_with(order_folder) && order_files.contains(file_name(file));
}

/// Only a failed check may print and abort.
const names check_headers{"cstdio", "cstdlib"};

bool is_source(const fs::path& file) {
  static const names endings{".hpp", ".cpp", ".h", ".cc", ".cu", ".cuh", ".ipp", ".inc", ".cxx"};
  return endings.contains(file.extension().string());
}

std::string first_part(const std::string& path) { return path.substr(0, path.find('/')); }

/// The layer that owns a file, by its path relative to the root: the innermost folder counts. Empty
/// if none does.
std::string owner_of(const std::string& file) {
  // The interface for embedding programs has no folder of its own.
  if (fs::path{file}.parent_path() == "libactors/rrfp") return "trainer";
  std::string owner;
  std::size_t longest = 0;
  for (const auto& [name, l] : layers()) {
    if (!file.starts_with(l.folder + "/") || l.folder.size() < longest) continue;
    owner = name;
    longest = l.folder.size();
  }
  return owner;
}

/// The part of the core that a file belongs to; empty: the stage's.
std::string core_part_of(const std::string& file) {
  for (const auto& [part, files] : core_parts)
    if (files.contains(stem(file))) return part;
  return {};
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
    auto program = owner_;
    if (owner_ == "apps") program = fs::path{file_}.parent_path().string();
    if (program == "apps") program = file_;
    const auto [first, is_new] = private_types_.emplace(program + " " + match[1].str(), file_);
    if (!is_new && first->second != file_)
      report("type " + match[1].str() + " in the unnamed namespace is also in that of " +
             first->second);
  }

  void check_quoted(const fs::path& path, const std::string& target) {
    const auto home = root_ / layers().at(owner_).folder;
    for (const auto& base : {path.parent_path(), home}) {
      const auto file = (base / target).lexically_normal();
      const auto included = file.lexically_relative(root_).generic_string();
      if (!fs::exists(file)) continue;
      const auto other = owner_of(included);
      if (other == owner_) return check_inside(included);
      if (owner_ == "jitter" && other == "apps") return;
    }
    report("includes \"" + target + "\", which is not a file of its own layer");
  }

  /// Of a file of the same layer.
  void check_inside(const std::string& included) {
    if (is_order(file_) && !is_order(included))
      return report("includes " + included + ": the order is pure");
    if (owner_ == "core") {
      const auto part = core_part_of(included);
      if (!part.empty() && part != core_part_of(file_))
        return report("includes " + included + ": only the " + part + " part of the core may");
    }
    if (owner_ != "actors") return;
    const auto inner = [](const std::string& file) {
      const auto rest = file.substr(actors_folder.size());
      return rest.find('/') == std::string::npos ? std::string{} : first_part(rest);
    };
    const auto from = inner(file_);
    const auto to = inner(included);
    if (from.empty() || from == to) return;
    const auto& may = actor_folders.contains(from) ? actor_folders.at(from) : names{};
    if (to.empty() ? !actor_doors.contains(file_name(included)) : !may.contains(to))
      report("includes " + included + ": folder " + from + " may not");
  }

  void check_angled(const std::string& target) {
    if (first_part(target) == "rrfp") return check_layer(target);
    const auto& own = layers().at(owner_);
    const auto party = watched_name(target);
    if (watched.contains(party) && !own.third_parties.contains(party))
      return report("includes <" + target + ">: layer " + owner_ + " may not include " + party);
    if (!pure_layers.contains(owner_) && !is_order(file_)) return;
    const bool is_check = file_ == "libpipeline/rrfp/base/check.cpp";
    if (!pure_headers.contains(target) && !(is_check && check_headers.contains(target)))
      report("includes <" + target +
             ">: " + (pure_layers.contains(owner_) ? "the core" : "the order") + " is pure");
  }

  void check_layer(const std::string& target) {
    // Headers directly under rrfp/ belong to the trainer, the interface for embedding programs.
    const auto part = first_part(target.substr(5));
    const auto other = part.ends_with(".hpp") ? std::string{"trainer"} : std::string{part};
    const auto& may = layers().at(owner_).may_include;
    if (!layers().contains(other)) return report("includes <" + target + "> of an unknown layer");
    if (other == owner_) {
      const fs::path room{layers().at(other).folder};
      return check_inside((room.parent_path().parent_path() / target).generic_string());
    }
    const auto sole = sole_users.find(file_);
    if (other != "base" && !may.contains(other) && !may.contains(target) &&
        (sole == sole_users.end() || sole->second != other))
      return report("includes <" + target + ">: " + owner_ + " may not depend on " + other);
    if (std::count(target.begin(), target.end(), '/') > 2)
      report("includes <" + target + ">, which is private to " + other);
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
  // As Ubuntu's compiler calls them, which sets _FORTIFY_SOURCE.
  if (symbol.starts_with("__") && symbol.ends_with("_chk"))
    symbol = symbol.substr(2, symbol.size() - 6);
  if (plain.contains(symbol) || symbol == "__libc_single_threaded") return true;  // of shared_ptr
  const bool is_std = starts_with_any(symbol, {"_ZNSt", "_ZNKSt", "_ZSt", "_ZTVSt", "_ZTISt"});
  for (const auto* word : {"chrono", "thread", "mutex", "condition_variable", "random_device",
                           "fstream", "filebuf", "filesystem", "iostream", "future"})
    if (is_std && symbol.find(word) != std::string_view::npos) return false;
  return is_std ||
         starts_with_any(symbol, {"_Zn", "_Zd", "_ZTVN10__cxxabiv", "__cxa_", "__gxx_", "_Unwind_",
                                  "__aarch64_", "__asan_", "__ubsan_", "__tsan_"});
}

}  // namespace

std::vector<std::string> layer_violations(const std::filesystem::path& root) {
  return reader{root}.read();
}

std::vector<std::string> public_header_violations(const std::filesystem::path& root) {
  static const std::regex include{R"(^\s*#\s*include\s*([<"])([^>"]+)[>"])"};
  constexpr std::string_view generated = "rrfp/version.hpp";
  std::ifstream list{root / "cmake/public-headers.txt"};
  names headers;
  std::vector<std::string> found;
  for (std::string line; std::getline(list, line);)
    if (!line.empty() && !headers.insert(line).second) found.push_back(line + ": is listed twice");
  if (headers.size() > public_headers_max)
    found.push_back("expected at most " + std::to_string(public_headers_max) +
                    " public headers, found " + std::to_string(headers.size()));
  for (const auto& header : headers) {
    fs::path file;
    for (const auto* const folder : {"libpipeline", "libactors", "libtp_coord", "policies"})
      if (const auto candidate = root / folder / header; fs::exists(candidate)) file = candidate;
    if (file.empty()) {
      found.push_back(header + ": there is no such header");
      continue;
    }
    std::ifstream in{file};
    for (std::string text; std::getline(in, text);) {
      std::smatch match;
      if (!std::regex_search(text, match, include)) continue;
      const std::string target = match[2];
      if (match[1] == "\"" ||
          (target.starts_with("rrfp/") && target != generated && !headers.contains(target)))
        found.push_back(header + ": includes " + target + ", which is not public");
    }
  }
  return found;
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
