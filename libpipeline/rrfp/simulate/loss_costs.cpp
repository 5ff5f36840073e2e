#include "loss_costs.hpp"

#include <algorithm>
#include <cmath>

#include <rrfp/base/check.hpp>
#include <rrfp/base/enum_names.hpp>
#include <rrfp/simulate/keyed_random.hpp>

namespace rrfp::simulate {

namespace {

constexpr double day = 86'400;

class training {
 public:
  training(const loss_model& m, recovery_way way)
      : model_(m),
        way_(way),
        restarts_(way == recovery_way::restart || way == recovery_way::checkpoint),
        checkpoint_every_(way == recovery_way::checkpoint ? best_checkpoint_every(m)
                                                          : m.checkpoint_every) {}

  loss_costs run() {
    simulate::keyed_random draws{model_.seed};
    double next_loss = 0;
    for (std::uint32_t i = 0; i < model_.losses; ++i) {
      next_loss += -std::log1p(-draws.uniform()) * model_.job_mtbf();
      const node_id node{static_cast<std::uint32_t>(draws.uniform() * model_.nodes)};
      take_in_until(next_loss);
      train_until(next_loss);
      if (i + 1 < model_.losses && !is_absent(node)) lose(node, next_loss);
    }
    const auto losses = std::max(losses_, 1.0);
    return {steps_ * model_.step / now_, held_ / losses,
            repeated_ / now_ * day,      losses_ / now_ * day,
            from_checkpoint_ / losses,   checkpoint_every_};
  }

 private:
  struct absence {
    node_id node;
    double end;
  };

  bool is_absent(node_id n) const {
    return std::ranges::any_of(absent_, [&](const auto& a) { return a.node == n; });
  }

  /// All nodes of one of the sets are absent at `time`.
  bool lacks(const std::vector<std::vector<node_id>>& sets, double time) const {
    return std::ranges::any_of(sets, [&](const auto& set) {
      return std::ranges::all_of(set, [&](node_id n) {
        return std::ranges::any_of(absent_,
                                   [&](const auto& a) { return a.node == n && a.end > time; });
      });
    });
  }

  /// The nodes that come back before `time`.
  void take_in_until(double time) {
    while (!absent_.empty() && absent_.front().end <= time) {
      const auto end = absent_.front().end;
      train_until(end);
      absent_.erase(absent_.begin());
      if (end >= now_) hold_until(end, end + model_.rejoin);
      follow_absences();
    }
  }

  void lose(node_id node, double time) {
    ++losses_;
    const auto noticed = time + model_.notice;
    const auto end = noticed + (way_ == recovery_way::reroute ? model_.repair : model_.replace) +
                     (restarts_ ? model_.restart : 0);
    const auto after = std::ranges::upper_bound(absent_, end, {}, &absence::end);
    absent_.insert(after, {node, end});
    const auto goes_on = way_ == recovery_way::reroute;
    const auto is_lost = restarts_ || lacks(goes_on ? model_.stand_ins : model_.copies, time);
    const auto copied = std::floor(steps_ / model_.copy_every) * model_.copy_every;
    const auto resumed = is_lost ? saved_ : std::max(saved_, copied);
    from_checkpoint_ += is_lost ? 1 : 0;
    repeated_ += std::floor(steps_) - resumed;
    steps_ = resumed;
    auto waits_until = noticed;
    for (const auto& a : absent_)
      if (!goes_on || lacks(model_.stand_ins, waits_until)) waits_until = std::max(noticed, a.end);
    hold_until(time, waits_until + (restarts_ ? 0 : model_.rejoin));
    follow_absences();
  }

  void hold_until(double begin, double end) {
    held_ += std::max(end - std::max(begin, now_), 0.0);
    now_ = std::max(now_, end);
  }

  void follow_absences() {
    if (way_ != recovery_way::reroute || !model_.slowdown) return;
    std::vector<node_id> absent;
    for (const auto& a : absent_)
      if (a.end > now_) absent.push_back(a.node);
    std::ranges::sort(absent);
    step_ = model_.step * (absent.empty() ? 1 : model_.slowdown(absent));
  }

  void train_until(double time) {
    while (now_ < time) {
      const auto to_save = (saved_ + checkpoint_every_ - steps_) * step_;
      if (now_ + to_save + model_.checkpoint > time) {
        // What was written of a checkpoint is of no use.
        steps_ = std::min(steps_ + (time - now_) / step_, saved_ + checkpoint_every_);
        now_ = time;
        return;
      }
      now_ += to_save + model_.checkpoint;
      const auto whole = std::max(
          std::floor((time - now_) / (checkpoint_every_ * step_ + model_.checkpoint)), 0.0);
      now_ += whole * (checkpoint_every_ * step_ + model_.checkpoint);
      saved_ += (whole + 1) * checkpoint_every_;
      steps_ = saved_;
    }
  }

  const loss_model& model_;
  const recovery_way way_;
  const bool restarts_;
  const double checkpoint_every_;
  double now_ = 0;  ///< until which the job has trained or is held
  double step_ = model_.step;
  double steps_ = 0;             ///< that count; not whole within a step
  double saved_ = 0;             ///< of them, in the last checkpoint
  std::vector<absence> absent_;  ///< by end
  double losses_ = 0;
  double held_ = 0;
  double repeated_ = 0;
  double from_checkpoint_ = 0;
};

}  // namespace

std::string_view name(recovery_way way) {
  return name_in({"reroute", "replace", "restart", "checkpoint"}, way);
}

loss_costs costs_of_losses(const loss_model& m, recovery_way way) {
  RRFP_CHECK(m.nodes > 0 && m.node_mtbf > 0 && m.step > 0 && m.losses > 0, "losses need a job");
  RRFP_CHECK(m.copy_every >= 1 && m.checkpoint_every >= 1, "intervals are at least a step");
  return training{m, way}.run();
}

double best_checkpoint_every(const loss_model& m) {
  return std::max(std::round(std::sqrt(2 * m.checkpoint * m.job_mtbf()) / m.step), 1.0);
}

}  // namespace rrfp::simulate
