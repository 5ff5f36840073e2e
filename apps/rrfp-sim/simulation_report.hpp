/// The report of a simulation: a table of the stages and, on request, every gap.
#pragma once

#include <string>
#include <vector>

#include <rrfp/job/plan.hpp>

namespace rrfp::apps {

/// Collects the gaps between tasks, up to `gaps_max`.
class gap_list final : public simulate::observer {
 public:
  static constexpr std::size_t gaps_max = 1'000'000;

  void on_idle(const simulate::idle_span& gap) override {
    if (gap.begin == gap.end) return;
    if (gaps_.size() < gaps_max)
      gaps_.push_back(gap);
    else
      ++dropped_;
  }
  const std::vector<simulate::idle_span>& gaps() const { return gaps_; }
  std::uint64_t dropped() const { return dropped_; }

 private:
  std::vector<simulate::idle_span> gaps_;
  std::uint64_t dropped_ = 0;
};

std::string table_of(const simulate::report& r, const job::dispatch_plan& dispatch);
/// One line per gap: "step 1 stage 3  12.500 to 14.000 ms  input F7".
std::string text_of(const gap_list& gaps);
/// The whole report as one JSON object.
std::string json_of(const simulate::report& r, const job::dispatch_plan& dispatch,
                    const std::string& name);

}  // namespace rrfp::apps
