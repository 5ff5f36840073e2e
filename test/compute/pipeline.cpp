#include "pipeline.hpp"

#include <ATen/ATen.h>

#include <rrfp/job/model_rules.hpp>
#include <rrfp/torch/model.hpp>

namespace rrfp::compute::test {

pipeline::pipeline(const job::model_options& model, const job::train_options& train,
                   const pipeline_shape& shape, std::shared_ptr<const batch_source> data,
                   pipeline_options options)
    : shape_(shape),
      clip_norm_(train.clip_norm),
      options_(std::move(options)),
      random_(options_.order_seed) {
  prepare_compute_thread();
  if (options_.cut.empty())
    options_.cut = job::even_cut(job::all_layers_of(model), shape.virtual_stages());
  for (std::uint32_t s = 0; s < shape.stages; ++s) {
    std::vector<std::unique_ptr<stage_module>> chunks;
    for (std::uint32_t c = 0; c < shape.chunks; ++c) {
      const auto vs = shape.virtual_stage(stage_id{s}, chunk_id{c});
      chunks.push_back(
          make_model_chunk(model, layers_of(options_.cut, vs), train.seed, options_.group).value());
      if (options_.prepare) options_.prepare(*chunks.back());
    }
    stage_compute_config config{shape, stage_id{s}, train, options_.group};
    config.recompute = options_.recompute;
    stages_.push_back(stage_compute::make(config, std::move(chunks), data).value());
  }
}

void pipeline::add_tasks() {
  for (std::uint32_t mb = 0; mb < shape_.microbatches; ++mb) {
    for (std::uint32_t vs = 0; vs < shape_.virtual_stages(); ++vs) {
      const auto at = shape_.at(virtual_stage_id{vs});
      const auto add = [&](task_kind kind) {
        tasks_.push_back({at.stage, {kind, microbatch_id{mb}, at.chunk}});
      };
      add(task_kind::forward);
      const bool is_split = options_.backward == split::mixed ? random_() % 2 == 0
                                                              : options_.backward == split::split;
      add(is_split ? task_kind::backward : task_kind::backward_weight);
      if (is_split) add(task_kind::weight);
    }
  }
}

bool pipeline::is_ready(const todo& t) const {
  const auto vs = shape_.virtual_stage(t.stage, t.what.chunk);
  const place here{vs.value(), t.what.mb.value()};
  switch (t.what.kind) {
    case task_kind::forward:
      return t.pass == forward_pass::again || shape_.is_first(vs) || activations_.contains(here);
    case task_kind::backward:
    case task_kind::backward_weight:
      return is_forward_done_.contains(here) && (shape_.is_last(vs) || gradients_.contains(here));
    case task_kind::weight: return is_backward_done_.contains(here);
  }
  return false;
}

/// The task that closes a gap also folds all completed microbatches after it.
fold_range pipeline::folds_after(place at) {
  is_weight_ready_[at] = true;
  auto& next = folded_[at.first];
  fold_range range{microbatch_id{next}, 0};
  while (is_weight_ready_.contains({at.first, next})) {
    ++next;
    ++range.count;
  }
  return range;
}

/// Runs all pieces of a W but the last one.
void pipeline::run_pieces(stage_compute& stage, launch& l) {
  const auto folds = std::exchange(l.folds, {l.what.mb, 0});
  l.piece.count = 1 + random_() % 4;
  for (; !l.piece.is_last(); ++l.piece.number) stage.run(l, {});
  l.folds = folds;
}

void pipeline::run(const todo& t) {
  const auto vs = shape_.virtual_stage(t.stage, t.what.chunk);
  const place here{vs.value(), t.what.mb.value()};
  launch l;
  l.what = t.what;
  l.pass = t.pass;
  at::Tensor input;
  if (t.what.kind == task_kind::forward && !shape_.is_last(vs) && !options_.one_by_one &&
      t.pass == forward_pass::once && random_() % 4 == 0) {
    l.pass = forward_pass::early;
    tasks_.push_back({t.stage, t.what, forward_pass::again});
  }
  const bool takes_input = l.pass != forward_pass::again;
  if (t.what.kind == task_kind::forward && !shape_.is_first(vs) && takes_input)
    input = activations_.extract(here).mapped();
  if (is_backward(t.what.kind) && !shape_.is_last(vs)) input = gradients_.extract(here).mapped();
  if (has_weight(t.what.kind)) l.folds = folds_after(here);
  auto& stage = *stages_[t.stage.value()];
  if (t.what.kind == task_kind::weight && l.folds.count > 0) run_pieces(stage, l);
  const auto out = to_tensor(stage.run(l, to_buffer(std::move(input))));
  if (t.what.kind == task_kind::forward) {
    if (l.ends_task()) is_forward_done_[here] = true;
    if (out.defined()) activations_[{here.first + 1, here.second}] = out;
  } else if (is_backward(t.what.kind)) {
    is_backward_done_[here] = true;
    if (out.defined()) gradients_[{here.first - 1, here.second}] = out;
  }
}

void pipeline::run_tasks(step_id step) {
  tasks_.clear();
  is_forward_done_.clear();
  is_backward_done_.clear();
  is_weight_ready_.clear();
  folded_.clear();
  for (auto& s : stages_) s->begin_step(step);
  add_tasks();
  while (!tasks_.empty()) {
    std::vector<std::size_t> ready;
    for (std::size_t i = 0; i < tasks_.size(); ++i) {
      if (is_ready(tasks_[i])) ready.push_back(i);
    }
    RRFP_CHECK(!ready.empty(), "the test's pipeline is stuck");
    const auto chosen = options_.one_by_one ? ready.front() : ready[random_() % ready.size()];
    const auto t = tasks_[chosen];
    tasks_.erase(tasks_.begin() + static_cast<std::ptrdiff_t>(chosen));
    run(t);
  }
}

double pipeline::finish(double lr) {
  stage_compute* owner = nullptr;
  stage_compute* copy = nullptr;
  for (auto& s : stages_) {
    if (s->tied_side() == tie::owner) owner = s.get();
    if (s->tied_side() == tie::copy) copy = s.get();
  }
  if (owner != nullptr) {
    // Passed without a copy: the join on one side must not change the tensor of the other.
    const auto of_owner = *owner->tied_gradient();
    const auto of_copy = *copy->tied_gradient();
    owner->join_tied(of_copy);
    copy->join_tied(of_owner);
  }
  std::vector<parameter_norm> norms;
  // Backwards: the order of the reports must not matter.
  for (auto s = stages_.rbegin(); s != stages_.rend(); ++s) {
    const auto of_stage = (*s)->squared_norms();
    norms.insert(norms.end(), of_stage.begin(), of_stage.end());
  }
  if (options_.gather_norms) norms = options_.gather_norms(std::move(norms));
  const auto norm = clip_gradients(std::move(norms), clip_norm_).value();
  for (auto& s : stages_) s->apply(norm.scale, lr);
  return norm.norm;
}

std::vector<double> pipeline::losses() const {
  std::vector<double> all;
  for (const auto& s : stages_) {
    for (const auto& loss : s->losses()) all.push_back(loss.mean);
  }
  return all;
}

std::map<std::string, at::Tensor> pipeline::weights() const {
  std::map<std::string, at::Tensor> all;
  for (const auto& s : stages_) {
    for (const auto& w : s->weights()) all.emplace(w.name, w.value.clone());
  }
  return all;
}

std::vector<parameter_hash> pipeline::hashes() const {
  std::vector<parameter_hash> all;
  for (const auto& s : stages_) {
    const auto of_stage = s->hashes();
    all.insert(all.end(), of_stage.begin(), of_stage.end());
  }
  return all;
}

std::uint64_t pipeline::hash() const { return hash_of_model(hashes()); }

std::vector<named_tensor> pipeline::snapshot() const {
  std::vector<named_tensor> all;
  for (const auto& s : stages_) {
    for (auto& t : s->snapshot()) all.push_back({t.name, t.value.clone(), t.part});
  }
  return all;
}

std::vector<named_buffer> to_buffers(const std::vector<named_tensor>& all) {
  std::vector<named_buffer> buffers;
  for (const auto& t : all) buffers.push_back(to_buffer(t));
  return buffers;
}

training_result train_in_stages(const job::model_options& model, const job::train_options& train,
                                const pipeline_shape& shape,
                                std::shared_ptr<const batch_source> data, std::uint64_t steps,
                                pipeline_options options) {
  pipeline p(model, train, shape, std::move(data), options);
  training_result result;
  for (std::uint64_t step = 0; step < steps; ++step) {
    p.run_tasks(step_id{step});
    const auto losses = p.losses();
    result.losses.insert(result.losses.end(), losses.begin(), losses.end());
    result.norms.push_back(p.finish(train.lr));
  }
  result.weights = p.weights();
  return result;
}

}  // namespace rrfp::compute::test
