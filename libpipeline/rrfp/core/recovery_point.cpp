#include <rrfp/core/recovery_point.hpp>

#include <algorithm>
#include <iterator>
#include <utility>

namespace rrfp {

void recovery_report::finish_run(run_record summary) {
  finished.push_back(std::move(summary));
  steps = 0;
  began_after.reset();
}

namespace {

/// The newest step of which every rank's copy is held by a node whose report is among `reports`.
void choose_copies(std::span<const recovery_report> reports, std::uint32_t ranks,
                   recovery_point& point) {
  std::map<copy_key, recovery_point::source> held;
  std::map<std::uint64_t, job_record> records;
  for (std::size_t n = 0; n < reports.size(); ++n) {
    // Copies of a run that is over for other nodes are of no use.
    if (reports[n].finished.size() < point.finished.size()) continue;
    if (const auto& mine = reports[n].record; !mine.bytes.empty()) {
      auto& known = records.try_emplace(mine.step, mine).first->second;
      if (known.details.empty()) known.details = mine.details;
    }
    for (const auto& h : reports[n].held)
      held.try_emplace(
          h.what, recovery_point::source{node_id{static_cast<std::uint32_t>(n)}, h.bytes, h.xxh64});
  }
  // As long as no node has the record of a step, none has dropped the copies before it.
  for (auto r = records.rbegin(); r != records.rend(); ++r) {
    const auto of_step = [step = r->first](const auto& h) { return h.first.step == step; };
    if (std::count_if(held.begin(), held.end(), of_step) != ranks) continue;
    std::copy_if(held.begin(), held.end(), std::inserter(point.copies, point.copies.end()),
                 of_step);
    point.record = std::move(r->second);
    return;
  }
}

}  // namespace

recovery_point choose_recovery_point(std::span<const recovery_report> reports,
                                     std::span<const std::uint32_t> ranks) {
  recovery_point point;
  for (const auto& report : reports) {
    if (report.totals.restarts >= point.totals.restarts) point.totals = report.totals;
    if (report.finished.size() > point.finished.size()) {
      point.finished.resize(report.finished.size());
      point.steps = 0;
      point.began_after.reset();
    }
    for (std::size_t run = 0; run < report.finished.size(); ++run) {
      auto& known = point.finished[run];
      if (known.summary.empty()) known.summary = report.finished[run].summary;
      if (known.details.empty()) known.details = report.finished[run].details;
    }
    if (report.finished.size() == point.finished.size()) {
      point.steps = std::max(point.steps, report.steps);
      if (report.began_after) point.began_after = report.began_after;
    }
    if (point.lost.empty()) point.lost = report.lost;
    point.held_s = std::max(point.held_s, report.held_s);
  }
  const auto run = point.finished.size();
  if (run < ranks.size()) choose_copies(reports, ranks[run], point);
  return point;
}

std::vector<recovery_point> parts_of(
    const recovery_point& point, std::uint32_t nodes, node_id leader,
    const std::function<std::vector<node_id>(stage_id, rank_id)>& nodes_of) {
  auto brief = point;
  brief.copies.clear();
  auto briefest = brief;
  briefest.record.details.clear();
  for (auto& run : briefest.finished) run.details.clear();
  std::vector<recovery_point> parts;
  for (std::uint32_t n = 0; n < nodes; ++n)
    parts.push_back(keeps_details(node_id{n}) ? brief : briefest);
  for (const auto& copy : point.copies)
    for (const auto n : nodes_of(copy.first.stage, copy.first.rank))
      parts[n.value()].copies.insert(copy);
  parts[leader.value()] = point;
  return parts;
}

}  // namespace rrfp
