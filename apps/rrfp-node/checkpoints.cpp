#include "checkpoints.hpp"

#include <cstdio>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace rrfp::apps {

namespace {

using nlohmann::json;

constexpr double mebibyte = 1 << 20;
/// How long nodes may wait for the one that looks through all bytes of a checkpoint.
constexpr std::chrono::minutes choosing_time{30};

void tell(const std::string& line) { fmt::print(stderr, "rrfp-node: {}\n", line); }

/// What the leading node does: it alone looks through the checkpoints and holds their folder.
result<actors::resume_choice> choose_and_hold(const job::job& j, actors::checkpoint_setup& setup) {
  auto ring = checkpoint::ring::open(setup.dir, j.checkpoint.keep);
  if (!ring) return job::blame(j, "checkpoint.dir", ring.message());
  setup.ring = std::move(*ring);
  if (j.checkpoint.resume == job::resume_kind::never) {
    const auto aside = setup.ring->set_aside();
    if (!aside) return job::blame(j, "checkpoint.dir", aside.message());
    if (*aside) tell(fmt::format("{}: earlier checkpoints are set aside in {}", j.name, **aside));
  }
  auto choice = actors::choose_resume(j, setup, checkpoint::scrutiny::checksums);
  if (!choice) return choice;
  for (const auto& line : choice->passed_over) tell("passed over: " + line);
  for (const auto& line : choice->changed) tell(line);
  return choice;
}

/// All nodes take what the leading one has chosen: two may see a shared folder differently.
result<std::optional<checkpoint::found>> agree(const result<actors::resume_choice>& mine,
                                               const node_seat& seat) {
  json said;
  if (seat.leads()) {
    if (!mine)
      said["refused"] = mine.message();
    else
      said["folder"] = mine->from ? mine->from->folder : std::string{};
  }
  const auto all = seat.members->all_gather(said.dump(), choosing_time);
  if (!all) return all.failure();
  const auto chosen = json::parse((*all)[0]);
  if (chosen.contains("refused"))
    return error{seat.launched && !seat.leads() ? "" : chosen.at("refused").get<std::string>()};
  if (seat.leads()) return mine->from;
  const auto folder = chosen.at("folder").get<std::string>();
  if (folder.empty()) return std::optional<checkpoint::found>{};
  auto found = checkpoint::verify(folder, checkpoint::scrutiny::sizes);
  if (!found) return found.failure();
  return std::optional{std::move(*found)};
}

}  // namespace

status prepare_checkpoints(const job::job& j, const node_seat& seat, actors::session_setup& setup) {
  if (!setup.checkpoint) return success();
  result<actors::resume_choice> mine = actors::resume_choice{};
  if (seat.leads()) mine = choose_and_hold(j, *setup.checkpoint);
  if (seat.members == nullptr) {
    if (!mine) return mine.failure();
    setup.resume = std::move(mine->from);
    return success();
  }
  auto agreed = agree(mine, seat);
  if (!agreed) return agreed.failure();
  setup.resume = std::move(*agreed);
  return success();
}

std::string line_of(const actors::checkpoint_report& r) {
  if (!r.failure.empty())
    return fmt::format("checkpoint: step {} not saved: {}", r.step, r.failure);
  return fmt::format(
      "checkpoint: step {} saved, {} files, {:.1f} MiB, {:.1f} ms copy, {:.0f} ms in the "
      "background",
      r.step, r.files, static_cast<double>(r.bytes) / mebibyte, r.copy_ms, r.background_ms);
}

std::string line_of(const checkpoint::found& from) {
  return fmt::format("goes on after step {} from {}, of {}", from.what.step, from.folder,
                     from.what.written_at);
}

result<std::string> describe_checkpoints(const job::job& j, const data::source* data) {
  const auto setup = actors::checkpoint_setup_of(j, data);
  if (!setup) return std::string{};
  const auto choice = actors::choose_resume(j, *setup, checkpoint::scrutiny::checksums);
  if (!choice) return choice.failure();
  const auto when = setup->every == 0 ? std::string{"at the end"}
                                      : fmt::format("every {} steps and at the end", setup->every);
  auto text =
      fmt::format("checkpoints {} in {}, the newest {} are kept; the run {}\n", when, setup->dir,
                  j.checkpoint.keep, choice->from ? line_of(*choice->from) : "starts");
  for (const auto& line : choice->passed_over) text += "  passed over: " + line + "\n";
  for (const auto& line : choice->changed) text += "  " + line + "\n";
  return text;
}

}  // namespace rrfp::apps
