/// Explores all interleavings of small pipelines: no order of arrivals and finishes can deadlock a
/// stage, exceed a limit or launch a task twice.
///
/// A stage is deterministic: its next action depends only on the events that it has received. Each
/// stage is therefore explored once as an automaton: its states are found by replaying events into
/// a new core, and each new event is compared with the naive model. The pipeline is the product of
/// its automata, in which a message is in flight after its sender has sent it and before its
/// receiver has got it. Every event adds something that is never removed, so the product has no
/// cycle: if each state without a next event is complete, then every maximal run is complete.
#include <array>
#include <bit>
#include <cstdio>
#include <string>
#include <unordered_map>

#include <catch2/catch.hpp>

#include <rrfp/core/sequence.hpp>

#include "pipeline_driver.hpp"

namespace rrfp::testing {
namespace {

constexpr std::uint32_t stages_max = 3;
constexpr std::uint32_t unknown = ~std::uint32_t{0};

/// When a stage decides: after each event, or at any time (so that one decision may follow many
/// events).
enum class decisions { eager, lazy };

/// One bit for each input of a stage.
struct input_bits {
  pipeline_shape shape;
  std::uint32_t ranks;

  std::uint32_t count() const { return 2 * shape.chunks * shape.microbatches * ranks; }
  std::uint32_t of(const input_arrived& e) const {
    return ((row_of(e.kind) * shape.chunks + e.chunk.value()) * shape.microbatches + e.mb.value()) *
               ranks +
           e.rank.value();
  }
  input_arrived at(std::uint32_t bit) const {
    const auto pair = bit / ranks;
    const auto row = pair / shape.microbatches;
    return {row < shape.chunks ? task_kind::forward : task_kind::backward,
            microbatch_id{pair % shape.microbatches}, chunk_id{row % shape.chunks},
            rank_id{bit % ranks}};
  }
};

/// The properties of a stage's state that the product needs.
struct local_state {
  std::uint32_t parent = unknown;
  std::uint64_t arrived = 0;
  std::array<std::uint64_t, stages_max> sent{};  ///< by receiving stage, as its input bits
  std::uint32_t can_finish = 0;                  ///< bit r: rank r runs a task
  bool undecided = false;
  bool complete = false;
};

/// The states of one stage, explored on demand. Events are numbered: inputs, then the finishes by
/// rank, then `decide`.
class stage_automaton {
 public:
  stage_automaton(const pipeline_setup& setup, std::uint32_t stage, decisions when)
      : setup_(setup),
        stage_(stage),
        when_(when),
        bits_{setup.shape, setup.ranks},
        hints_(setup.hints_of(stage)) {
    live_ = std::make_unique<checked_stage>(setup_.config(stage_), hints_);
    setup_.begin(*live_, step_id{0});
    live_id_ = intern({}, live_->events());
  }

  std::uint32_t finish_event(std::uint32_t rank) const { return bits_.count() + rank; }
  std::uint32_t decide_event() const { return bits_.count() + setup_.ranks; }
  const local_state& state(std::uint32_t id) const { return states_[id]; }
  std::size_t size() const { return states_.size(); }

  std::uint32_t after(std::uint32_t id, std::uint32_t event) {
    const auto slot = std::size_t{id} * all_events() + event;
    if (next_[slot] != unknown) return next_[slot];
    const auto found = discover(id, event);  // may move next_
    next_[slot] = found;
    return found;
  }

 private:
  std::uint32_t all_events() const { return bits_.count() + setup_.ranks + 1; }

  std::uint32_t discover(std::uint32_t id, std::uint32_t event) {
    if (live_id_ != id) replay(id);
    auto state = states_[id];
    state.parent = id;
    const auto fed = static_cast<std::ptrdiff_t>(live_->events().size());
    apply(state, event);
    const auto known = states_.size();
    const auto found = intern(state, {live_->events().begin() + fed, live_->events().end()});
    // On another path to a known state, launches have other numbers.
    live_id_ = found == known ? found : unknown;
    return found;
  }

  void replay(std::uint32_t id) {
    std::vector<std::uint32_t> path{id};
    while (path.back() != 0) path.push_back(states_[path.back()].parent);
    std::vector<rrfp::event> events;
    for (auto at = path.rbegin(); at != path.rend(); ++at)
      events.insert(events.end(), seen_[*at].events.begin(), seen_[*at].events.end());
    live_ = std::make_unique<checked_stage>(setup_.config(stage_), hints_, std::move(events),
                                            seen_[id].model);
    live_id_ = id;
  }

  void apply(local_state& state, std::uint32_t event) {
    if (event < bits_.count()) {
      live_->arrive(bits_.at(event));
      state.arrived |= std::uint64_t{1} << event;
    } else if (event < decide_event()) {
      const rank_id rank{event - bits_.count()};
      const auto ended = live_->finish(rank);
      if (const auto sent = output_of(setup_.shape, stage_, ended, rank))
        state.sent[sent->stage] |= std::uint64_t{1} << bits_.of(sent->what);
    }
    state.undecided = when_ == decisions::lazy && event != decide_event();
    if (!state.undecided) live_->decide();
  }

  /// `events`: those that have led to it from its parent.
  std::uint32_t intern(local_state state, std::vector<rrfp::event> events) {
    state.can_finish = 0;
    for (std::uint32_t r = 0; r < setup_.ranks; ++r)
      state.can_finish |= std::uint32_t{live_->model().can_finish(rank_id{r})} << r;
    state.complete = live_->core().step_complete();
    auto key = live_->model().key();
    key += state.undecided ? '?' : '.';
    const auto id = static_cast<std::uint32_t>(states_.size());
    const auto [found, is_new] = ids_.try_emplace(std::move(key), id);
    if (is_new) {
      states_.push_back(state);
      seen_.push_back({std::move(events), live_->model()});
      next_.resize(next_.size() + all_events(), unknown);
    }
    return found->second;
  }

  const pipeline_setup& setup_;
  const std::uint32_t stage_;
  const decisions when_;
  const input_bits bits_;
  const hints_of_shapes hints_;
  std::unique_ptr<checked_stage> live_;
  std::uint32_t live_id_ = 0;
  std::vector<local_state> states_;
  struct when_seen {
    std::vector<rrfp::event> events;
    stage_model model;
  };
  std::vector<when_seen> seen_;  ///< by state
  std::vector<std::uint32_t> next_;
  std::unordered_map<std::string, std::uint32_t> ids_;
};

/// The states seen: a hash set of nonzero numbers.
class number_set {
 public:
  /// Returns whether the number is new.
  bool insert(std::uint64_t number) {
    if (2 * ++count_ > slots_.size()) grow();
    auto& slot = find(number);
    if (slot == number) {
      --count_;
      return false;
    }
    slot = number;
    return true;
  }
  std::size_t size() const { return count_; }

 private:
  std::uint64_t& find(std::uint64_t number) {
    auto at = mix(number) & (slots_.size() - 1);
    while (slots_[at] != 0 && slots_[at] != number) at = (at + 1) & (slots_.size() - 1);
    return slots_[at];
  }
  void grow() {
    std::vector<std::uint64_t> old(2 * slots_.size());
    old.swap(slots_);
    for (const auto number : old)
      if (number != 0) find(number) = number;
  }

  std::vector<std::uint64_t> slots_ = std::vector<std::uint64_t>(1 << 10);
  std::size_t count_ = 0;
};

struct explored {
  std::uint64_t states = 0;
  std::uint64_t transitions = 0;
  std::uint64_t ends = 0;  ///< states without a next event
};

class product {
 public:
  product(const pipeline_setup& setup, decisions when) : setup_(setup) {
    for (std::uint32_t s = 0; s < setup.shape.stages; ++s) automata_.emplace_back(setup, s, when);
    const input_bits bits{setup.shape, setup.ranks};
    for (std::uint32_t i = 0; i < setup.shape.microbatches; ++i)
      for (std::uint32_t r = 0; r < setup.ranks; ++r)
        data_ |= std::uint64_t{1} << bits.of(
                     {task_kind::forward, microbatch_id{i}, chunk_id{0}, rank_id{r}});
  }

  explored explore() {
    visit({});
    while (!open_.empty()) {
      const auto state = open_.back();
      open_.pop_back();
      if (!expand(state)) {
        ++found_.ends;
        expect_complete(state);
      }
    }
    found_.states = seen_.size();
    return found_;
  }

 private:
  /// The number of each stage's local state.
  using global_state = std::array<std::uint32_t, stages_max>;

  std::uint64_t under_way_to(const global_state& state, std::uint32_t stage) const {
    auto sent = stage == 0 ? data_ : 0;
    for (std::uint32_t s = 0; s < automata_.size(); ++s)
      sent |= automata_[s].state(state[s]).sent[stage];
    return sent & ~automata_[stage].state(state[stage]).arrived;
  }

  /// Visits all next states; returns false if there is none.
  bool expand(const global_state& state) {
    bool any = false;
    for (std::uint32_t s = 0; s < automata_.size(); ++s) {
      auto& stage = automata_[s];
      const auto local = stage.state(state[s]);
      const auto go = [&](std::uint32_t event) {
        auto next = state;
        next[s] = stage.after(state[s], event);
        ++found_.transitions;
        any = true;
        visit(next);
      };
      for (auto bits = under_way_to(state, s); bits != 0; bits &= bits - 1)
        go(static_cast<std::uint32_t>(std::countr_zero(bits)));
      for (std::uint32_t r = 0; r < setup_.ranks; ++r)
        if ((local.can_finish >> r & 1) != 0) go(stage.finish_event(r));
      if (local.undecided) go(stage.decide_event());
    }
    return any;
  }

  void visit(const global_state& state) {
    std::uint64_t packed = 1;
    for (std::uint32_t s = 0; s < automata_.size(); ++s) {
      expect(state[s] < 1U << 21, "the test packs a state into 64 bits");
      packed = packed << 21 | state[s];
    }
    if (seen_.insert(packed)) open_.push_back(state);
  }

  void expect_complete(const global_state& state) const {
    for (std::uint32_t s = 0; s < automata_.size(); ++s)
      expect(automata_[s].state(state[s]).complete, "deadlock: no event is left, but tasks are");
  }

  const pipeline_setup& setup_;
  std::vector<stage_automaton> automata_;
  std::uint64_t data_ = 0;
  number_set seen_;
  std::vector<global_state> open_;
  explored found_;
};

// ---- the cases

std::string text_of(const pipeline_setup& s, const std::string& hint) {
  return "p " + std::to_string(s.shape.stages) + " m " + std::to_string(s.shape.microbatches) +
         " v " + std::to_string(s.shape.chunks) + " " + std::string(name(s.shape.layout)) +
         " ranks " + std::to_string(s.ranks) + " lookahead " + std::to_string(s.lookahead) + " " +
         std::string(name(s.mode)) + " slots " + std::to_string(s.limit.slots) + " bytes " +
         std::to_string(s.limit.bytes) + " run_ahead " + std::to_string(s.limit.run_ahead) +
         " activations " + std::to_string(s.limit.activations) + " pieces " +
         std::to_string(s.weight_pieces) + " after a step of " +
         std::to_string(s.microbatches_before) + " hint " + hint;
}

/// Adds up the explored states; a failure names its case.
class exploration {
 public:
  void add(pipeline_setup setup, decisions when, const std::string& hint) {
    // In turns: no step before, one with more microbatches, one with a single one.
    setup.microbatches_before = std::array{0U, setup.shape.microbatches + 1, 1U}[cases_ % 3];
    try {
      const auto found = product{setup, when}.explore();
      total_.states += found.states;
      total_.transitions += found.transitions;
      total_.ends += found.ends;
      ++cases_;
    } catch (const rule_violation& e) {
      FAIL(e.what() << " (" << text_of(setup, hint) << ")");
    }
  }
  void report(const char* what) const {
    std::printf("%s: %llu cases, %llu states, %llu transitions\n", what, count(cases_),
                count(total_.states), count(total_.transitions));
    REQUIRE(total_.ends >= cases_);
  }

 private:
  static unsigned long long count(std::uint64_t n) { return n; }
  explored total_;
  std::uint64_t cases_ = 0;
};

struct named_hints {
  std::string name;
  std::vector<hint_table> by_stage;
};

/// Hints with very different preferences, including unreasonable ones.
std::vector<named_hints> hints_for(const pipeline_shape& shape, bool fused) {
  random_source random{shape.stages * 100 + shape.chunks * 10 + shape.microbatches};
  std::vector<named_hints> all;
  all.push_back({"bf", on_every_stage(bf_hint(shape, fused))});
  all.push_back({"reversed", on_every_stage(reversed_hint(shape, fused))});
  all.push_back({"F first", on_every_stage(kind_first_hint(shape, fused, task_kind::forward))});
  all.push_back({"B first", on_every_stage(kind_first_hint(shape, fused, task_kind::backward))});
  if (!fused)
    all.push_back({"W first", on_every_stage(kind_first_hint(shape, fused, task_kind::weight))});
  std::vector<hint_table> drawn;
  for (std::uint32_t s = 0; s < shape.stages; ++s) drawn.push_back(random_hint(shape, random));
  all.push_back({"random", drawn});
  all.push_back({"random sequence", sequence_hints(shape, random_sequences(drawn, random))});
  if (shape.layout == placement::linear && fused) {
    std::vector<sequence> sequences;
    for (std::uint32_t s = 0; s < shape.stages; ++s)
      sequences.push_back(one_f_one_b(shape, stage_id{s}));
    all.push_back({"1f1b", sequence_hints(shape, sequences)});
  }
  return all;
}

std::vector<pipeline_shape> small_shapes() {
  std::vector<pipeline_shape> shapes;
  for (const auto layout : {placement::linear, placement::interleaved, placement::v}) {
    const std::uint32_t chunks = layout == placement::linear ? 1 : 2;
    for (std::uint32_t p = 1; p <= stages_max; ++p)
      for (std::uint32_t m = 1; m <= 3; ++m) shapes.push_back({p, chunks, m, layout});
    shapes.push_back({2, chunks, 4, layout});
  }
  return shapes;
}

struct named_limit {
  memory_limit limit;
  std::vector<std::uint64_t> slot_bytes;
};

/// Slots 1 to m (m never binds); bytes that some microbatch exceeds by itself; both.
std::vector<named_limit> limits_for(std::uint32_t m) {
  constexpr std::array<std::uint64_t, 4> uneven{2, 5, 1, 3};
  const std::vector<std::uint64_t> bytes(uneven.begin(), uneven.begin() + m);
  std::vector<named_limit> limits;
  for (std::uint32_t slots = 1; slots <= m; ++slots) limits.push_back({{slots, 0, 0}, {}});
  limits.push_back({{0, 4, 0}, bytes});
  limits.push_back({{0, 6, 0}, bytes});
  limits.push_back({{2, 4, 0}, bytes});
  return limits;
}

/// The paper's back-pressure, with limits up to `most`.
std::vector<named_limit> run_ahead_limits(const pipeline_shape& shape, std::uint32_t most) {
  std::vector<named_limit> limits;
  for (std::uint32_t limit = 1; limit <= std::min(most, shape.chunks * shape.microbatches); ++limit)
    limits.push_back({{.run_ahead = limit}, {}});
  return limits;
}

/// Every hint and limit of a shape, in ready mode.
void add_all(exploration& all, const pipeline_shape& shape, std::uint32_t ranks,
             std::uint32_t lookahead, decisions when) {
  auto limits = limits_for(shape.microbatches);
  for (auto& limit : run_ahead_limits(shape, 2)) limits.push_back(std::move(limit));
  for (const bool fused : {true, false}) {
    for (const auto& hint : hints_for(shape, fused)) {
      for (const auto& [limit, bytes] : limits) {
        // Without a limit, the largest shapes have a million states each; one hint represents all.
        if (shape.chunks * shape.microbatches == 8 && limit.slots == 4 && hint.name != "reversed")
          continue;
        all.add({shape, ranks, lookahead, dispatch_mode::ready, limit, bytes, hint.by_stage}, when,
                hint.name);
      }
    }
  }
}

}  // namespace

TEST_CASE("No order of arrivals and finishes deadlocks a small pipeline, whatever hint and limit") {
  exploration all;
  for (const auto& shape : small_shapes()) add_all(all, shape, 1, 0, decisions::eager);
  all.report("every order, one decision per event");
}

namespace {

void explore_back_pressure(std::uint32_t pairs_max) {
  exploration all;
  for (const auto& shape : small_shapes()) {
    if (shape.virtual_stages() * shape.microbatches > pairs_max) continue;
    for (const bool fused : {true, false})
      for (const auto& hint : hints_for(shape, fused))
        for (const auto& [limit, bytes] : run_ahead_limits(shape, ~0U))
          for (const std::uint32_t lookahead : {0U, 1U})
            all.add({shape, 1, lookahead, dispatch_mode::ready, limit, bytes, hint.by_stage},
                    decisions::lazy, hint.name);
  }
  all.report("every order, back-pressure");
}

}  // namespace

TEST_CASE("Nor under the paper's back-pressure, whatever its limit") { explore_back_pressure(8); }

TEST_CASE("Nor in larger pipelines under the paper's back-pressure", "[.soak]") {
  explore_back_pressure(12);
}

namespace {

void explore_activations(std::uint32_t pairs_max) {
  exploration all;
  for (const auto& shape : small_shapes()) {
    if (shape.chunks == 1 || shape.virtual_stages() * shape.microbatches > pairs_max) continue;
    for (const bool fused : {true, false})
      for (const auto& hint : hints_for(shape, fused))
        for (auto limit = shape.chunks; limit < shape.chunks * shape.microbatches; ++limit)
          all.add({shape, 1, 0, dispatch_mode::ready, {0, 0, 0, limit}, {}, hint.by_stage},
                  decisions::eager, hint.name);
  }
  all.report("every order, limits of activations");
}

}  // namespace

TEST_CASE("Nor when memory is counted by activation") { explore_activations(12); }

TEST_CASE("Nor in larger pipelines when memory is counted by activation", "[.soak]") {
  explore_activations(18);
}

TEST_CASE("Nor with W in pieces") {
  exploration all;
  for (const auto& shape : small_shapes()) {
    if (shape.virtual_stages() * shape.microbatches > 8) continue;
    for (const auto& hint : hints_for(shape, false)) {
      for (const auto& [limit, bytes] : limits_for(shape.microbatches)) {
        pipeline_setup setup{shape, 1, 0, dispatch_mode::ready, limit, bytes, hint.by_stage};
        setup.weight_pieces = 2;
        all.add(setup, decisions::eager, hint.name);
      }
    }
  }
  all.report("every order, W in pieces");
}

TEST_CASE("Nor when forwards run before they have memory") {
  exploration all;
  for (const auto& shape : small_shapes()) {
    if (shape.virtual_stages() * shape.microbatches > 8) continue;
    for (const bool fused : {true, false}) {
      for (const auto& hint : hints_for(shape, fused)) {
        for (const auto& [limit, bytes] : limits_for(shape.microbatches)) {
          pipeline_setup setup{shape, 1, 0, dispatch_mode::ready, limit, bytes, hint.by_stage};
          setup.early_forwards = 1 + shape.microbatches % 2;
          all.add(setup, decisions::eager, hint.name);
        }
      }
    }
  }
  all.report("every order, early forwards");
}

TEST_CASE("Nor when forwards run in the order of the microbatches on some stages") {
  exploration all;
  for (const auto& shape : small_shapes()) {
    if (shape.virtual_stages() * shape.microbatches > 8) continue;
    for (const bool fused : {true, false}) {
      for (const auto& hint : hints_for(shape, fused)) {
        auto limits = limits_for(shape.microbatches);
        for (auto limit = shape.chunks; limit < shape.chunks * shape.microbatches; ++limit)
          limits.push_back({{0, 0, 0, limit}, {}});
        for (const auto& [limit, bytes] : limits) {
          for (auto stages = 1U; stages < 1U << shape.stages; ++stages) {
            pipeline_setup setup{shape, 1, 0, dispatch_mode::ready, limit, bytes, hint.by_stage};
            setup.forwards_in_order = stages;
            all.add(setup, decisions::eager, hint.name);
          }
        }
      }
    }
  }
  all.report("every order, forwards in order");
}

TEST_CASE("Nor with launches queued behind the running one") {
  exploration all;
  for (const auto& shape : small_shapes())
    if (shape.virtual_stages() <= 4 && shape.microbatches <= 3)
      for (const std::uint32_t lookahead : {1U, 2U})
        add_all(all, shape, 1, lookahead, decisions::eager);
  all.report("every order, lookahead 1 and 2");
}

TEST_CASE("Nor when a decision sees any number of events at once") {
  exploration all;
  for (const auto& shape : small_shapes())
    if (shape.virtual_stages() * shape.microbatches <= 8)
      add_all(all, shape, 1, shape.microbatches % 2, decisions::lazy);
  all.report("every order, decisions at any time");
}

TEST_CASE("Nor when the ranks of a stage receive inputs and finish at different times") {
  exploration all;
  for (const auto& shape : small_shapes())
    if (shape.virtual_stages() <= 4 && shape.microbatches <= 2)
      for (const std::uint32_t lookahead : {0U, 1U})
        add_all(all, shape, 2, lookahead, decisions::eager);
  all.report("every order, two ranks per stage");
}

TEST_CASE("Every order completes a checked sequence, including 1F1B at its own memory peak") {
  exploration all;
  for (const auto& shape : small_shapes()) {
    random_source random{shape.virtual_stages() * 10 + shape.microbatches};
    for (int draw = 0; draw < 20; ++draw) {
      std::vector<hint_table> split;
      for (std::uint32_t s = 0; s < shape.stages; ++s) split.push_back(random_hint(shape, random));
      const auto sequences = random_sequences(split, random);
      REQUIRE(check_sequences(shape, sequences).ok());
      all.add({shape,
               1,
               random.below(3),
               dispatch_mode::in_order,
               {},
               {},
               sequence_hints(shape, sequences)},
              decisions::lazy, "random sequence");
    }
    if (shape.layout != placement::linear) continue;
    std::vector<sequence> sequences;
    for (std::uint32_t s = 0; s < shape.stages; ++s) {
      sequences.push_back(one_f_one_b(shape, stage_id{s}));
      const auto peak = std::min(shape.stages - s, shape.microbatches);
      REQUIRE(check_slots(shape, stage_id{s}, sequences[s], {peak, 0, 0}).ok());
      REQUIRE((peak == 1 || !check_slots(shape, stage_id{s}, sequences[s], {peak - 1, 0, 0}).ok()));
    }
    REQUIRE(check_sequences(shape, sequences).ok());
    const memory_limit peak{std::min(shape.stages, shape.microbatches), 0, 0};
    for (const std::uint32_t lookahead : {0U, 1U, 2U})
      all.add({shape,
               1,
               lookahead,
               dispatch_mode::in_order,
               peak,
               {},
               sequence_hints(shape, sequences)},
              decisions::lazy, "1f1b");
  }
  all.report("every order, in-order mode");
}

}  // namespace rrfp::testing
