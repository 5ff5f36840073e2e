// The times of any trace add up, even of an inconsistent one.
#include <catch2/catch.hpp>

#include <random>

#include <rrfp/report/breakdown.hpp>
#include <rrfp/report/critical_path.hpp>

#include "hand_made.hpp"

namespace rrfp::report::testing {
namespace {

/// Random tasks, decisions and waits of two steps on two stages with two ranks: inputs may arrive
/// before they are sent, and clocks differ.
hand_made nonsense(std::uint32_t seed) {
  std::mt19937 random{seed};
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const char* const kinds[] = {"F", "B", "W", "BW"};
  const char* const whys[] = {"input", "in_order", "memory"};
  hand_made t;
  t.run("nonsense", 2);
  for (int stage = 0; stage < 2; ++stage) {
    for (int rank = 0; rank < 2; ++rank) {
      int now = below(30);
      for (int n = 0; n < 12; ++n) {
        const int begin = now + below(3) * below(20);
        now = begin + below(15);
        t.task(stage, fmt::format("{}{}{}", kinds[below(4)], below(3), below(2) == 0 ? "" : ".1"),
               std::max(0, begin - below(25)), begin, now,
               {.rank = rank, .step = n < 6 + below(2) ? 0 : 1, .seq = n, .delay = below(15)});
      }
    }
    for (int now = 0, n = 0; n < 10; ++n) {
      const int begin = now + below(20);
      now = begin + below(20);
      t.wait(stage, whys[below(3)], fmt::format("{}{}", kinds[below(4)], below(3)), begin, now,
             below(2));
    }
  }
  return t;
}

}  // namespace

TEST_CASE("busy and idle time add up to the wall time, and so does the critical path") {
  for (std::uint32_t seed = 0; seed < 500; ++seed) {
    INFO("seed " << seed);
    const auto file = nonsense(seed).read();
    const auto t = all_steps(file.runs[0]);
    for (const auto& l : t.lanes) {
      const auto b = breakdown_of(l, t.wall());
      REQUIRE(b.busy() + b.idle() == t.wall());
      auto now = t.begin();
      auto next = l.tasks.begin();
      for (const auto& g : l.gaps) {
        for (; next != l.tasks.end() && (*next)->begin <= now && (*next)->end <= g.begin; ++next)
          now = (*next)->end;
        REQUIRE(g.begin == now);
        REQUIRE(g.end > g.begin);
        now = g.end;
      }
    }
    for (const auto& s : breakdown_by_stage(t)) REQUIRE(s.busy() + s.idle() == s.wall);
    const auto p = find_critical_path(t);
    REQUIRE(p.length() == t.wall());
    REQUIRE(p.transfer >= 0);
  }
}

}  // namespace rrfp::report::testing
