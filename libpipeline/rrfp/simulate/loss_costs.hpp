/// What losses of nodes cost a long training: a Monte Carlo simulation of when nodes are lost, and
/// of how the job goes on.
///
/// Nodes are lost one by one and independently of each other, at exponential intervals; a node that
/// is absent is not lost again. Between two events the job trains at a constant speed, so that a
/// simulation takes time by loss, not by step.
///
/// Pure: equal models give equal costs, and all ways of one model see the same losses.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include <rrfp/base/ids.hpp>

namespace rrfp::simulate {

/// How a job goes on after a loss.
///
///   reroute      the others go on at once from their copies, slower, until a replacement is there
///   replace      the others wait for the replacement, and all go on from their copies
///   restart      the whole job is started again from the last checkpoint
///   checkpoint   the same, with the interval of best_checkpoint_every()
enum class recovery_way : std::uint8_t { reroute, replace, restart, checkpoint };
inline constexpr std::array all_recovery_ways{recovery_way::reroute, recovery_way::replace,
                                              recovery_way::restart, recovery_way::checkpoint};

std::string_view name(recovery_way way);

/// Times in seconds.
struct loss_model {
  std::uint32_t nodes = 1;
  /// Mean time between two failures of one node. Positive.
  double node_mtbf = 3.6e6;
  /// Of a step with all nodes. Positive.
  double step = 1;
  /// Time of a step without the nodes, sorted by number, over `step`; empty: 1.
  std::function<double(std::span<const node_id> absent)> slowdown;

  /// Steps between two copies in the memory of the nodes, and between two checkpoints. Positive.
  double copy_every = 1;
  double checkpoint_every = 1000;
  /// By which a checkpoint delays the training.
  double checkpoint = 1;

  double notice = 10;    ///< from a loss until the others know of it
  double replace = 60;   ///< from then until the lost node has been replaced, unless they go on
  double repair = 60;    ///< the same if they go on without it
  double rejoin = 1;     ///< until the nodes go on, whether without one or with a replacement
  double restart = 120;  ///< until the job has been started again, with the replacement

  /// Sets of nodes: reroute waits if all nodes of a set are absent, and so is the state that they
  /// hold.
  std::vector<std::vector<node_id>> stand_ins;
  /// Sets of nodes that hold the copies of a rank: with all of them the state is lost.
  std::vector<std::vector<node_id>> copies;

  std::uint64_t seed = 1;
  /// How many losses are simulated. The relative error of what they cost is about one over
  /// the square root of that.
  std::uint32_t losses = 4000;

  /// Of any of the nodes.
  double job_mtbf() const { return node_mtbf / nodes; }
};

struct loss_costs {
  /// The time that the steps would have taken without losses and checkpoints, over the time that
  /// they took; 0 to 1.
  double useful = 0;
  /// Seconds in which the job stood still, by loss: until the job goes on, and again when a
  /// replacement is taken in.
  double held = 0;
  /// Steps that were complete and run again, in a day.
  double repeated_a_day = 0;
  double losses_a_day = 0;
  /// Share of the losses after which the job went on from a checkpoint.
  double from_checkpoint = 0;
  /// Steps between two checkpoints.
  double checkpoint_every = 0;

  bool operator==(const loss_costs&) const = default;
};

loss_costs costs_of_losses(const loss_model& m, recovery_way way);

/// The steps between two checkpoints that cost the least time: sqrt(2 * cost * MTBF of the job), at
/// least a step (J. W. Young, "A first order approximation to the optimum checkpoint interval",
/// CACM 17(9), 1974; J. T. Daly, "A higher order estimate of the optimum checkpoint interval for
/// restart dumps", FGCS 22(3), 2006, whose first order it is).
double best_checkpoint_every(const loss_model& m);

}  // namespace rrfp::simulate
