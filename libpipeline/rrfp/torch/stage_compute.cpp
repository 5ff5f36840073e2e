#include <algorithm>
#include <functional>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <rrfp/compute/user_functions.hpp>
#include <rrfp/torch/stage_compute.hpp>

#include <xxhash.h>

namespace rrfp::compute {

namespace {

/// Makes the first call of an MKL vector function (sqrt, exp, ...), in which MKL selects the
/// kernels for the processor. Before oneMKL 2025 that selection has a race: other threads may once
/// use kernels of lower accuracy.
void initialize_vector_kernels() {
  static std::once_flag once;
  std::call_once(once, [] { static_cast<void>(at::ones({1}, at::kFloat).sqrt()); });
}

std::uint64_t hash_of(const at::Tensor& value) {
  const auto bytes = value.detach().cpu().contiguous();
  return XXH64(bytes.const_data_ptr(), bytes.nbytes(), 0);
}

/// In place, because the layers hold references to the same tensors.
void move_state(const stage_module& chunk, at::Device device) {
  const auto move = [&](const at::Tensor& value) {
    if (value.device() != device) value.set_data(value.detach().to(device));
  };
  for (const auto& p : chunk.parameters()) move(p.value);
  for (const auto& b : chunk.buffers()) move(b.value);
}

/// The state of the loss scale, the same on all ranks.
const std::string scale_name = std::string{optimizer_prefix} + "loss_scale",
                  good_steps_name = std::string{optimizer_prefix} + "loss_scale_steps";

/// "optimizer.model.norm.weight.exp_avg"
std::string name_of_state(const parameter& p, const std::string& state_name) {
  return std::string{optimizer_prefix} + p.name + "." + state_name;
}

using pieces_by_name = std::unordered_map<std::string, std::vector<const named_tensor*>>;

/// The names of the optimizer's state tensors, by parameter. A parameter that had no step has none.
std::unordered_map<std::string, std::set<std::string>> states_by_parameter(
    const pieces_by_name& state) {
  std::unordered_map<std::string, std::set<std::string>> all;
  for (const auto& [name, pieces] : state) {
    const auto dot = name.rfind('.');
    if (!name.starts_with(optimizer_prefix) || dot < optimizer_prefix.size()) continue;
    all[name.substr(optimizer_prefix.size(), dot - optimizer_prefix.size())].insert(
        name.substr(dot + 1));
  }
  return all;
}

/// The saved value for `like`, which is `part` of the logical tensor `name`; assembled from the
/// saved pieces if their parts differ. Error: a piece is missing or has another shape or type.
result<at::Tensor> find(const pieces_by_name& state, const std::string& name,
                        const at::Tensor& like, const std::optional<shard>& part) {
  const auto it = state.find(name);
  if (it == state.end()) return error{"the checkpoint lacks '" + name + "'"};
  const auto wanted = part ? at::IntArrayRef(part->whole) : like.sizes();
  const auto* same_part = static_cast<const named_tensor*>(nullptr);
  for (const auto* piece : it->second) {
    const auto sizes = piece->part ? at::IntArrayRef(piece->part->whole) : piece->value.sizes();
    if (!sizes.equals(wanted) || piece->value.scalar_type() != like.scalar_type()) {
      return error{"the checkpoint's '" + name + "' is " + piece->value.toString() + " " +
                   c10::str(sizes) + ", but the model's is " + like.toString() + " " +
                   c10::str(wanted)};
    }
    if (piece->part == part) same_part = piece;
  }
  if (same_part != nullptr) return same_part->value;

  const auto& first = it->second.front()->part;
  const auto dimension = part ? part->dimension : first->dimension;
  const auto whole = even_shard(wanted.vec(), dimension, 1, 0, 1);
  const auto to = part.value_or(whole);
  auto joined = at::empty(like.sizes(), like.options().requires_grad(false));
  std::int64_t found = 0;
  std::vector<shard> seen;  // replicas of the pipeline write the same parts
  for (const auto* piece : it->second) {
    const auto from = piece->part.value_or(whole);
    if (std::find(seen.begin(), seen.end(), from) != seen.end()) continue;
    seen.push_back(from);
    found += copy_overlap(piece->value, from, joined, to);
  }
  if (found == joined.numel()) return joined;
  return error{"the checkpoint's parts of '" + name + "' hold " + std::to_string(found) +
               " of the " + std::to_string(joined.numel()) + " elements that this rank needs"};
}

template <class... Words>
void require(bool holds, const Words&... otherwise) {
  if (!holds) throw std::runtime_error(c10::str(otherwise...));
}

}  // namespace

stage_compute::stage_compute(const stage_compute_config& config,
                             std::vector<std::unique_ptr<stage_module>> chunks,
                             std::shared_ptr<const batch_source> data)
    : config_(config), data_(std::move(data)), scaler_(config.train) {
  for (std::uint32_t c = 0; c < chunks.size(); ++c) {
    auto& chunk = chunks_.emplace_back();
    chunk.module = std::move(chunks[c]);
    chunk.vs = config_.shape.virtual_stage(config_.stage, chunk_id{c});
    // With every placement the chunks of a stage are numbered along the model.
    std::uint32_t index = 0;
    for (const auto& p : chunk.module->parameters())
      parameters_.push_back({p, {chunk.vs.value(), index++, p.part ? rank() : 0}});
  }
  std::vector<parameter> all;
  std::vector<at::Tensor> values;
  for (const auto& [p, at] : parameters_) {
    all.push_back(p);
    values.push_back(p.value);
    if (p.tied == tie::owner && p.value.requires_grad()) owner_ = p.value;
    if (p.tied == tie::copy && p.value.requires_grad()) copy_ = p.value;
  }
  optimizer_ = config_.make_optimizer ? config_.make_optimizer(all)
                                      : make_optimizer(config_.train, std::move(values));
}

result<std::unique_ptr<stage_compute>> stage_compute::make(
    const stage_compute_config& config, std::vector<std::unique_ptr<stage_module>> chunks,
    std::shared_ptr<const batch_source> data) {
  initialize_vector_kernels();
  if (auto ok = config.shape.validate(); !ok) return ok.failure();
  if (config.stage.value() >= config.shape.stages) {
    return error{"stage " + std::to_string(config.stage.value()) + " of " +
                 std::to_string(config.shape.stages) + " does not exist"};
  }
  if (chunks.size() != config.shape.chunks) {
    return error{"expected " + std::to_string(config.shape.chunks) + " chunks in a stage, got " +
                 std::to_string(chunks.size())};
  }
  if (data == nullptr) return error{"a stage needs a batch source"};
  try {
    for (const auto& chunk : chunks) move_state(*chunk, config.device);
  } catch (const c10::Error& e) {
    return error{"its parameters do not fit on " + config.device.str() + ": " + first_line_of(e)};
  }
  std::set<std::pair<std::string, bool>> names;
  for (const auto& chunk : chunks) {
    for (const auto& p : chunk->parameters()) {
      if (!names.emplace(p.name, p.tied == tie::copy).second) {
        return error{"two parameters are named '" + p.name + "'"};
      }
    }
    for (const auto& b : chunk->buffers())
      if (!names.emplace(b.name, false).second)
        return error{"a buffer and another tensor are named '" + b.name + "'"};
    if (config.recompute && chunk->forwards_in_order())
      return error{
          "its forward changes buffers, so it may run only once: expected pipeline.recompute = "
          "false"};
  }
  std::unique_ptr<stage_compute> made(
      new stage_compute(config, std::move(chunks), std::move(data)));
  if (made->optimizer_ == nullptr) return error{"make_optimizer gave no optimizer"};
  return made;
}

void stage_compute::fail_input(const std::string& input, const std::string& why) const {
  guarded(compute_fault::library, input, [&] { throw std::runtime_error(why); });
}

std::vector<microbatch_loss> stage_compute::losses() const {
  read_late_losses();
  std::vector<microbatch_loss> done;
  for (const auto& loss : losses_) {
    if (loss) done.push_back(*loss);
  }
  return done;
}

std::optional<tensor_buffer> stage_compute::take_opened_sum() {
  if (!opened_sum_.defined()) return std::nullopt;
  return to_buffer(std::exchange(opened_sum_, at::Tensor{}));
}

void stage_compute::join_opened_sum(const tensor_buffer& sum) {
  guarded(compute_fault::library, "the gradient sum of another replica",
          [&] { add_opened_sum(to_tensor(sum)); });
}

void stage_compute::sum_gradients(rank_group& replicas) {
  require_folded();
  if (!shares_.are_own()) return sum_shared_gradients(replicas);
  std::vector<at::Tensor> all;
  for (const auto& t : parameters_) all.push_back(t.p.value);
  agree_on_gradients(replicas, all);
  for (const auto& p : all)
    if (auto& gradient = p.mutable_grad(); gradient.defined()) all_reduce_sum(replicas, gradient);
}

bool stage_compute::forwards_in_order() const {
  return std::any_of(chunks_.begin(), chunks_.end(),
                     [](const auto& chunk) { return chunk.module->forwards_in_order(); });
}

tie stage_compute::tied_side() const {
  if (owner_.defined() == copy_.defined()) return tie::none;
  return owner_.defined() ? tie::owner : tie::copy;
}

std::optional<tensor_buffer> stage_compute::tied_gradient() const {
  require_folded();
  if (tied_side() == tie::none) return std::nullopt;
  const auto& gradient = (owner_.defined() ? owner_ : copy_).grad();
  return to_buffer(gradient.defined() ? gradient.contiguous() : no_gradient(config_.device));
}

void stage_compute::join_tied(const tensor_buffer& sent) {
  const auto partner = to_tensor(sent);
  require_folded();
  RRFP_CHECK(tied_side() != tie::none && !is_tie_joined_,
             "a tie across stages that is not joined yet");
  const bool is_owner = owner_.defined();
  auto& mine = (is_owner ? owner_ : copy_).mutable_grad();
  const auto theirs = is_no_gradient(partner) ? at::Tensor{} : partner;
  mine = guarded(compute_fault::library, "the join of tied gradients", [&] {
    return is_owner ? sum_of_sides(mine, theirs) : sum_of_sides(theirs, mine);
  });
  is_tie_joined_ = true;
}

std::vector<parameter_norm> stage_compute::squared_norms() {
  require_folded();
  join_local_tie();
  RRFP_CHECK(is_tie_joined_ || tied_side() == tie::none, "the tied gradient must be joined first");
  unscale();
  std::vector<parameter_norm> norms;
  std::vector<at::Tensor> squares;
  for (const auto& t : parameters_) {
    const auto& gradient = t.p.value.grad();
    if (!reports(t.p) || !gradient.defined()) continue;
    norms.push_back({t.at, 0});
    squares.push_back(guarded(compute_fault::library, "the norms",
                              [&] { return gradient.to(at::kDouble).square().sum(); }));
  }
  if (squares.empty()) return norms;
  // Read all norms at once, to synchronise with the device only once.
  const auto numbers = at::stack(squares).cpu();
  for (std::size_t i = 0; i < norms.size(); ++i)
    norms[i].squared = numbers.const_data_ptr<double>()[i];
  return norms;
}

std::vector<parameter_hash> stage_compute::hashes() const {
  std::vector<parameter_hash> all;
  for (const auto& t : parameters_) {
    if (reports(t.p)) all.push_back({t.at, hash_of(t.p.value)});
  }
  return all;
}

std::vector<named_tensor> stage_compute::weights(tied_copies copies) const {
  std::vector<named_tensor> all;
  for (const auto& t : parameters_) {
    if (t.p.tied != tie::copy || copies == tied_copies::included)
      all.push_back({t.p.name, t.p.value.detach(), t.p.part, t.p.stored});
  }
  return all;
}

std::vector<named_tensor> stage_compute::snapshot(tied_copies copies) const {
  RRFP_CHECK(!step_, "a snapshot in the middle of a step");
  auto all = weights(copies);
  // Copies, because the forwards of the next step change them, not its end alone.
  for (const auto& chunk : chunks_)
    for (const auto& b : chunk.module->buffers()) all.push_back({b.name, b.value.detach().clone()});
  const auto state =
      named("optimizer::state()", std::function{[&] { return optimizer_->state(); }});
  for (const auto& t : state()) {
    require(t.parameter < parameters_.size() && t.value.defined(),
            "optimizer::state(): expected tensors of parameters below ", parameters_.size(),
            ", got ", t.value.defined() ? "one" : "an undefined tensor", " of parameter ",
            t.parameter);
    const auto& p = parameters_[t.parameter].p;
    if (p.tied == tie::copy && copies == tied_copies::left_out) continue;
    const bool is_scalar = t.value.dim() == 0;
    require(t.name.find('.') == std::string::npos, "the state '", t.name,
            "' of the optimizer: expected a name without a dot");
    require(!p.part || is_scalar || t.value.sizes().equals(p.value.sizes()), "the state '", t.name,
            "' of '", p.name, "', which is cut over the ranks: expected a scalar or ",
            p.value.sizes(), ", got ", t.value.sizes());
    all.push_back({name_of_state(p, t.name), t.value, is_scalar ? std::nullopt : p.part});
  }
  if (scaler_.is_on()) {
    all.push_back({scale_name, at::scalar_tensor(scaler_.scale(), at::kDouble)});
    all.push_back({good_steps_name, at::scalar_tensor(scaler_.good_steps(), at::kLong)});
  }
  return all;
}

std::vector<named_buffer> stage_compute::snapshot(tied_copies copies,
                                                  snapshot_memory memory) const {
  std::vector<named_buffer> all;
  for (auto& t : snapshot(copies)) {
    if (memory == snapshot_memory::copied || !t.value.is_cpu() || !t.value.is_contiguous())
      t.value = host_copy_of(t.value);
    all.push_back(to_buffer(std::move(t)));
  }
  return all;
}

std::vector<std::string> stage_compute::names() const {
  std::vector<std::string> all;
  for (auto& t : snapshot()) all.push_back(std::move(t.name));
  return all;
}

/// Values of `state` for this rank.
struct stage_compute::matching {
  std::vector<std::pair<at::Tensor, at::Tensor>> values;  ///< the rank's tensor, its value
  std::optional<std::pair<double, std::int64_t>> scale;   ///< and good steps
  std::vector<optimizer_tensor> optimizer;
};

result<stage_compute::matching> stage_compute::match(std::span<const named_buffer> state) const {
  const auto tensors = to_tensors(state);
  pieces_by_name by_name;
  for (const auto& t : tensors) by_name[t.name].push_back(&t);
  matching all;
  for (const auto& t : parameters_) {
    auto value = find(by_name, t.p.name, t.p.value, t.p.part);
    if (!value) return value.failure();
    all.values.emplace_back(t.p.value, std::move(*value));
  }
  for (const auto& chunk : chunks_)
    for (const auto& b : chunk.module->buffers()) {
      auto value = find(by_name, b.name, b.value, std::nullopt);
      if (!value) return value.failure();
      all.values.emplace_back(b.value, std::move(*value));
    }
  // A training may begin to scale its loss later.
  if (scaler_.is_on() && by_name.contains(scale_name)) {
    const auto scale = find(by_name, scale_name, at::empty({}, at::kDouble), std::nullopt);
    if (!scale) return scale.failure();
    const auto steps = find(by_name, good_steps_name, at::empty({}, at::kLong), std::nullopt);
    if (!steps) return steps.failure();
    all.scale.emplace(scale->item<double>(), steps->item<std::int64_t>());
  }
  const auto states = states_by_parameter(by_name);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& p = parameters_[i].p;
    const auto of_parameter = states.find(p.name);
    if (of_parameter == states.end()) continue;
    for (const auto& its_name : of_parameter->second) {
      const auto name = name_of_state(p, its_name);
      const auto& saved = *by_name.at(name).front();
      const auto whole = p.part ? at::IntArrayRef(p.part->whole) : p.value.sizes();
      if (!saved.part && !saved.value.sizes().equals(whole)) {
        all.optimizer.push_back({i, its_name, saved.value});
        continue;
      }
      auto value = find(by_name, name, p.value.detach().to(saved.value.scalar_type()), p.part);
      if (!value) return value.failure();
      all.optimizer.push_back({i, its_name, std::move(*value)});
    }
  }
  return all;
}

status stage_compute::fits(std::span<const named_buffer> state) const {
  const auto found = match(state);
  if (!found) return found.failure();
  const auto takes =
      named("optimizer::fits()", std::function{[&] { return optimizer_->fits(found->optimizer); }});
  const auto taken = takes();
  return taken ? success() : within("the optimizer's state", taken.failure());
}

status stage_compute::restore(std::span<const named_buffer> state) {
  RRFP_CHECK(!step_, "a restore in the middle of a step");
  const auto found = match(state);
  if (!found) return found.failure();
  const at::NoGradGuard no_grad;
  for (const auto& [mine, value] : found->values) mine.copy_(value);
  if (found->scale) scaler_.restore(found->scale->first, found->scale->second);
  const auto set_state =
      named("optimizer::set_state()",
            std::function{[&] { return optimizer_->set_state(found->optimizer); }});
  const auto taken = set_state();
  return taken ? success() : within("the optimizer's state", taken.failure());
}

}  // namespace rrfp::compute
