/// Whatever a driver feeds, a job ends at most once. Whatever the order, the duplicates and the
/// stale events among correct answers, a job ends as it should.
#include <random>

#include <catch2/catch.hpp>

#include <rrfp/base/step_name.hpp>
#include <rrfp/core/job_core.hpp>

namespace rrfp {
namespace {

using random_source = std::mt19937_64;

std::uint64_t below(random_source& random, std::uint64_t limit) { return random() % limit; }

job_core_options any_options(random_source& random) {
  job_core_options o;
  o.stages = 1 + static_cast<std::uint32_t>(below(random, 3));
  o.ranks = 1 + static_cast<std::uint32_t>(below(random, 2));
  o.replicas = 1 + static_cast<std::uint32_t>(below(random, 2));
  o.nodes = 1 + static_cast<std::uint32_t>(below(random, 3));
  o.first_step = below(random, 3);
  o.steps = o.first_step + below(random, 4);
  o.on_request = below(random, 2) == 0;
  if (below(random, 2) == 0) o.saves = {below(random, 3), 50};
  if (below(random, 2) == 0)
    o.evaluation = {below(random, 3), 1 + static_cast<std::uint32_t>(below(random, 2))};
  if (below(random, 2) == 0) o.copies = {.every = 1 + below(random, 2), .time_max = 50};
  if (o.copies && below(random, 2) == 0) {
    o.copies->restores = true;
    o.copies->saved = below(random, o.first_step + 1);
    o.copies->evaluations = below(random, 2);
  }
  o.hang_timeout_s = below(random, 2) == 0 ? 0 : 5e-8;
  return o;
}

rank_address any_rank(random_source& random, const job_core_options& o) {
  // One too many now and then: a rank that does not exist.
  const replica_id replica{
      static_cast<std::uint32_t>(below(random, o.replicas + below(random, 2)))};
  const stage_id stage{static_cast<std::uint32_t>(below(random, o.stages))};
  return {stage, rank_id{static_cast<std::uint32_t>(below(random, o.ranks))}, replica};
}

stage_key any_stage(random_source& random, const job_core_options& o) {
  const auto r = any_rank(random, o);
  return {r.replica, r.stage};
}

step_id any_step(random_source& random, const job_core_options& o) {
  const auto step = o.first_step + below(random, 4);
  return step_id{below(random, 4) == 0 ? first_evaluation + below(random, 2) : step};
}

job_event::any any_event(random_source& random, const job_core_options& o) {
  const auto step = o.first_step + below(random, 5);
  const std::string failure = below(random, 4) == 0 ? "no room" : "";
  switch (below(random, 28)) {
    case 0:
    case 1:
    case 2: return job_event::start{};
    case 3: return job_event::added_up{any_step(random, o)};
    case 4: return job_event::update_applied{any_step(random, o)};
    case 5: return job_event::save_opened{step};
    case 6: return job_event::weights_reported{any_rank(random, o)};
    case 7: return job_event::weights_agree{};
    case 8: return job_event::tick{static_cast<std::int64_t>(below(random, 70))};
    case 9:
      return job_event::timer_fired{static_cast<job_timer>(below(random, 5)), below(random, 3)};
    case 10:
    case 11: return job_event::demanded{static_cast<job_demand>(below(random, 5))};
    case 12:
    case 13: return job_event::snapshot_taken{step};
    case 14: return job_event::snapshot_written{step, failure};
    case 15: return job_event::save_ended{step, failure};
    case 16:
      if (below(random, 20) > 0) return job_event::save_ended{step, {}};
      if (below(random, 2) == 0)
        if (below(random, 4) == 0)
          return job_event::node_waits{node_id{static_cast<std::uint32_t>(below(random, 4))}};
      return job_event::drain_asked{node_id{static_cast<std::uint32_t>(below(random, 4))}};
      return job_event::interrupted{below(random, 4) == 0};
    case 17:
      if (below(random, 50) > 0) return job_event::report_requested{"test"};
      return job_event::failed{{"x", error_kind::failed}};
    case 18:
      if (below(random, 50) > 0) return job_event::report_requested{"test"};
      return job_event::suspected{{"x", error_kind::node_lost}};
    case 19:
      if (below(random, 4) == 0) return job_event::batch_given{any_step(random, o)};
      return job_event::progress_reported{any_stage(random, o)};
    case 20: return job_event::state_restored{};
    case 21:
    case 22: return job_event::copy_held{step, failure};
    default: return job_event::stage_ended{any_step(random, o), any_stage(random, o)};
  }
}

/// Answers the actions of a core as a correct driver does.
class driver {
 public:
  /// `checked`: it gets no event that no driver would send.
  driver(job_core_options options, random_source& random, bool checked = true)
      : options_(options),
        random_(random),
        checked_(checked),
        core_(options),
        kept_(options.copies && options.copies->restores ? options.first_step : 0) {}

  void feed(const job_event::any& e) {
    const auto ended_before = ends_ > 0;
    const auto actions = core_.on(e, now_++);
    CHECK((!ended_before || actions.empty()));
    for (const auto& a : actions) {
      CHECK(ends_ == 0);
      std::visit([this](const auto& x) { answer(x); }, a);
    }
    CHECK((core_.phase() == job_phase::ended) == (ends_ > 0));
    // Answered at once: before any other event.
    if (at_once_) feed(*std::exchange(at_once_, std::nullopt));
  }
  /// Feeds one of the events that are due, and at times one that came before again.
  bool feed_one() {
    if (due_.empty()) return false;
    const auto which = below(random_, due_.size());
    const auto e = due_[which];
    due_.erase(due_.begin() + static_cast<std::ptrdiff_t>(which));
    feed(e);
    if (const auto* const taken = std::get_if<job_event::snapshot_taken>(&e))
      due_.push_back(
          job_event::snapshot_written{taken->step, below(random_, 9) == 0 ? "no room" : ""});
    if (is_counted_by_identity(e)) past_.push_back(e);
    if (!past_.empty() && below(random_, 3) == 0) feed(past_[below(random_, past_.size())]);
    return true;
  }

  job_end how() const { return how_; }
  int ends() const { return ends_; }
  std::uint64_t steps() const { return steps_; }
  std::uint64_t saved() const { return saved_; }
  /// Steps whose copies all ranks hold.
  std::uint64_t copied() const { return copied_; }
  /// The last of these steps.
  std::uint64_t kept() const { return kept_; }
  bool has_failed_copies() const { return has_failed_copies_; }
  std::optional<node_id> drained() const { return drained_; }
  const job_core& core() const { return core_; }

 private:
  static bool is_counted_by_identity(const job_event::any& e) {
    return std::holds_alternative<job_event::stage_ended>(e) ||
           std::holds_alternative<job_event::weights_reported>(e) ||
           std::holds_alternative<job_event::progress_reported>(e);
  }

  template <class Each>
  void for_each_stage(Each each) {
    for (std::uint32_t r = 0; r < options_.replicas; ++r)
      for (std::uint32_t s = 0; s < options_.stages; ++s)
        each(stage_key{replica_id{r}, stage_id{s}});
  }
  template <class Each>
  void for_each_rank(Each each) {
    for_each_stage([&](stage_key s) {
      for (std::uint32_t r = 0; r < options_.ranks; ++r)
        each(rank_address{s.stage, rank_id{r}, s.replica});
    });
  }

  void answer(const job_action::begin_step& a) {
    CHECK(a.gradients_wait == accumulates_);
    if (!is_evaluation(a.step)) accumulates_ = a.accumulates;
    // A program cannot begin again from the first step.
    CHECK_FALSE((options_.on_request && !is_evaluation(a.step) && copying_ && kept_ == 0));
    for_each_stage([&](auto s) { due_.push_back(job_event::stage_ended{a.step, s}); });
  }
  /// A program may change the state from now on.
  void check_nothing_reads_the_state() {
    if (!options_.on_request || !checked_) return;
    for (const auto& e : due_) {
      const auto* const copy = std::get_if<job_event::copy_taken>(&e);
      CHECK_FALSE((copy != nullptr && copying_ == copy->step));
      const auto* const snapshot = std::get_if<job_event::snapshot_taken>(&e);
      CHECK_FALSE((snapshot != nullptr && saving_ == snapshot->step));
    }
  }
  void answer(const job_action::add_up& a) { at_once_ = job_event::added_up{a.step}; }
  void answer(const job_action::apply_update& a) {
    CHECK_FALSE(accumulates_);
    for_each_rank([&](auto) { due_.push_back(job_event::update_applied{a.step}); });
  }
  void answer(const job_action::finish_step& a) {
    if (!is_evaluation(a.step)) ++steps_;
  }
  void answer(const job_action::state_ready&) {
    CHECK(options_.on_request);
    check_nothing_reads_the_state();
  }
  void answer(const job_action::open_save& a) {
    if (below(random_, 5) == 0)
      at_once_ = job_event::save_ended{a.step, "no folder"};
    else
      at_once_ = job_event::save_opened{a.step};
  }
  void answer(const job_action::take_snapshot& a) {
    saving_ = a.step;
    for (std::uint32_t r = 0; r < options_.stages * options_.ranks; ++r) {
      due_.push_back(job_event::snapshot_taken{a.step});
    }
  }
  void answer(const job_action::commit_save& a) {
    due_.push_back(job_event::save_ended{a.step, below(random_, 9) == 0 ? "no manifest" : ""});
  }
  void answer(const job_action::end_save& a) {
    saving_.reset();
    if (a.failure.empty() && !a.overdue) ++saved_;
  }
  void answer(const job_action::restore_state&) {
    CHECK(steps_ == 0);
    for_each_rank([&](auto) { due_.push_back(job_event::state_restored{}); });
  }
  void answer(const job_action::copy_state& a) {
    // One at a time, and after what all hold.
    CHECK_FALSE(std::exchange(copying_, a.step));
    CHECK(a.complete == kept_);
    CHECK(a.step >= kept_);
    for (std::uint32_t r = 0; r < options_.stages * options_.ranks; ++r) {
      if (options_.on_request) due_.push_back(job_event::copy_taken{a.step});
      due_.push_back(job_event::copy_held{a.step, below(random_, 9) == 0 ? "no room" : ""});
    }
  }
  void answer(const job_action::keep_copies& a) {
    CHECK(std::exchange(copying_, std::nullopt) == a.step);
    kept_ = a.step;
    ++copied_;
  }
  void answer(const job_action::drop_copies& a) {
    CHECK(std::exchange(copying_, std::nullopt) == a.step);
    CHECK_FALSE(a.failure.empty());
    has_failed_copies_ = true;
  }
  void answer(const job_action::report_weights&) {
    for_each_rank([&](auto r) { due_.push_back(job_event::weights_reported{r}); });
  }
  void answer(const job_action::compare_weights&) { at_once_ = job_event::weights_agree{}; }
  void answer(const job_action::ask_progress&) {
    for_each_stage([&](auto s) { due_.push_back(job_event::progress_reported{s}); });
  }
  void answer(const job_action::write_reports&) {}
  void answer(const job_action::note_progress&) {}
  void answer(const job_action::set_timer& a) {
    if (a.which != job_timer::watch) due_.push_back(job_event::timer_fired{a.which, a.number});
  }
  void answer(const job_action::end& a) {
    ++ends_;
    how_ = a.how;
    drained_ = a.drained;
    CHECK((!a.drained || a.how == job_end::node_lost));
  }

  const job_core_options options_;
  random_source& random_;
  const bool checked_;
  job_core core_;
  std::int64_t now_ = 0;
  std::vector<job_event::any> due_;
  std::vector<job_event::any> past_;
  std::optional<job_event::any> at_once_;
  int ends_ = 0;
  job_end how_ = job_end::failed;
  std::optional<node_id> drained_;
  std::uint64_t steps_ = 0;
  std::uint64_t saved_ = 0;
  bool accumulates_ = false;
  std::optional<std::uint64_t> copying_;
  std::optional<std::uint64_t> saving_;
  std::uint64_t kept_;
  std::uint64_t copied_ = 0;
  bool has_failed_copies_ = false;
};

}  // namespace

TEST_CASE("Any sequence of events ends a job at most once, and nothing follows the end") {
  int ended = 0;
  int stepped = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    INFO("seed " << seed);
    random_source random{seed};
    const auto options = any_options(random);
    driver d{options, random, false};
    for (int i = 0; i < 300; ++i)
      if (below(random, 3) == 0)
        d.feed(any_event(random, options));
      else
        d.feed_one();
    REQUIRE(d.ends() <= 1);
    ended += d.ends();
    if (d.steps() > 0) ++stepped;
  }
  CHECK(ended > 1000);
  CHECK(stepped > 300);
}

TEST_CASE("Events without any sense end a job at most once") {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    INFO("seed " << seed);
    random_source random{seed};
    const auto options = any_options(random);
    job_core core{options};
    int ends = 0;
    for (int i = 0; i < 500; ++i)
      for (const auto& a : core.on(any_event(random, options), i)) {
        REQUIRE(ends == 0);
        if (std::holds_alternative<job_action::end>(a)) ++ends;
      }
  }
}

TEST_CASE("A job ends done after its steps, in whatever order its answers come, even repeated") {
  std::uint64_t saved = 0;
  std::uint64_t copied = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    INFO("seed " << seed);
    random_source random{seed};
    auto options = any_options(random);
    options.hang_timeout_s = 0;
    if (options.saves) options.saves->time_max = 1'000'000;
    if (options.copies) options.copies->time_max = 1'000'000;
    driver d{options, random};
    const auto steps = options.steps - options.first_step;
    d.feed(job_event::start{});
    if (options.on_request) {
      for (std::uint64_t i = 0; i < steps; ++i) {
        d.feed(job_event::demanded{job_demand::evaluate});
        d.feed(job_event::demanded{i % 3 == 1 ? job_demand::accumulate : job_demand::train});
        if (i % 2 == 0) d.feed(job_event::demanded{job_demand::save});
      }
      d.feed(job_event::demanded{job_demand::finish});
    }
    d.feed(job_event::report_requested{"test"});
    while (d.feed_one()) {
    }
    REQUIRE(d.ends() == 1);
    CHECK(d.how() == job_end::done);
    CHECK(d.steps() == steps);
    saved += d.saved();
    copied += d.copied();
  }
  CHECK(saved > 100);
  CHECK(copied > 300);
}

TEST_CASE(
    "A node that leaves ends a run between two steps, and the next run repeats none of them") {
  int drained = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    INFO("seed " << seed);
    random_source random{seed};
    auto options = any_options(random);
    options.on_request = false;
    options.hang_timeout_s = 0;
    options.nodes = 2;
    options.steps += 3;
    if (options.saves) options.saves->time_max = 1'000'000;
    options.copies = {.every = 1 + below(random, 2), .time_max = 1'000'000};
    driver d{options, random};
    d.feed(job_event::start{});
    for (auto before = below(random, 60); before > 0; --before) d.feed_one();
    const node_id leaver{static_cast<std::uint32_t>(below(random, 2))};
    d.feed(job_event::drain_asked{leaver});
    while (d.feed_one()) {
    }
    REQUIRE(d.ends() == 1);
    const auto left = options.steps - options.first_step - d.steps();
    if (d.how() == job_end::done) {
      CHECK(left == 0);
      continue;
    }
    REQUIRE(d.how() == job_end::node_lost);
    CHECK(d.drained() == leaver);
    CHECK(left > 0);
    if (d.has_failed_copies()) continue;
    CHECK(d.kept() == options.first_step + d.steps());
    ++drained;
    options.first_step = d.kept();
    options.copies->restores = true;
    driver next{options, random};
    next.feed(job_event::start{});
    while (next.feed_one()) {
    }
    CHECK(next.how() == job_end::done);
    CHECK(next.steps() == left);
  }
  CHECK(drained > 300);
}

}  // namespace rrfp
