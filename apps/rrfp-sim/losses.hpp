/// --losses: what losses of nodes cost a job, for each way of going on after them.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <rrfp/job/job.hpp>
#include <rrfp/simulate/loss_costs.hpp>

namespace rrfp::apps {

struct loss_options {
  std::vector<double> mtbf_hours;  ///< of one node; empty: no losses are asked for
  std::uint32_t nodes = 0;         ///< 0: as the job says, else one for each rank
  /// Seconds: see simulate::loss_model.
  double replace = 60;
  double repair = 0;  ///< 0: as `replace`
  double restart = 120;
  double checkpoint = 1;
  /// All ways save at the best interval of each MTBF; else as often as the job says.
  bool saves_at_best = false;
};

/// One way at one MTBF.
struct loss_row {
  double mtbf_hours = 0;
  simulate::recovery_way way;
  simulate::loss_costs costs;
  std::string why_not;  ///< empty: the job can go on in this way
};

struct loss_report {
  std::string job;
  simulate::loss_model model;
  /// Of a step without the last node; nothing: the others cannot go on without it.
  std::optional<double> slowdown;
  /// By MTBF, then by way.
  std::vector<loss_row> rows;
};

/// `steps`: over how many the time of a step is the mean. Errors: more nodes than ranks; those of
/// rerouted_steps.
result<loss_report> losses_of(job::job j, const loss_options& wanted, std::uint64_t steps);

std::string table_of(const loss_report& r);
/// Names the best way at each MTBF.
std::string sentence_of(const loss_report& r);
/// `about`: names and texts that come first.
std::string json_of(const loss_report& r,
                    const std::vector<std::pair<std::string, std::string>>& about = {});
/// The useful time over the MTBF, a line for each way (SVG).
std::string chart_of(const loss_report& r);

}  // namespace rrfp::apps
