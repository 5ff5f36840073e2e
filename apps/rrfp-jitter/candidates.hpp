/// The paper's agreement of the tensor-parallel ranks of a stage (arXiv 2605.18750, appendix D), in
/// the simulator, for comparison.
///
/// Each rank picks from what is ready on it, and an all-gather compares the picks. If they differ,
/// nothing runs, and the ranks pick again, from the beginning of the hint's order, when a task has
/// become ready on any of them. A rank without a ready task takes part with no pick, and W is
/// agreed on like F and B: the paper leaves both open. This cannot deadlock, because picks differ
/// only while an input is on some ranks, and it will be on all.
///
/// A rank is a core of its own, which gets the inputs of that rank alone and launches what the
/// stage launches. Inputs that arrive while the ranks gather are held back until they have
/// compared.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include <rrfp/simulate/simulator.hpp>

namespace rrfp::experiment {

/// How the tensor-parallel ranks of a stage come to run the same task. arrivals: the stage decides
/// for all, among the tasks whose inputs are on every rank. candidates: as above.
enum class rank_agreement : std::uint8_t { arrivals, candidates };
inline constexpr std::string_view rank_agreements[] = {"arrivals", "candidates"};
inline std::string_view name(rank_agreement a) {
  return rank_agreements[static_cast<std::size_t>(a)];
}

struct agreement_counts {
  std::uint64_t gathers = 0;    ///< of picks
  std::uint64_t deferrals = 0;  ///< of them, those whose picks differed

  agreement_counts& operator+=(const agreement_counts& other) {
    gathers += other.gathers;
    deferrals += other.deferrals;
    return *this;
  }
  bool operator==(const agreement_counts&) const = default;
};

/// What agreement by candidates cost a stage, over all steps. The simulator counts both times as
/// waits for ranks.
struct agreement_cost {
  agreement_counts counts;
  simulate::nanoseconds gathering = 0;
  simulate::nanoseconds deferred = 0;  ///< while a task was ready on every rank
};

class candidates final : public simulate::decider {
 public:
  /// Lets the stages of `p` agree by candidates, each gathering of picks taking `gather_cost`. `p`
  /// must be in mode ready, without lookahead and early forwards, and must not outlive this object.
  candidates(simulate::plan& p, simulate::nanoseconds gather_cost);

  std::span<const action> on(stage_id s, stage_core& core, const event& e,
                             simulate::nanoseconds now) override;
  std::optional<simulate::nanoseconds> decides_again_after(stage_id s) override;

  const agreement_cost& cost_of(stage_id s) const { return stages_[s.value()].cost; }

 private:
  struct stage {
    policy* hint = nullptr;
    std::vector<stage_core> ranks;
    std::vector<std::optional<task>> picks;  ///< by rank
    bool picks_are_due = true;               ///< what is ready has changed since the last ones
    bool is_gathering = false;
    simulate::nanoseconds gathered_at = 0;
    std::vector<input_arrived> held;
    std::optional<simulate::nanoseconds> deferred_since;
    std::vector<action> answer;
    agreement_cost cost;
  };

  std::span<const action> decide_on(stage& of, stage_core& core, simulate::nanoseconds now);
  static std::span<const action> launch_on(stage& of, stage_core& core);
  static void defer(stage& of, stage_core& core, simulate::nanoseconds now);
  static void end_deferral(stage& of, simulate::nanoseconds now);
  static void arrive(stage& of, stage_core& core, const input_arrived& input);
  static void release(stage& of, stage_core& core);

  std::vector<stage> stages_;
  simulate::nanoseconds gather_cost_;
};

}  // namespace rrfp::experiment
