#include "symbols.hpp"

#include <cstring>

#include <rrfp/base/step_name.hpp>

namespace rrfp::cluster {

namespace {

/// One step of all replicas on the same weights.
class reference_step {
 public:
  reference_step(const scenario& c, std::uint32_t run, step_id step,
                 const std::vector<rank_state>& weights)
      : c_(c), run_(run), step_(step), weights_(weights) {
    gradients_.resize(c.replicas);
    losses_.resize(c.replicas);
    for (std::uint32_t d = 0; d < c.replicas; ++d) run_replica(replica_id{d});
  }

  /// By stage and rank, and chunk; of all replicas together.
  std::vector<rank_state> gradients() const {
    std::vector<rank_state> all(weights_.size(), rank_state(c_.shape.chunks, 0));
    for (std::size_t at = 0; at < all.size(); ++at)
      for (std::uint32_t chunk = 0; chunk < c_.shape.chunks; ++chunk)
        for (std::uint32_t d = 0; d < c_.replicas; ++d)
          all[at][chunk] = mix(all[at][chunk], gradients_[d][at][chunk]);
    return all;
  }
  symbol loss() const {
    symbol all = 0;
    for (const auto& of_replica : losses_)
      if (!of_replica.empty()) all = mix(all, hash_of(of_replica));
    return all;
  }

 private:
  void run_replica(replica_id d) {
    gradients_[d.value()].assign(weights_.size(), rank_state(c_.shape.chunks, 0));
    const auto microbatches = c_.microbatches_of(step_, d);
    losses_[d.value()].assign(microbatches, 0);
    for (std::uint32_t r = 0; r < c_.ranks; ++r)
      for (std::uint32_t mb = 0; mb < microbatches; ++mb)
        run_microbatch(d, rank_id{r}, microbatch_id{mb});
  }
  void run_microbatch(replica_id d, rank_id r, microbatch_id mb) {
    const auto& shape = c_.shape;
    const auto virtual_stages = shape.virtual_stages();
    inputs_.resize(virtual_stages);
    symbol value = symbols::data(run_, step_, d, mb, r);
    for (std::uint32_t v = 0; v < virtual_stages; ++v) {
      inputs_[v] = value;
      value = symbols::forward(weight(v, r), value);
    }
    if (r == rank_id{0}) losses_[d.value()][mb.value()] = value;
    auto gradient = symbols::first_gradient(value);
    for (auto v = virtual_stages; v-- > 0;) {
      const auto at = shape.at(virtual_stage_id{v});
      auto& sum = gradients_[d.value()][at.stage.value() * c_.ranks + r.value()][at.chunk.value()];
      sum = symbols::fold(sum, symbols::weight_gradient(inputs_[v], gradient));
      gradient = symbols::backward(weight(v, r), inputs_[v], gradient);
    }
  }
  symbol weight(std::uint32_t v, rank_id r) const {
    const auto at = c_.shape.at(virtual_stage_id{v});
    return weights_[at.stage.value() * c_.ranks + r.value()][at.chunk.value()];
  }

  const scenario& c_;
  const std::uint32_t run_;
  const step_id step_;
  const std::vector<rank_state>& weights_;
  std::vector<std::vector<rank_state>> gradients_;
  std::vector<std::vector<symbol>> losses_;
  std::vector<symbol> inputs_;
};

}  // namespace

std::string bytes_of(const rank_state& state) {
  return {reinterpret_cast<const char*>(state.data()), state.size() * sizeof(symbol)};
}

std::optional<rank_state> state_of(const std::string& bytes) {
  if (bytes.size() % sizeof(symbol) != 0) return std::nullopt;
  rank_state state(bytes.size() / sizeof(symbol));
  if (!state.empty()) std::memcpy(state.data(), bytes.data(), bytes.size());
  return state;
}

symbol hash_of(const std::vector<symbol>& values) {
  symbol all = 0;
  for (const auto v : values) all = mix(all, v);
  return all;
}

reference_run compute_reference(const scenario& c, std::uint32_t run) {
  reference_run made;
  std::vector<rank_state> now(c.stage_ranks(), rank_state(c.shape.chunks));
  for (std::uint32_t v = 0; v < c.shape.virtual_stages(); ++v)
    for (std::uint32_t r = 0; r < c.ranks; ++r) {
      const auto at = c.shape.at(virtual_stage_id{v});
      now[at.stage.value() * c.ranks + r][at.chunk.value()] =
          symbols::initial_weight(run, virtual_stage_id{v}, rank_id{r});
    }
  std::uint64_t evaluations = 0;
  made.states.push_back(now);
  made.losses.push_back(0);
  for (std::uint64_t step = 0; step < c.steps; ++step) {
    const reference_step ran{c, run, step_id{step}, now};
    const auto gradients = ran.gradients();
    symbol scale = 0;
    for (const auto& g : gradients) scale = mix(scale, hash_of(g));
    for (std::size_t at = 0; at < now.size(); ++at)
      for (std::size_t chunk = 0; chunk < now[at].size(); ++chunk)
        now[at][chunk] = symbols::updated(now[at][chunk], gradients[at][chunk], scale);
    made.losses.push_back(mix(made.losses.back(), ran.loss()));
    made.states.push_back(now);
    if (!c.evaluation) continue;
    const auto every = c.evaluation->every;
    if (step + 1 != c.steps && (every == 0 || (step + 1) % every != 0)) continue;
    symbol loss = 0;
    for (std::uint32_t b = 0; b < c.evaluation->batches; ++b)
      loss =
          mix(loss, reference_step{c, run, step_id{first_evaluation + evaluations++}, now}.loss());
    made.evaluations = mix(made.evaluations, loss);
  }
  for (const auto& state : now) made.weights = mix(made.weights, hash_of(state));
  return made;
}

}  // namespace rrfp::cluster
