#include "checks.hpp"

#include <algorithm>
#include <cstdlib>

#include <rrfp/base/codec.hpp>

#include "cluster.hpp"

namespace rrfp::cluster {

namespace {

std::string name_of(std::uint32_t run, const copy_key& what) {
  return "run " + std::to_string(run) + " stage " + std::to_string(what.stage.value()) + " rank " +
         std::to_string(what.rank.value()) + " after step " + std::to_string(what.step);
}

std::string text_of(const recovery_point& p) {
  std::string text = std::to_string(p.record.step) + " " + std::to_string(p.finished.size()) + " " +
                     std::to_string(p.totals.restarts) + ":";
  for (const auto& [what, from] : p.copies) text += " " + std::to_string(from.node.value());
  return text;
}

}  // namespace

const reference_run& checkers::reference(std::uint32_t run) {
  while (references_.size() <= run)
    references_.push_back(
        compute_reference(sim_.w.c, static_cast<std::uint32_t>(references_.size())));
  return references_[run];
}

const rank_state& checkers::state_after(std::uint32_t run, std::uint64_t step, stage_id stage,
                                        rank_id rank) {
  return reference(run).states.at(step)[stage.value() * sim_.w.c.ranks + rank.value()];
}

void checkers::on_applied(std::uint32_t run, std::uint64_t step, const rank_address& at,
                          const rank_state& state) {
  RRFP_EXPECT(state == state_after(run, step, at.stage, at.rank),
              "the weights of " + name_of(run, {step, at.stage, at.rank}) +
                  " are not those of a run without faults");
}

void checkers::on_committed(std::uint32_t run, std::uint64_t step, std::optional<symbol> losses) {
  RRFP_EXPECT(step <= sim_.w.c.steps, "run " + std::to_string(run) + " commits step " +
                                          std::to_string(step) + " of " +
                                          std::to_string(sim_.w.c.steps));
  RRFP_EXPECT(!losses || *losses == reference(run).losses.at(step),
              "run " + std::to_string(run) + " has other losses after step " +
                  std::to_string(step) + " than without faults");
  newest_step_[run] = std::max(newest_step_[run], step);
  ++steps_committed_;
  last_commit_ = sim_.w.now();
  if (first_commit_ == 0) first_commit_ = last_commit_;
  if (went_on_ == 0) went_on_ = last_commit_;
}

void checkers::on_step_over(const process& by, std::uint32_t run, std::uint64_t step) {
  RRFP_EXPECT(step >= 1 && step <= newest_step_[run],
              by.name() + " takes step " + std::to_string(step) + " of run " + std::to_string(run) +
                  " for complete, which no job has committed");
}

void checkers::on_loss(const process& by, const std::string& why) const {
  RRFP_EXPECT(!sim_.w.c.is_harmless(), "no node has failed, but " + by.name() + " says: " + why);
}

void checkers::on_clock_offset(const process& by, nanoseconds found, nanoseconds expected) const {
  // A way that is slow in one direction alone shifts the measurement.
  constexpr fault_kind disturbing[] = {fault_kind::pause,      fault_kind::replace,
                                       fault_kind::cut,        fault_kind::isolate,
                                       fault_kind::slow_link,  fault_kind::crash_host,
                                       fault_kind::power_loss, fault_kind::clock_jump};
  for (const auto kind : disturbing)
    if (sim_.w.c.has(kind)) return;
  // The best of the 64 last round trips may be old, and the two clocks drift apart meanwhile.
  const auto& ppm = sim_.w.c.drift_ppm;
  const auto drift =
      64 * sim_.w.c.heartbeat / 1'000'000 * std::abs(ppm[by.leader().value()] - ppm[by.node()]);
  RRFP_EXPECT(std::abs(found - expected) < 3 * ms + drift,
              by.name() + " takes the clock of node 0 to be " + std::to_string(found / us) +
                  " us ahead of its own, expected " + std::to_string(expected / us) + " us");
}

void checkers::on_held(const process& by, std::uint32_t run, const copy_key& what) {
  holders_[{run, what}].insert(by.id());
}

void checkers::on_keep(const process& by, std::uint32_t run, std::uint64_t step,
                       std::span<const node_id> present) {
  // The others go on without a leader that was stopped, whatever it does with its copies.
  if (!taking_part_.contains(by.id())) return;
  keeps_[run].insert(step);
  const auto& c = sim_.w.c;
  std::set<std::string> hosts;
  for (const auto n : present) hosts.insert(c.hosts[n.value()]);
  for (std::uint32_t st = 0; st < c.shape.stages; ++st)
    for (std::uint32_t r = 0; r < c.ranks; ++r) {
      const copy_key what{step, stage_id{st}, rank_id{r}};
      std::set<std::uint32_t> nodes;
      std::set<std::string> on;
      for (const auto p : holders_[{run, what}]) {
        nodes.insert(sim_.process_at(p).node());
        on.insert(c.hosts[sim_.process_at(p).node()]);
      }
      RRFP_EXPECT(nodes.size() >= std::min<std::size_t>(present.size(), 2),
                  "older copies go, but " + name_of(run, what) + " is not held twice");
      // The other replicas' hosts come first, and these may all be one.
      RRFP_EXPECT(on.size() >= std::min<std::size_t>(hosts.size(), 2),
                  "older copies go, but " + name_of(run, what) + " is held on one host only");
    }
}

void checkers::on_kept(const process& by, std::uint32_t run, std::uint64_t step) {
  kept_[{run, by.id()}] = step;
}

void checkers::on_cleared(const process& by) {
  for (auto& [_, holders] : holders_) holders.erase(by.id());
  std::erase_if(kept_, [&](const auto& kept) { return kept.first.second == by.id(); });
}

void checkers::on_point(const process& by, std::span<const std::uint32_t> processes,
                        std::span<const recovery_report> reports, const recovery_point& point) {
  std::string all;
  for (const auto& report : reports) all += encoded(report);
  const auto [known, is_new] = points_.try_emplace(all, text_of(point));
  RRFP_EXPECT(known->second == text_of(point), by.name() + " goes on from another point");
  if (!is_new) return;
  taking_part_ = {processes.begin(), processes.end()};
  if (!point.lost.empty()) {
    ++recoveries_;
    went_on_ = 0;
  }
  const auto& c = sim_.w.c;
  const auto run = static_cast<std::uint32_t>(point.finished.size());
  for (const auto& report : reports) {
    RRFP_EXPECT(report.finished.size() <= point.finished.size(), "a finished run is forgotten");
    // Two, and one more for each record that has not reached the node.
    const auto& kept = keeps_[static_cast<std::uint32_t>(report.finished.size())];
    const auto under_way = std::distance(kept.upper_bound(report.record.step), kept.end());
    std::map<std::pair<stage_id, rank_id>, std::ptrdiff_t> held;
    for (const auto& h : report.held)
      RRFP_EXPECT((++held[{h.what.stage, h.what.rank}]) <= 2 + under_way,
                  "a node holds too many copies of a rank");
  }
  if (run >= c.runs) return;
  const auto leaves = [&](const recovery_report& report) {
    return report.lost == handed_over_.why;
  };
  if (!handed_over_.why.empty() &&
      std::count_if(reports.begin(), reports.end(), leaves) + 1 == std::ssize(reports))
    RRFP_EXPECT(point.record.step >= handed_over_.step && run == handed_over_.run,
                handed_over_.why + " after step " + std::to_string(handed_over_.step) +
                    ", but the job goes on after step " + std::to_string(point.record.step));
  handed_over_ = {};
  // What the living hold, as far as the checkers have seen.
  std::uint64_t newest = 0;
  for (std::uint32_t n = 0; n < c.nodes; ++n) {
    if (reports[n].finished.size() == run) newest = std::max(newest, kept_[{run, processes[n]}]);
  }
  if (newest <= point.record.step) return;
  for (std::uint32_t st = 0; st < c.shape.stages; ++st)
    for (std::uint32_t r = 0; r < c.ranks; ++r) {
      const auto& by_processes = holders_[{run, {newest, stage_id{st}, rank_id{r}}}];
      bool is_held = false;
      for (std::uint32_t n = 0; n < c.nodes; ++n) is_held |= by_processes.contains(processes[n]);
      if (!is_held) return;
    }
  throw violation("the job goes on after step " + std::to_string(point.record.step) +
                  ", but all copies of step " + std::to_string(newest) + " are held");
}

void checkers::on_outputs(const std::vector<run_record>& runs) {
  for (std::uint32_t run = 0; run < runs.size(); ++run) {
    const auto found = state_of(runs[run].summary).value();
    const auto& details = runs[run].details;
    RRFP_EXPECT(details.empty() || details.size() == sim_.w.c.shape.stages * sizeof(symbol),
                "the details of a run are not those of its stages");
    RRFP_EXPECT(!details.empty() || !sim_.w.c.faults.empty(), "the details of a run are missing");
    const auto& r = reference(run);
    RRFP_EXPECT(found.size() == 4, "a summary does not decode");
    RRFP_EXPECT(found[0] == r.weights,
                "run " + std::to_string(run) + " ends with other weights than without faults");
    const bool is_whole = found[3] == 0;
    RRFP_EXPECT(!is_whole || found[1] == r.losses.back(),
                "run " + std::to_string(run) + " ends with other losses than without faults");
    RRFP_EXPECT(!is_whole || found[2] == r.evaluations,
                "run " + std::to_string(run) + " ends with other evaluations than without faults");
  }
  has_outputs_ = true;
}

void checkers::on_outputs_known() {
  RRFP_EXPECT(has_outputs_, "a node ends before node 0 has written the outputs");
  outputs_known_ = true;
}

}  // namespace rrfp::cluster
