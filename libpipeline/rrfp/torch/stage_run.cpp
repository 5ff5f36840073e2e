#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <rrfp/base/step_name.hpp>
#include <rrfp/torch/stage_compute.hpp>

#include "graph_split.hpp"

namespace rrfp::compute {

at::Tensor aligned(at::Tensor t) {
  constexpr std::uintptr_t alignment = 64;
  const auto address = reinterpret_cast<std::uintptr_t>(t.const_data_ptr());
  if (address % alignment == 0 && t.is_contiguous()) return t;
  auto copy = t.clone(at::MemoryFormat::Contiguous);
  memory_meter::drop(std::move(t));
  return copy;
}

const void* memory_of(const at::Tensor& t) {
  return t.defined() ? t.storage().unsafeGetStorageImpl()->data() : nullptr;
}

void prepare_compute_thread() { at::set_num_threads(1); }

void stage_compute::fail(compute_fault fault, const std::string& where,
                         const std::string& why) const {
  const auto when = is_training() ? to_string(step_.value_or(step_id{})) : "an evaluation";
  throw compute_error(fault, "stage " + std::to_string(config_.stage.value()) + ", " + where +
                                 " of " + when + ": " + why);
}

bool stage_compute::has_last_chunk() const {
  return std::any_of(chunks_.begin(), chunks_.end(),
                     [&](const chunk_state& c) { return config_.shape.is_last(c.vs); });
}

std::size_t stage_compute::held_microbatches() const {
  std::size_t held = 0;
  for (std::uint32_t mb = 0; mb < microbatches_; ++mb)
    held += std::any_of(chunks_.begin(), chunks_.end(), [&](const chunk_state& c) {
      return static_cast<bool>(c.microbatches[mb].stash);
    });
  return held;
}

void stage_compute::fail_for_memory(const std::string& where, const std::string& why) const {
  fail(compute_fault::memory, where,
       config_.device.str() + " is out of memory with " + std::to_string(held_microbatches()) +
           " slots held (" + why +
           "); lower dispatch.slots, data.microbatch_size or data.max_tokens, or set " +
           "pipeline.recompute = true");
}

void stage_compute::begin_step(step_id step, step_purpose purpose,
                               const microbatch_shares& microbatches) {
  RRFP_CHECK(!step_, "begin_step() before the previous step has ended");
  meter_.reset_peak();
  const auto replica = config_.replica;
  const auto each = config_.shape.microbatches;
  shares_ = microbatches;
  if (shares_.counts.empty()) shares_.counts = microbatch_counts::equal(replica.value() + 1, each);
  microbatches_ = shares_.of(replica);
  parts_ = shares_.parts_of(replica);
  is_sum_joined_ = false;
  opened_sum_.reset();
  losses_.assign(microbatches_, std::nullopt);
  late_losses_.clear();
  is_tie_joined_ = is_unscaled_ = false;
  for (auto& chunk : chunks_) {
    chunk.folded = chunk.part_folded = 0;
    chunk.part = 0;
    chunk.sums.clear();
    chunk.held.clear();
    chunk.microbatches.resize(microbatches_);
  }
  step_ = step;
  purpose_ = purpose;
  if (is_training()) find_trained();
  guarded(compute_fault::data, "begin",
          [&] { data_->begin(step, microbatches.counts.or_equal(1, microbatches_)); });
  if (!has_last_chunk()) return;
  step_tokens_ = guarded(compute_fault::data, "begin", [&] { return data_->step_tokens(step); });
  if (step_tokens_ <= 0) {
    fail(compute_fault::data, "begin",
         "expected step_tokens() > 0 from the batch source, got " + std::to_string(step_tokens_));
  }
}

void stage_compute::find_trained() {
  for (auto& chunk : chunks_) {
    chunk.trained.clear();
    chunk.is_trained.clear();
    for (const auto& p : chunk.module->parameters()) {
      const bool is_trained = p.value.requires_grad();
      const auto& tied = p.tied == tie::owner ? owner_ : copy_;
      if (p.tied != tie::none && is_trained != tied.defined())
        fail(compute_fault::library, "begin",
             "the tied parameter '" + p.name + "' was " + (is_trained ? "unfrozen" : "frozen") +
                 " after the stage was created: expected a requires_grad that does not change");
      if (!is_trained) continue;
      chunk.trained.push_back(p.value);
      chunk.is_trained.insert(p.value.unsafeGetTensorImpl());
    }
  }
}

tensor_buffer stage_compute::run(const launch& l, tensor_buffer input) {
  RRFP_CHECK(step_, "a launch outside a step");
  RRFP_CHECK(l.what.chunk.value() < chunks_.size(), "a launch of a chunk of another stage");
  RRFP_CHECK(l.what.mb.value() < microbatches_, "a launch of an unknown microbatch");
  auto given = to_tensor(input);
  input = {};
  const memory_meter::scope metering(meter_);
  const at::AutoGradMode with_grad(is_training());
  if (config_.group) config_.group->set_task(*step_, l);
  return to_buffer(guarded(compute_fault::library, to_string(l.what), [&] {
    return l.what.kind == task_kind::forward ? forward(l.what, std::move(given), l.pass)
                                             : run_backward(l, std::move(given));
  }));
}

/// Loads on the first request.
class stage_compute::lazy_microbatch final : public microbatch_view {
 public:
  lazy_microbatch(const stage_compute& stage, const task& t) : stage_(stage), task_(t) {}

  const microbatch& whole() override {
    if (!whole_) whole_ = stage_.load(task_, &batch_source::load);
    return *whole_;
  }
  const microbatch& text() override {
    if (whole_) return *whole_;
    if (!text_) text_ = stage_.load(task_, &batch_source::load_text);
    return *text_;
  }
  const microbatch_layout& layout() override {
    if (!layout_) layout_ = whole_ ? layout_of(*whole_) : stage_.load_layout(task_);
    return *layout_;
  }

 private:
  const stage_compute& stage_;
  task task_;
  std::optional<microbatch> whole_;
  std::optional<microbatch> text_;
  std::optional<microbatch_layout> layout_;
};

microbatch stage_compute::load(const task& t, load_function function) const {
  auto batch = guarded(compute_fault::data, to_string(t),
                       [&] { return std::invoke(function, *data_, *step_, in_all(t.mb)); });
  if (batch.tokens < 0)
    fail(compute_fault::data, to_string(t),
         "expected tokens >= 0 from the batch source, got " + std::to_string(batch.tokens));
  if (auto fits = chunks_[t.chunk.value()].module->check(batch); !fits)
    fail(compute_fault::data, to_string(t), fits.message());
  return to_device(std::move(batch));
}

at::Tensor stage_compute::to_device(const at::Tensor& t) const {
  if (!t.defined() || t.device() == config_.device) return t;
  // From pinned memory the copy is asynchronous: it runs in stream order without blocking the host.
  return t.pin_memory().to(config_.device, /*non_blocking=*/true);
}

microbatch stage_compute::to_device(microbatch mb) const {
  if (config_.device.is_cpu()) return mb;
  mb.inputs = to_device(mb.inputs);
  mb.targets = to_device(mb.targets);
  for (auto& image : mb.images) image = to_device(image);
  return mb;
}

microbatch_layout stage_compute::load_layout(const task& t) const {
  return guarded(compute_fault::data, to_string(t),
                 [&] { return data_->layout(*step_, in_all(t.mb)); });
}

at::Tensor stage_compute::forward(const task& t, at::Tensor input, forward_pass pass) {
  auto& chunk = chunks_[t.chunk.value()];
  auto& mb = chunk.microbatches[t.mb.value()];
  RRFP_CHECK(!mb.stash && t.mb.value() >= chunk.folded, "an F that has not run in this step");
  const bool is_first = config_.shape.is_first(chunk.vs);
  const bool is_again = pass == forward_pass::again;
  RRFP_CHECK((is_first || is_again) != input.defined(), "every chunk but the first gets its input");
  if (input.defined()) {
    mb.input = meter_.take_in(aligned(std::move(input)));
    if (is_training()) {
      // A view: of another leaf, autocast keeps the cast, as of a weight, and adds the gradients of
      // its uses in the lower precision. In a plain loop this tensor is no leaf.
      const at::NoGradGuard no_grad;
      mb.input = mb.input.view_as(mb.input).requires_grad_();
    }
  }
  if (pass != forward_pass::early)
    mb.stash.reset(c10::make_intrusive<weight_stash>(&meter_).release());
  mb.is_backward_done = false;
  mb.backward_ns = 0;

  lazy_microbatch batch(*this, t);
  at::Tensor out;
  if (config_.recompute || !is_training() || pass == forward_pass::early) {
    // In training still with a graph, which ends here: without one some operators (RNN layers) use
    // other kernels, and a forward may ask for the mode. There is no memory for one in an early
    // pass, which modules of a program do not have.
    const at::AutoGradMode with_graph(is_training() && pass != forward_pass::early);
    const auto unused = c10::make_intrusive<weight_stash>();
    out = call_module(chunk, t, mb.input, *unused, batch);
  } else {
    out = call_module(chunk, t, mb.input, *mb.stash, batch);
    keep_root(chunk, mb, t, out);
  }
  if (is_again) return {};
  if (config_.shape.is_last(chunk.vs)) {
    record_loss(t, out, batch.text().tokens);
    mb.loss_type = out.scalar_type();
    return {};
  }
  out = owned(out.detach().contiguous(), memory_of(mb.input));
  meter_.hand_out(out);
  return out;
}

void stage_compute::recompute(chunk_state& chunk, in_flight& mb, const task& t) const {
  lazy_microbatch batch(*this, t);
  keep_root(chunk, mb, t, call_module(chunk, t, mb.input, *mb.stash, batch));
}

void stage_compute::keep_root(const chunk_state& chunk, in_flight& mb, const task& t,
                              const at::Tensor& out) const {
  mb.root = torch::autograd::impl::gradient_edge(out);
  mb.has_ordinary_matrix = false;
  if (!mb.root.is_valid()) return;
  for (const auto& leaf : leaves_of(mb.root, mb.stash->anchor())) {
    if (mb.input.defined() && leaf.value.is_same(mb.input)) continue;
    if (!chunk.is_trained.contains(leaf.value.unsafeGetTensorImpl()))
      fail(compute_fault::library, to_string(t),
           c10::str("forward uses a leaf that is not trained here: ", leaf.value.scalar_type(), " ",
                    leaf.value.sizes()) +
               "; expected each leaf that requires a gradient to be a parameter of its part of the "
               "model, or to be detached");
    if (!leaf.is_ordinary) continue;
    mb.stash->leave_to_graph(leaf.value);
    mb.has_ordinary_matrix = mb.has_ordinary_matrix || leaf.value.dim() >= 2;
  }
}

at::Tensor stage_compute::owned(const at::Tensor& out, const void* given) const {
  const bool is_given = given != nullptr && memory_of(out) == given;
  return is_given && !config_.device.is_cpu() ? out.clone() : out;
}

at::Tensor stage_compute::call_module(chunk_state& chunk, const task& t, const at::Tensor& input,
                                      weight_stash& stash, microbatch_view& batch) const {
  forward_input in;
  in.input = config_.shape.is_first(chunk.vs) ? batch.text().inputs : input;
  if (config_.shape.is_last(chunk.vs)) in.targets = batch.text().targets;
  in.step = *step_;
  in.mb = in_all(t.mb);
  in.stash = &stash;
  in.batch = &batch;
  in.training = is_training();
  return chunk.module->forward(in);
}

void stage_compute::record_loss(const task& t, const at::Tensor& sum, std::int64_t tokens) {
  if (!sum.defined() || sum.dim() != 0) {
    fail(compute_fault::library, to_string(t),
         "the last chunk must return a scalar, the sum of its token losses");
  }
  // Reading it from a device would wait for all work in the stream.
  if (!sum.is_cpu()) return late_losses_.push_back({t, sum.detach(), tokens});
  store_loss(t, sum.item<double>(), tokens);
}

void stage_compute::read_late_losses() const {
  guarded(compute_fault::library, "losses", [&] {
    for (const auto& late : std::exchange(late_losses_, {}))
      store_loss(late.source, late.sum.item<double>(), late.tokens);
  });
}

void stage_compute::store_loss(const task& t, double value, std::int64_t tokens) const {
  if (!std::isfinite(value) && !scaler_.is_on()) {
    fail(compute_fault::non_finite_loss, to_string(t),
         "the loss of microbatch " + std::to_string(t.mb.value()) + " is " + std::to_string(value) +
             ": training has diverged, or its data is unusable");
  }
  const double mean = tokens > 0 ? value / static_cast<double>(tokens) : 0;
  losses_[t.mb.value()] = microbatch_loss{t.mb, mean, tokens};
}

void stage_compute::require_folded() const {
  RRFP_CHECK(step_, "the end of a step that has not begun");
  for (const auto& chunk : chunks_) {
    RRFP_CHECK(chunk.folded == microbatches_, "the step is not complete");
  }
}

at::Tensor sum_of_sides(const at::Tensor& owner, const at::Tensor& copy) {
  if (owner.defined() && copy.defined()) return owner.add(copy);
  const auto& only = owner.defined() ? owner : copy;
  return only.defined() ? only.clone() : at::Tensor{};
}

void stage_compute::agree_on_gradients(rank_group& group,
                                       const std::vector<at::Tensor>& parameters) {
  std::vector<std::int64_t> has;
  for (const auto& p : parameters) has.push_back(p.grad().defined() ? 1 : 0);
  auto of_any = at::tensor(has, at::kLong).to(config_.device);
  all_reduce_max(group, of_any);
  const auto answers = of_any.cpu();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    auto& gradient = parameters[i].mutable_grad();
    if (gradient.defined() || answers.const_data_ptr<std::int64_t>()[i] == 0) continue;
    gradient = at::zeros_like(parameters[i], at::MemoryFormat::Contiguous);
    meter_.hand_out(gradient);
  }
}

/// Both sides of the tie are on this stage: computes the same sum as across stages.
void stage_compute::join_local_tie() {
  if (is_tie_joined_ || !owner_.defined() || !copy_.defined()) return;
  is_tie_joined_ = true;
  auto sum = sum_of_sides(owner_.grad(), copy_.grad());
  if (!sum.defined()) return;
  copy_.mutable_grad() = sum.clone();
  owner_.mutable_grad() = std::move(sum);
}

void stage_compute::unscale() {
  if (!scaler_.is_on() || !is_training() || std::exchange(is_unscaled_, true)) return;
  const at::NoGradGuard no_grad;
  // In float, as GradScaler does.
  const auto inverse = static_cast<float>(1 / scaler_.scale());
  for (const auto& t : parameters_)
    if (auto& gradient = t.p.value.mutable_grad(); gradient.defined()) gradient.mul_(inverse);
}

void stage_compute::apply(double scale, double lr) {
  require_folded();
  join_local_tie();
  RRFP_CHECK(is_tie_joined_ || owner_.defined() == copy_.defined(),
             "the tied gradient must be joined before the step is applied");
  const bool is_skipped = scale == 0;
  guarded(compute_fault::library, "apply", [&] {
    if (is_skipped) return;
    const at::NoGradGuard no_grad;
    for (const auto& t : parameters_) {
      auto& gradient = t.p.value.mutable_grad();
      if (gradient.defined() && scale != 1) gradient.mul_(scale);
    }
    named("optimizer::step()", std::function{[&] { optimizer_->step(lr); }})();
  });
  scaler_.update(is_skipped);
  for (const auto& t : parameters_) t.p.value.mutable_grad().reset();
  step_.reset();
}

void stage_compute::end_without_update() {
  require_folded();
  RRFP_CHECK(purpose_ != step_purpose::training, "a training step ends with apply()");
  step_.reset();
}

}  // namespace rrfp::compute
