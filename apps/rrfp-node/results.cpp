#include "results.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <rrfp/base/units.hpp>

#include "../common/table_text.hpp"
#include "endings.hpp"

namespace rrfp::apps {

namespace {

using json = nlohmann::ordered_json;

/// JSON must be UTF-8; file names and system messages may not be.
std::string text_of(const json& line) {
  return line.dump(-1, ' ', false, json::error_handler_t::replace);
}

/// The bytes before a part of a line that a killed process has left at the end.
std::uint64_t whole_lines_in(const std::string& path) {
  std::ifstream in{path, std::ios::binary | std::ios::ate};
  std::int64_t end = in.tellg();
  while (end > 0 && in.seekg(end - 1).get() != '\n') --end;
  return static_cast<std::uint64_t>(end);
}

std::string hex(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

}  // namespace

result<std::unique_ptr<json_log>> json_log::open(const std::string& path, bool appends) {
  if (path.empty()) return std::unique_ptr<json_log>{new json_log{path, nullptr}};
  // Each line goes to the end, also that of a process that was stopped and replaced meanwhile.
  std::FILE* const file = std::fopen(path.c_str(), "a");
  if (file == nullptr)
    return error{fmt::format("--json {}: cannot create: {}", path, std::strerror(errno))};
  // Pipes and terminals cannot be cut.
  std::error_code ignored;
  std::filesystem::resize_file(path, appends ? whole_lines_in(path) : 0, ignored);
  return std::unique_ptr<json_log>{new json_log{path, file}};
}

json_log::~json_log() {
  if (file_ != nullptr) std::fclose(file_);
}

void json_log::write(const std::string& line) {
  if (file_ == nullptr || failure_ != 0) return;
  if (std::fputs((line + "\n").c_str(), file_) < 0 || std::fflush(file_) != 0) failure_ = errno;
}

void json_log::step(const job::job& run, const actors::step_summary& s) {
  if (file_ == nullptr) return;
  json line{{"event", "step"},
            {"run", run.name},
            {"step", s.step},
            {"loss", s.loss},
            {"gradient_norm", s.gradient_norm},
            {"lr", s.lr},
            {"microbatches", s.losses.size()},
            {"tokens", s.tokens},
            {"step_ms", s.step_ms},
            {"tokens_per_s", static_cast<double>(s.tokens) / s.step_ms * 1e3},
            {"bubble_fraction", s.bubble_fraction},
            {"weight_shares", s.weight_shares}};
  if (s.is_skipped) line["is_skipped"] = true;
  if (!s.shares.empty()) line["shares"] = s.shares;
  write(text_of(line));
}

void json_log::evaluation(const job::job& run, const actors::evaluation_summary& e) {
  write(text_of({{"event", "evaluation"},
                 {"run", run.name},
                 {"step", e.step},
                 {"loss", e.loss},
                 {"tokens", e.tokens},
                 {"seconds", e.seconds}}));
}

void json_log::checkpoint(const job::job& run, const actors::checkpoint_report& r) {
  json line{{"event", "checkpoint"}, {"run", run.name}, {"step", r.step}};
  if (!r.failure.empty()) {
    line["failure"] = r.failure;
  } else {
    line["files"] = r.files;
    line["bytes"] = r.bytes;
    line["copy_ms"] = r.copy_ms;
    line["background_ms"] = r.background_ms;
  }
  write(text_of(line));
}

void json_log::resume(const job::job& run, const checkpoint::found_checkpoint& from) {
  write(text_of({{"event", "resume"},
                 {"run", run.name},
                 {"step", from.contents.step},
                 {"checkpoint", from.folder}}));
}

void json_log::recovery(const job::job& run, const actors::recovery_record& r,
                        const recovery_totals& totals, const std::vector<node_id>& absent) {
  auto without = json::array();
  for (const auto n : absent) without.push_back(n.value());
  write(text_of({{"event", "recovery"},
                 {"run", run.name},
                 {"step", r.step},
                 {"lost", r.lost},
                 {"from_copies", r.from_copies},
                 {"repeated_steps", r.repeated_steps},
                 {"held_s", r.held_s},
                 {"restarts", totals.restarts},
                 {"absent", std::move(without)}}));
}

std::string line_of(const actors::straggler_report& r) {
  const auto numbers = [](const auto& ids, const char* one, const char* many) {
    std::string text = ids.size() == 1 ? one : many;
    for (const auto id : ids)
      text += fmt::format("{}{}", id == ids.front() ? " " : ", ", id.value());
    return text;
  };
  const auto& s = r.what;
  auto text =
      s.replica == replica_id{0} ? std::string{} : fmt::format("replica {} ", s.replica.value());
  text += fmt::format("stage {} {}", s.stage.value(), numbers(s.ranks, "rank", "ranks"));
  if (!r.nodes.empty()) text += fmt::format(" ({})", numbers(r.nodes, "node", "nodes"));
  return text + fmt::format(
                    " {} late by {:.0f} % of each of the last {} steps; {:.0f} % of all waiting is "
                    "for {}",
                    s.ranks.size() == 1 ? "is a straggler," : "are stragglers,", 100 * s.late,
                    straggler_watch::window, 100 * s.waiting, s.ranks.size() == 1 ? "it" : "them");
}

std::string line_of(const actors::checkpoint_report& r) {
  if (!r.failure.empty())
    return fmt::format("checkpoint: step {} not saved: {}", r.step, r.failure);
  return fmt::format(
      "checkpoint: step {} saved, {} files, {:.1f} MiB, {:.1f} ms copy, {:.0f} ms in the "
      "background",
      r.step, r.files, static_cast<double>(r.bytes) / mebibyte, r.copy_ms, r.background_ms);
}

std::string line_of(const checkpoint::found_checkpoint& from) {
  return fmt::format("resumes after step {} from {}, written at {}", from.contents.step,
                     from.folder, from.contents.written_at);
}

void json_log::straggler(const job::job& run, const actors::straggler_report& r) {
  json ranks = json::array(), nodes = json::array();
  for (const auto rank : r.what.ranks) ranks.push_back(rank.value());
  for (const auto node : r.nodes) nodes.push_back(node.value());
  write(text_of({{"event", "straggler"},
                 {"run", run.name},
                 {"step", r.step},
                 {"replica", r.what.replica.value()},
                 {"stage", r.what.stage.value()},
                 {"ranks", ranks},
                 {"nodes", nodes},
                 {"late", r.what.late},
                 {"waiting", r.what.waiting}}));
}

void json_log::summary(const job::job& run, const actors::run_result& r) {
  const auto& s = r.summary;
  json stages = json::array();
  for (const auto& stage : s.stages) {
    stages.push_back({{"peak_slots", stage.memory.slots_peak},
                      {"peak_activations", stage.memory.activations_peak},
                      {"peak_bytes", stage.peak_bytes},
                      {"busy_ms", stage.busy_ms},
                      {"blocked_ms", stage.blocked_ms},
                      {"ranks_ms", stage.ranks_ms},
                      {"launch_gap_ms", stage.launch_gap_ms}});
    if (stage.device_memory.reserved == 0) continue;
    stages.back()["device_peak_bytes"] = stage.device_memory.allocated_peak;
    stages.back()["device_reserved_bytes"] = stage.device_memory.reserved;
  }
  json line{{"event", "summary"},
            {"run", run.name},
            {"ending", name(r.how)},
            {"mode", rrfp::name(run.dispatch.mode)},
            {"policy", run.dispatch.policy},
            {"steps", s.steps},
            {"loss_first", s.loss_first},
            {"loss_last", s.loss_last},
            {"losses_xxh64", hex(s.losses_xxh64)}};
  if (s.eval_loss) {
    line["eval_loss"] = *s.eval_loss;
    line["eval_losses_xxh64"] = hex(s.eval_losses_xxh64);
  }
  if (r.how == actors::ending::done) line["weights_xxh64"] = hex(s.weights_xxh64);
  line["step_ms_p50"] = s.step_ms_p50;
  line["bubble_fraction"] = s.bubble_fraction;
  line["peak_slots"] = s.peak_slots();
  line["peak_bytes"] = s.peak_bytes();
  line["tokens"] = s.tokens;
  line["seconds"] = s.seconds;
  if (!run.checkpoint.dir.empty()) {
    line["first_step"] = s.first_step;
    line["checkpoints"] = s.checkpoints;
    line["last_checkpoint_failed"] = s.last_checkpoint_failed;
  }
  line["stages"] = stages;
  if (!r.message.empty()) line["message"] = r.message;
  write(text_of(line));
}

status json_log::close() {
  if (file_ == nullptr) return success();
  if (std::fclose(std::exchange(file_, nullptr)) != 0 && failure_ == 0) failure_ = errno;
  if (failure_ == 0) return success();
  return error{fmt::format("--json {}: cannot write: {}", path_, std::strerror(failure_))};
}

bool must_agree(const job::job& a, const job::job& b) {
  auto same = b;
  same.name = a.name;
  same.source = a.source;
  same.dispatch = a.dispatch;
  same.dispatch.admit = b.dispatch.admit;
  same.pipeline = a.pipeline;
  // With another number of microbatches, ranks or replicas, sums round differently.
  same.pipeline.microbatches = b.pipeline.microbatches;
  same.pipeline.tp = b.pipeline.tp;
  same.pipeline.replicas = b.pipeline.replicas;
  same.jitter = a.jitter;
  same.delays = a.delays;
  same.cost = a.cost;
  same.extra = a.extra;
  same.run = a.run;
  same.checkpoint = a.checkpoint;
  same.compare = a.compare;
  if (a.device.kind == job::device_kind::cuda && !a.cuda.deterministic) return false;
  // An emulated device computes nothing that could be compared.
  return same == a && a.device.kind != job::device_kind::emulated;
}

std::string table_of(const std::vector<finished_run>& runs) {
  const auto any = [&](auto has) { return std::any_of(runs.begin(), runs.end(), has); };
  const bool on_devices = any([](const auto& r) { return r.summary.device_memory().reserved > 0; });
  const bool evaluated = any([](const auto& r) { return r.summary.eval_loss.has_value(); });
  table_rows rows;
  const auto add = [&](const std::string& run, std::vector<std::string> cells,
                       const std::string& device, const std::string& loss,
                       const std::string& held_out, const std::string& weights) {
    if (on_devices) cells.push_back(device);
    cells.push_back(loss);
    if (evaluated) cells.push_back(held_out);
    cells.push_back(weights);
    cells.insert(cells.begin(), run);
    rows.push_back(std::move(cells));
  };
  add("run", {"step ms", "speed-up", "bubble", "slots", "peak MiB"}, "GPU MiB", "loss", "held-out",
      "weights");
  for (const auto& r : runs) {
    const auto& s = r.summary;
    const bool computes = r.run.device.kind != job::device_kind::emulated;
    if (s.steps == 0) {
      add(r.run.name, {"-", "-", "-", "-", "-"}, "-", "-", "-", hex(s.weights_xxh64));
      continue;
    }
    // A process that has replaced another one may have measured none of the steps.
    const bool measured = s.step_ms_p50 > 0;
    const auto first = runs[0].summary.step_ms_p50;
    add(r.run.name,
        {measured ? fmt::format("{:.1f}", s.step_ms_p50) : "-",
         measured && first > 0 ? fmt::format("{:.2f}x", first / s.step_ms_p50) : "-",
         measured ? fmt::format("{:.1f} %", s.bubble_fraction * 100) : "-",
         fmt::format("{}", s.peak_slots()), fmt::format("{:.1f}", mebibytes(s.peak_bytes()))},
        fmt::format("{:.1f}", mebibytes(s.device_memory().allocated_peak)),
        computes ? fmt::format("{:.4f}", s.loss_last) : "-",
        s.eval_loss ? fmt::format("{:.4f}", *s.eval_loss) : "-",
        computes ? hex(s.weights_xxh64) : "-");
  }
  return table_text(rows, last_column::left);
}

}  // namespace rrfp::apps
