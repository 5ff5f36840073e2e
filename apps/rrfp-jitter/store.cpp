#include "store.hpp"

#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include <fmt/format.h>

#include <rrfp/io/atomic_file.hpp>
#include <rrfp/io/parse_json.hpp>
#include <rrfp/io/text_file.hpp>

#include "tables.hpp"

namespace rrfp::experiment {

namespace {

using json = nlohmann::ordered_json;
namespace fs = std::filesystem;

error failed(const std::string& action, const std::string& path) {
  return error{path + ": cannot " + action + ": " + std::strerror(errno)};
}

/// Calls `f` with the name and each member of an outcome.
void for_each(auto&& o, auto f) {
  f("step_ms", o.step_ms);
  f("idle", o.idle);
  f("blocked", o.blocked);
  f("ranks", o.ranks);
  f("gathering", o.gathering);
  f("deferred", o.deferred);
  f("gathers", o.agreement.gathers);
  f("deferrals", o.agreement.deferrals);
  f("launch_gap_ms", o.launch_gap_ms);
  f("slots_peak", o.slots_peak);
  f("activation_bytes_peak", o.activation_bytes_peak);
  f("held_bytes_peak", o.held_bytes_peak);
}

json json_of(const outcome& o) {
  json j;
  for_each(o, [&](const char* name, const auto& x) { j[name] = x; });
  return j;
}

json json_of(const cell& c, const outcome& o) {
  return {{"workload", c.workload},    {"weather", c.weather},     {"run", c.run},
          {"seed", c.job.jitter.seed}, {"engine", name(c.engine)}, {"mean_ms", o.mean_ms()},
          {"outcome", json_of(o)},     {"cell", description_of(c)}};
}

outcome outcome_of(const json& j) {
  outcome o;
  for_each(o, [&](const char* name, auto& x) { j.at(name).get_to(x); });
  return o;
}

std::string line_of(const std::string& description, const outcome& o) {
  json line{{"cell", description}, {"outcome", json_of(o)}};
  line["sum"] = checksum(line.dump());
  return line.dump() + "\n";
}

/// Parses a line that line_of() wrote; nothing if it is incomplete.
std::optional<std::pair<std::string, outcome>> parse_line(const std::string& text) {
  auto parsed = parse_json<json>(text);
  if (std::holds_alternative<json_fault>(parsed)) return std::nullopt;
  auto& line = std::get<json>(parsed);
  try {
    const auto sum = line.at("sum").get<std::string>();
    line.erase("sum");
    if (sum != checksum(line.dump())) return std::nullopt;
    return std::pair{line.at("cell").get<std::string>(), outcome_of(line.at("outcome"))};
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

/// A text as a field of CSV.
std::string quoted(const std::string& s) {
  std::string q = "\"";
  for (const char ch : s) q += ch == '"' ? std::string{"\"\""} : std::string(1, ch);
  return q + '"';
}

/// Opens the file for this process alone.
result<store::file> locked(const std::string& path) {
  for (;;) {
    store::file opened{std::fopen(path.c_str(), "ab"), std::fclose};
    if (!opened) return failed("be written", path);
    if (::flock(::fileno(opened.get()), LOCK_EX | LOCK_NB) != 0)
      return error{path + ": another process writes this file; use another folder"};
    // Meanwhile a process that repaired the file may have replaced it.
    struct stat of_file, of_path;
    if (::fstat(::fileno(opened.get()), &of_file) == 0 && ::stat(path.c_str(), &of_path) == 0 &&
        of_file.st_ino == of_path.st_ino)
      return opened;
  }
}

}  // namespace

result<store> store::open(const std::string& folder) {
  std::error_code refused;
  fs::create_directories(folder, refused);
  if (refused) return error{folder + ": cannot create the folder: " + refused.message()};
  store s{(fs::path{folder} / "cells.jsonl").string()};
  auto opened = locked(s.path_);
  if (!opened) return opened.failure();
  s.file_ = *std::move(opened);
  const auto text = io::read_text_file(s.path_, store_bytes_max, "cells of an experiment");
  if (!text) return text.failure();

  std::string kept;
  std::size_t number = 0;
  constexpr std::string_view begins = "{\"cell\":";  // the line may be incomplete
  if (!begins.starts_with(text->substr(0, begins.size())))
    return error{s.path_ + ":1: expected the cells of an experiment, got another file"};
  for (std::size_t begin = 0; begin < text->size();) {
    const auto end = std::min(text->find('\n', begin), text->size());
    const auto line = text->substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (auto read = parse_line(line)) {
      s.done_[read->first] = read->second;
      kept += line + "\n";
    } else {
      s.notes_.push_back(
          fmt::format("{}:{}: incomplete line, its cell runs again", s.path_, number));
    }
  }
  if (kept == *text) return s;
  if (auto written = io::write_atomically(s.path_, kept); !written) return written.failure();
  opened = locked(s.path_);
  if (!opened) return opened.failure();
  s.file_ = *std::move(opened);
  return s;
}

const outcome* store::find(const std::string& description) const {
  const auto at = done_.find(description);
  return at == done_.end() ? nullptr : &at->second;
}

status store::add(const std::string& description, const outcome& o) {
  const auto line = line_of(description, o);
  if (std::fwrite(line.data(), 1, line.size(), file_.get()) != line.size() ||
      std::fflush(file_.get()) != 0 || ::fsync(::fileno(file_.get())) != 0) {
    return error{failed("be written", path_).message, error_kind::failed};
  }
  done_[description] = o;
  return success();
}

std::string cell_json(const cell& c, const outcome& o) { return json_of(c, o).dump(); }

std::string results_json(const experiment& e, const std::vector<engine_outcomes>& all) {
  auto cells = json::array();
  for (const auto& of : all)
    for (std::size_t i = 0; i < of.outcomes.size(); ++i)
      cells.push_back(json_of(cell_at(e, i, of.engine), of.outcomes[i]));
  return json{{"experiment", e.name}, {"baseline", e.baseline}, {"cells", std::move(cells)}}
             .dump() +
         "\n";
}

std::string results_csv(const experiment& e, const std::vector<engine_outcomes>& all) {
  std::string text =
      "cell,engine,workload,weather,run,mode,policy,hint,seed,mean_ms,idle,blocked,ranks,gathering,"
      "deferred,gathers,deferrals,launch_gap_ms,slots_peak,activation_bytes_peak,held_bytes_peak\n";
  for (const auto& of : all)
    for (std::size_t i = 0; i < of.outcomes.size(); ++i) {
      const auto c = cell_at(e, i, of.engine);
      const auto& o = of.outcomes[i];
      text += fmt::format("{},{},{},{},{},{},{},{},{},{:.6f},{:.6f},{:.6f},", i, name(of.engine),
                          quoted(c.workload), quoted(c.weather), quoted(c.run), mode_of(c.job),
                          quoted(c.job.dispatch.policy), name(c.hint), c.job.jitter.seed,
                          o.mean_ms(), o.idle, o.blocked);
      text += fmt::format("{:.6f},{:.6f},{:.6f},{},{},{:.6f},{},{},{}\n", o.ranks, o.gathering,
                          o.deferred, o.agreement.gathers, o.agreement.deferrals, o.launch_gap_ms,
                          o.slots_peak, o.activation_bytes_peak, o.held_bytes_peak);
    }
  return text;
}

std::string summary_csv(const experiment& e, const std::vector<engine_outcomes>& all) {
  std::string text =
      "engine,workload,weather,run,mode,policy,hint,seeds,step_ms,step_ms_deviation,speed_up,"
      "speed_up_deviation,idle,blocked,ranks,gathering,deferred,launch_gap_ms,slots_peak,"
      "activation_bytes_peak,held_bytes_peak\n";
  const auto deviation = [&](double value) {
    return e.seeds.size() < 2 ? std::string{} : fmt::format("{:.6f}", value);
  };
  for (const auto& of : all)
    for (std::size_t i = 0; i < of.outcomes.size(); i += e.seeds.size()) {
      const auto c = cell_at(e, i, of.engine);
      const auto number = i / e.seeds.size();
      const auto run = number % e.runs.size();
      const auto weather = number / e.runs.size() % e.weathers.size();
      const auto workload = number / e.runs.size() / e.weathers.size();
      const auto s = summary_of(e, of.outcomes, workload, weather, run);
      text +=
          fmt::format("{},{},{},{},{},{},{},{},{:.6f},{},{:.6f},{},", name(of.engine),
                      quoted(c.workload), quoted(c.weather), quoted(c.run), mode_of(c.job),
                      quoted(c.job.dispatch.policy), name(c.hint), e.seeds.size(), s.step_ms,
                      deviation(s.step_ms_deviation), s.speed_up, deviation(s.speed_up_deviation));
      text += fmt::format("{:.6f},{:.6f},{:.6f},{:.6f},{:.6f},{:.6f},{},{},{}\n", s.idle, s.blocked,
                          s.ranks, s.gathering, s.deferred, s.launch_gap_ms, s.slots_peak,
                          s.activation_bytes_peak, s.held_bytes_peak);
    }
  return text;
}

}  // namespace rrfp::experiment
