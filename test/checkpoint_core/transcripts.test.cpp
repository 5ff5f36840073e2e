/// Transcripts of the plans for the checkpoint folder: a line for each plan, then its operations.
///
///   folder keep 2 step-00000001 notes      the entries of the folder, for the plans that follow
///   begin 3
///   commit 3 a 10 b 20                     files of the ranks and their bytes
///   abandon 3
///   removal 3
///   set_aside 2026-01-31T12:00:00Z
///   resume                                 the steps to verify, in this order
///   judge 10 77 as 10 77                   bytes and xxh64 as listed, and as found
#include <rrfp/core/ring_plan.hpp>

#include "core_transcripts.hpp"

namespace rrfp::checkpoint {
namespace {

using rrfp::testing::words;

std::string told(const std::string& failure) {
  return failure.empty() ? "" : " or \"" + failure + "\"";
}

std::string line_of(const file_operation::check_size& o) {
  return "check_size " + o.path + " " + std::to_string(o.bytes);
}
std::string line_of(const file_operation::make_folder& o) {
  return "make_folder " + o.path + told(o.failure);
}
std::string line_of(const file_operation::write_manifest& o) { return "write_manifest " + o.path; }
std::string line_of(const file_operation::sync_file& o) { return "sync_file " + o.path; }
std::string line_of(const file_operation::sync_folder& o) {
  return "sync_folder " + (o.path.empty() ? "." : o.path);
}
std::string line_of(const file_operation::rename& o) {
  return "rename " + o.from + " " + o.to + told(o.failure);
}
std::string line_of(const file_operation::remove& o) { return "remove " + o.path; }

std::string text_of(const plan& operations) {
  std::string out;
  for (const auto& o : operations)
    out += "  " + std::visit([](const auto& x) { return line_of(x); }, o) + "\n";
  return out;
}

std::string replayed(const std::string& text) {
  listing names;
  std::uint32_t keep = 1;
  return rrfp::testing::replay(text, [&](words& w) -> std::string {
    const auto kind = w.next();
    if (kind == "folder") {
      names.clear();
      while (w.more()) {
        auto name = w.next();
        if (name == "keep")
          keep = static_cast<std::uint32_t>(w.number());
        else
          names.push_back(std::move(name));
      }
      return {};
    }
    if (kind == "begin") return text_of(plan_begin(names, w.number()));
    if (kind == "commit") {
      const auto step = w.number();
      std::vector<file_entry> files;
      while (w.more()) {
        const auto name = w.next();
        files.push_back({name, w.number(), 0});
      }
      return text_of(plan_commit(names, step, files, keep));
    }
    if (kind == "abandon") return text_of(plan_abandon(w.number()));
    if (kind == "removal") return text_of(plan_removal(names, w.number(), keep));
    if (kind == "set_aside") {
      const auto aside = plan_setting_aside(names, w.next());
      return (aside.folder.empty() ? "" : "  in " + aside.folder + "\n") +
             text_of(aside.operations);
    }
    if (kind == "resume") {
      std::string out;
      for (const auto step : steps_of(names)) out += "  verify " + std::to_string(step) + "\n";
      return out;
    }
    if (kind == "judge") {
      file_entry listed;
      listed.bytes = w.number();
      listed.xxh64 = w.number();
      w.next();
      const auto bytes = w.number();
      std::optional<std::uint64_t> xxh64;
      if (w.more()) xxh64 = w.number();
      constexpr const char* verdicts[] = {"intact", "other_size", "altered"};
      return std::string{"  "} + verdicts[static_cast<int>(judge(listed, bytes, xxh64))] + "\n";
    }
    throw std::invalid_argument("unknown event '" + kind + "'");
  });
}

}  // namespace

TEST_CASE("The plans for the checkpoint folder are those of the transcripts") {
  rrfp::testing::check_transcripts(RRFP_TESTDATA, 4, replayed);
}

TEST_CASE("A line that asks for no plan is answered with what was expected") {
  CHECK(replayed("folder keep 1\nhello\n") ==
        "folder keep 1\nhello\n  error: unknown event 'hello'\n");
}

}  // namespace rrfp::checkpoint
