#include <rrfp/actors/run_start.hpp>

#include <algorithm>
#include <map>
#include <random>
#include <span>
#include <utility>

#include <rrfp/actors/job_checkpoint.hpp>
#include <rrfp/actors/job_cluster.hpp>
#include <rrfp/actors/job_session.hpp>

namespace rrfp::actors {

namespace {

/// What a node tells node 0.
struct node_contribution {
  std::vector<std::string> data;  ///< of each run
  recovery_report recovery;
};
auto fields(auto f, node_contribution& x) { return f(x.data, x.recovery); }

/// What node 0 answers.
struct node_start {
  job_start start;
  recovery_point from;
  std::string resume;  ///< the folder of a checkpoint; empty: none
};
auto fields(auto f, node_start& x) { return f(x.start, x.from, x.resume); }

std::uint64_t draw_token() {
  std::random_device random;
  return (std::uint64_t{random()} << 32) ^ random();
}

/// Returns what each node has, by its number.
std::vector<job_machines> machines_of(const std::vector<member>& members) {
  std::map<std::string, std::uint32_t> nodes_on;
  std::vector<job_machines> all;
  const bool is_one = std::all_of(members.begin(), members.end(), [](const member& m) {
    return m.is_absent || job::is_loopback(m.host);
  });
  for (const auto& m : members) all.push_back({is_one, 1, nodes_on[m.host]++});
  for (const auto& m : members) all[m.node.value()].neighbours = nodes_on[m.host];
  return all;
}

/// Node 0 (`leads`) holds the checkpoints and chooses one of them.
result<run_start> begin_at(recovery_point from, std::span<const opened_run> runs, bool leads) {
  run_start s;
  s.number = from.finished.size();
  s.from = std::move(from);
  if (s.number == runs.size()) return s;
  s.setup = runs[s.number].setup;
  if (!leads || !s.setup.checkpoint) return s;
  auto choice = hold_checkpoints(runs[s.number].options, *s.setup.checkpoint, s.from);
  if (!choice) return choice.failure();
  s.notes = choice->notes();
  s.setup.resume = std::move(choice->from);
  return s;
}

/// Nodes that read different files would train on a mixture of them.
status check_data(std::span<const node_contribution> contributions, std::size_t run,
                  const job::job& j) {
  std::vector<std::string> fingerprints;
  for (const auto& contribution : contributions)
    fingerprints.push_back(contribution.data.empty() ? std::string{} : contribution.data[run]);
  const auto same = check_same_data(fingerprints);
  return same ? same : job::blame(j, job::key_of(j.data), same.message());
}

/// What node 0 tells each node, if `s` is what it begins itself.
result<std::vector<node_start>> answers_of(const run_start& s, const job::job& j,
                                           const membership& in) {
  const auto& members = in.members();
  const auto nodes = static_cast<std::uint32_t>(members.size());
  const auto absent = in.absent();
  auto places = job::node_places::make(j, nodes);
  if (!places) return places.failure();
  *places = places->without(absent);
  auto parts = parts_of(s.from, nodes, in.leader(), [&](stage_id stage, rank_id rank) {
    std::vector<node_id> of_rank;
    for (std::uint32_t d = 0; d < j.pipeline.replicas; ++d)
      of_rank.push_back(places->node_of(replica_id{d}, stage, rank));
    return of_rank;
  });
  const auto token = draw_token();
  const auto machines = machines_of(members);
  std::vector<node_start> all;
  for (std::size_t n = 0; n < nodes; ++n)
    all.push_back({{token, machines[n], absent},
                   std::move(parts[n]),
                   s.setup.resume ? s.setup.resume->folder : std::string{}});
  return all;
}

/// What node 0 begins from the contributions of all nodes, and tells them.
result<std::vector<node_start>> begin_with(run_start& s,
                                           const std::vector<node_contribution>& contributions,
                                           std::span<const opened_run> runs,
                                           const membership& members) {
  std::vector<recovery_report> of_recovery;
  for (std::size_t n = 0; n < contributions.size(); ++n) {
    const auto& contribution = contributions[n];
    if (!members.members()[n].is_absent && contribution.data.size() != runs.size())
      return error{"protocol error: nodes have different runs", error_kind::failed};
    of_recovery.push_back(contribution.recovery);
  }
  std::vector<std::uint32_t> ranks;
  for (const auto& run : runs)
    ranks.push_back(run.options.pipeline.stages * run.options.pipeline.tp);
  auto from = choose_recovery_point(of_recovery, ranks);
  const auto number = from.finished.size();
  const auto& j = runs[std::min(number, runs.size() - 1)].options;
  if (number < runs.size())
    if (auto same = check_data(contributions, number, j); !same) return same.failure();
  auto begun = begin_at(std::move(from), runs, true);
  if (!begun) {
    const auto leader = members.leader().value();
    return within(
        "node " + std::to_string(leader) + " (" + members.members()[leader].description + ")",
        begun.failure());
  }
  s = *std::move(begun);
  return answers_of(s, j, members);
}

}  // namespace

result<run_start> agree_on_start(membership* members, std::span<const opened_run> runs,
                                 const recovery_report& mine) {
  if (members == nullptr) {
    recovery_point next;  // there is no loss that it could go on from
    next.finished = mine.finished;
    return begin_at(std::move(next), runs, true);
  }
  run_start s;
  node_contribution contribution{{}, mine};
  for (const auto& run : runs)
    contribution.data.push_back(run.model ? run.model->fingerprint() : "");
  auto told = agree<node_contribution, node_start>(
      *members, contribution,
      [&](const auto& contributions) { return begin_with(s, contributions, runs, *members); });
  if (!told) return told.failure();
  if (!members->leads()) {
    s = begin_at(std::move(told->from), runs, false).value();
    // This node may see a shared folder differently, or not at all.
    if (auto& folder = told->resume; !folder.empty()) {
      auto found = checkpoint::verify(folder, checkpoint::verification::sizes);
      if (found)
        s.setup.resume = *std::move(found);
      else
        s.setup.ready = found.failure();
    }
  }
  s.start = told->start;
  return s;
}

}  // namespace rrfp::actors
