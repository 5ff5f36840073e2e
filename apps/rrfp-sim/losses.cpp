#include "losses.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <rrfp/core/rank_hosts.hpp>
#include <rrfp/io/svg.hpp>
#include <rrfp/study/options.hpp>

#include "rerouted_steps.hpp"

namespace rrfp::apps {

namespace {

using simulate::recovery_way;

constexpr double hour = 3600;

std::uint32_t nodes_of(const job::job& j, const loss_options& wanted) {
  const auto& given = j.pipeline.nodes;
  if (wanted.nodes != 0) return wanted.nodes;
  return given.empty() ? j.pipeline.replicas * j.pipeline.stages * j.pipeline.tp
                       : std::ranges::max(given) + 1;
}

/// The nodes that hold the copies of each rank; each node is a host of its own.
std::vector<std::vector<node_id>> copies_of(const job::job& j, const job::node_places& places) {
  std::vector<std::string> hosts;
  for (std::uint32_t n = 0; n < places.nodes(); ++n) hosts.push_back(std::to_string(n));
  std::vector<std::vector<node_id>> sets;
  for (std::uint32_t s = 0; s < j.pipeline.stages; ++s)
    for (std::uint32_t r = 0; r < j.pipeline.tp; ++r) {
      const auto node_of = [&](replica_id d) { return places.node_of(d, stage_id{s}, rank_id{r}); };
      sets.push_back({node_of(replica_id{0})});
      if (const auto buddy = buddy_of(j.pipeline.replicas, node_of, {}, hosts))
        sets.back().push_back(*buddy);
    }
  return sets;
}

/// For each rank of a replica, the nodes that host it in one of the replicas.
std::vector<std::vector<node_id>> stand_ins_of(const rank_hosts& hosts) {
  std::vector<std::vector<node_id>> sets(hosts.ranks_of_replica);
  for (std::size_t i = 0; i < hosts.nodes.size(); ++i)
    sets[i % hosts.ranks_of_replica].push_back(hosts.nodes[i]);
  return sets;
}

std::string why_not(const job::job& j, const simulate::loss_model& m, recovery_way way) {
  if (way == recovery_way::replace && m.nodes == 1) return "needs at least 2 nodes";
  if (way != recovery_way::reroute) return "";
  if (j.pipeline.replicas == 1) return "needs pipeline.replicas of at least 2";
  if (study::blocks_messages(j)) return "needs dispatch.messages = \"asynchronous\"";
  return "";
}

/// The best way at each MTBF.
std::vector<loss_row> best_of(const loss_report& r) {
  std::vector<loss_row> best;
  for (const auto& row : r.rows) {
    if (!row.why_not.empty()) continue;
    if (best.empty() || best.back().mtbf_hours != row.mtbf_hours)
      best.push_back(row);
    else if (row.costs.useful > best.back().costs.useful)
      best.back() = row;
  }
  return best;
}

// In pixels.
constexpr double width = 740, left = 40, right = 600, top = svg::heading_height + 8, bottom = 340,
                 height = 390;
constexpr std::array colours{"#3f7fc8", "#4fa58a", "#8a93a3", "#e39234"};  ///< by way

constexpr std::string_view small = " font-size=\"10\" fill=\"#55606f\" text-anchor=\"middle\"";

/// Hours on a logarithmic axis; percent on a linear one.
struct axes {
  double least;
  double most;
  double floor;

  double x(double hours) const {
    return least == most ? (left + right) / 2
                         : left + std::log(hours / least) / std::log(most / least) * (right - left);
  }
  double y(double percent) const {
    return bottom - (percent - floor) / (100 - floor) * (bottom - top);
  }
};

axes axes_of(const std::vector<loss_row>& rows) {
  double least = 100;
  for (const auto& row : rows)
    if (row.why_not.empty()) least = std::min(least, row.costs.useful * 100);
  return {rows.front().mtbf_hours, rows.back().mtbf_hours,
          std::min(std::floor(least / 10) * 10, 90.0)};
}

}  // namespace

result<loss_report> losses_of(job::job j, const loss_options& wanted, std::uint64_t steps) {
  j.recovery.spares = 0;
  j.recovery.without_replacement = job::loss_kind::reroute;
  loss_report made{j.name, {}, {}, {}};
  auto& m = made.model;
  m.nodes = nodes_of(j, wanted);
  const auto places = job::node_places::make(j, m.nodes);
  if (!places) return places.failure();
  rerouted_steps times{j, *places, steps};
  const auto step = times.seconds_without({});
  if (!step) return step.failure();
  m.step = *step;
  if (m.step <= 0) return error{j.source + ": the steps take no time: [cost] is 0"};
  m.copy_every = j.recovery.every;
  m.checkpoint_every =
      static_cast<double>(j.checkpoint.every != 0 ? j.checkpoint.every : j.train.steps);
  m.checkpoint = wanted.checkpoint;
  m.notice = j.transport.node_timeout_ms * 1e-3;
  m.replace = wanted.replace;
  m.repair = wanted.repair != 0 ? wanted.repair : wanted.replace;
  m.restart = wanted.restart;
  m.stand_ins = stand_ins_of(places->hosts());
  m.copies = copies_of(j, *places);
  m.seed = j.jitter.seed;
  m.slowdown = [&](std::span<const node_id> absent) {
    const auto without = times.seconds_without(absent);
    RRFP_CHECK(without.ok(), "a job that runs with all nodes also runs without some");
    return std::max(*without / m.step, 1.0);
  };
  const node_id last{m.nodes - 1};
  const auto has_stand_ins = std::ranges::all_of(m.stand_ins, [&](const auto& set) {
    return std::ranges::count(set, last) < std::ssize(set);
  });
  if (has_stand_ins && why_not(j, m, recovery_way::reroute).empty())
    made.slowdown = m.slowdown(std::array{last});
  auto hours = wanted.mtbf_hours;
  std::ranges::sort(hours);
  for (const auto h : hours) {
    m.node_mtbf = h * hour;
    if (wanted.saves_at_best) m.checkpoint_every = simulate::best_checkpoint_every(m);
    for (const auto way : simulate::all_recovery_ways) {
      made.rows.push_back({h, way, {}, why_not(j, m, way)});
      if (made.rows.back().why_not.empty())
        made.rows.back().costs = simulate::costs_of_losses(m, way);
    }
  }
  m.slowdown = nullptr;
  return made;
}

std::string table_of(const loss_report& r) {
  const auto& m = r.model;
  auto text = fmt::format("{}: {} nodes, a step takes {:.3f} s.\n", r.job, m.nodes, m.step);
  if (r.slowdown)
    text += fmt::format("Without the last node a step takes {:.2f} times as long.\n", *r.slowdown);
  text += fmt::format("{:>10}  {:<12}{:>9}{:>9}{:>14}{:>14}{:>9}\n", "MTBF h", "way", "useful %",
                      "held s", "repeated/day", "checkpoint %", "every");
  for (const auto& row : r.rows) {
    text += fmt::format("{:>10g}  {:<12}", row.mtbf_hours, name(row.way));
    const auto& c = row.costs;
    text += row.why_not.empty()
                ? fmt::format("{:>9.2f}{:>9.1f}{:>14.1f}{:>14.1f}{:>9.0f}\n", c.useful * 100,
                              c.held, c.repeated_a_day, c.from_checkpoint * 100, c.checkpoint_every)
                : row.why_not + "\n";
  }
  return text + sentence_of(r) + "\n";
}

std::string sentence_of(const loss_report& r) {
  const auto best = best_of(r);
  std::string text;
  for (auto from = best.begin(); from != best.end();) {
    const auto end =
        std::find_if(from, best.end(), [&](const auto& b) { return b.way != from->way; });
    const auto& last = *(end - 1);
    text += fmt::format("{}{} at an MTBF of {:g}{} h ({:.1f}{} %)", text.empty() ? "" : ", ",
                        name(from->way), from->mtbf_hours,
                        end - from == 1 ? "" : fmt::format(" to {:g}", last.mtbf_hours),
                        from->costs.useful * 100,
                        end - from == 1 ? "" : fmt::format(" to {:.1f}", last.costs.useful * 100));
    from = end;
  }
  return "Most useful time: " + text + ".";
}

std::string json_of(const loss_report& r,
                    const std::vector<std::pair<std::string, std::string>>& about) {
  using json = nlohmann::ordered_json;
  json rows = json::array();
  for (const auto& row : r.rows) {
    rows.push_back({{"mtbf_h", row.mtbf_hours}, {"way", name(row.way)}});
    const auto& c = row.costs;
    if (row.why_not.empty())
      rows.back().update({{"useful", c.useful},
                          {"held_s", c.held},
                          {"repeated_steps_a_day", c.repeated_a_day},
                          {"losses_a_day", c.losses_a_day},
                          {"from_checkpoint", c.from_checkpoint},
                          {"checkpoint_every", static_cast<std::uint64_t>(c.checkpoint_every)}});
    else
      rows.back()["why_not"] = row.why_not;
  }
  const auto& m = r.model;
  json report = json::object();
  for (const auto& [name, text] : about) report[name] = text;
  report.update({{"run", r.job},
                 {"nodes", m.nodes},
                 {"step_s", m.step},
                 {"notice_s", m.notice},
                 {"rejoin_s", m.rejoin},
                 {"replace_s", m.replace},
                 {"repair_s", m.repair},
                 {"restart_s", m.restart},
                 {"checkpoint_s", m.checkpoint},
                 {"copy_every", static_cast<std::uint64_t>(m.copy_every)},
                 {"losses", m.losses},
                 {"rows", rows},
                 {"sentence", sentence_of(r)}});
  if (r.slowdown) report["slowdown"] = *r.slowdown;
  return report.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string chart_of(const loss_report& r) {
  const auto at = axes_of(r.rows);
  std::string body;
  for (auto percent = at.floor; percent <= 100; percent += 10)
    body += svg::line(left, at.y(percent), right, at.y(percent), svg::rule) +
            svg::text(left - 16, at.y(percent) + 4, fmt::format("{:g}", percent), small);
  for (std::size_t i = 0; i < r.rows.size(); i += colours.size())
    body += svg::text(at.x(r.rows[i].mtbf_hours), bottom + 16,
                      fmt::format("{:g}", r.rows[i].mtbf_hours), small);
  body += svg::text((left + right) / 2, bottom + 34, "mean time between two losses of one node, h",
                    small);
  for (const auto way : simulate::all_recovery_ways) {
    const auto colour = colours[static_cast<std::size_t>(way)];
    std::string points;
    std::string dots;
    for (const auto& row : r.rows) {
      if (row.way != way || !row.why_not.empty()) continue;
      const auto x = at.x(row.mtbf_hours);
      const auto y = at.y(row.costs.useful * 100);
      points += fmt::format("{:.1f},{:.1f} ", x, y);
      dots +=
          fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", x, y, colour);
    }
    if (points.empty()) continue;
    const auto row = top + 20 + 20 * static_cast<double>(way);
    body +=
        fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n{}",
                    points, colour, dots);
    body += svg::line(right + 20, row - 4, right + 40, row - 4, colour) +
            svg::text(right + 46, row, name(way));
  }
  return svg::picture(
      width, height, r.job,
      fmt::format("useful time, % of {} nodes' time, by what happens after a loss", r.model.nodes),
      body);
}

}  // namespace rrfp::apps
