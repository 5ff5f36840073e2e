#include <ATen/ATen.h>
#include <fmt/format.h>

#include <rrfp/compute/user_functions.hpp>
#include <rrfp/keyed_generator.hpp>
#include <rrfp/torch/tensors.hpp>
#include <rrfp/version.hpp>

#include "batches.hpp"
#include "pipeline_impl.hpp"

namespace rrfp {

namespace {

using compute::step_purpose;

step_purpose purpose_of(const step_options& how) {
  return how.update ? step_purpose::training : step_purpose::accumulation;
}

job::job with_averages(job::job j, bool counts_terms) {
  if (counts_terms) j.train.averages_accumulation = true;
  return j;
}

}  // namespace

pipeline::impl::impl(job::job j, pipeline_options options)
    : job_(with_averages(std::move(j), options.count != nullptr)), options_(std::move(options)) {
  if (!options_.count) options_.count = [](const at::Tensor& target) { return target.size(0); };
  options_.count = named("count", std::move(options_.count));
  loop_ = std::make_shared<actors::training_loop>(
      job_, actors::loop_options{.place = options_.place,
                                 .version = version,
                                 .hooks = {.on_step = options_.on_step,
                                           .on_checkpoint = options_.on_checkpoint,
                                           .on_report = options_.on_report,
                                           .on_note = options_.on_note,
                                           .before_ranks = [this] { data_->clear(); }}});
  data_ = std::make_shared<fed_source>();
  model_ = std::make_unique<model_parts>(options_, job_.train.seed, data_);
}

result<std::unique_lock<std::mutex>> pipeline::impl::begin_call() {
  if (forward_scope::is_open())
    return error{
        "the pipeline was called inside a forward, a loss or a keyed_generator: expected a call "
        "from outside"};
  return loop_->begin_call();
}

result<microbatch_counts> pipeline::impl::counts_of(std::size_t microbatches,
                                                    const step_options& how) const {
  const auto replicas = job_.pipeline.replicas;
  microbatch_counts counts{how.microbatches};
  if (counts.empty())
    for (std::uint32_t r = 0; r < replicas; ++r)
      counts.by_replica.push_back(
          static_cast<std::uint32_t>((microbatches + replicas - 1 - r) / replicas));
  if (microbatches == 0) return error{"expected at least 1 microbatch, got 0"};
  if (counts.total() != microbatches)
    return error{fmt::format("expected {} microbatches, got {}", counts.total(), microbatches)};
  return counts;
}

result<step_result> pipeline::impl::pass(step_purpose purpose,
                                         std::vector<compute::microbatch> microbatches,
                                         step_options how) {
  if (auto call = begin_call(); !call) return call.failure();
  auto counts = counts_of(microbatches.size(), how);
  if (!counts) return counts.failure();
  if (is_emulated() && how.return_outputs)
    return error{"return_outputs: expected a model, got device.kind = \"emulated\""};
  if (options_.make_compute && how.return_outputs)
    return error{"return_outputs: expected make_stage or make_chunk, got make_compute"};
  const needed_parts needed{has_first_ && !options_.make_chunk, has_last_};
  if (!options_.make_compute && !is_emulated())
    if (auto good = check_microbatches(microbatches, needed); !good) return good.failure();
  for (auto& mb : microbatches)
    for (auto* rows : {&mb.inputs, &mb.targets})
      if (rows->defined()) *rows = rows->detach();
  auto passed = loop_->pass(purpose, *std::move(counts), [&](step_id id) {
    data_->feed(id, std::move(microbatches), how.return_outputs,
                job_.train.averages_accumulation && purpose == step_purpose::accumulation);
  });
  if (!passed) return passed.failure();
  const auto id = passed->id;
  return result_of(*std::move(passed), data_->finish_step(id));
}

result<step_result> pipeline::impl::pass(step_purpose purpose, const batch& rows,
                                         step_options how) {
  auto microbatches = caught([&] {
    const microbatch_counts given{how.microbatches};
    const auto count = given.empty()
                           ? std::int64_t{job_.pipeline.microbatches} * job_.pipeline.replicas
                           : std::int64_t{given.total()};
    return cut(rows, count, options_.count);
  });
  if (!microbatches) return microbatches.failure();
  return pass(purpose, std::move(*microbatches), how);
}

result<std::vector<compute::named_tensor>> pipeline::impl::state_dict() {
  const auto call = begin_call();
  if (!call) return call.failure();
  if (loop_->is_over()) return loop_->failure();
  struct gathered {
    std::mutex turn;
    std::map<std::pair<std::string, std::int64_t>, compute::named_tensor> by_place;
  };
  const auto all = std::make_shared<gathered>();
  const auto done = loop_->for_each_compute([all](auto& c) {
    auto mine = compute::to_tensors(
        c.snapshot(compute::tied_copies::included, compute::snapshot_memory::shared));
    const std::lock_guard lock{all->turn};
    for (auto& t : mine) {
      const std::pair place{t.name, t.part ? t.part->offset : 0};
      if (all->by_place.contains(place)) continue;
      t.value = compute::host_copy_of(t.value);
      all->by_place.emplace(place, std::move(t));
    }
    return success();
  });
  if (!done) return done.failure();
  std::vector<compute::named_tensor> state;
  for (auto& [place, t] : all->by_place) state.push_back(std::move(t));
  return state;
}

status pipeline::impl::load_state_dict(std::vector<compute::named_tensor> state) {
  const auto call = begin_call();
  if (!call) return call.failure();
  if (loop_->is_over()) return loop_->failure();
  std::vector<compute::named_buffer> buffers;
  for (auto& t : state) {
    if (!t.value.defined() || t.value.layout() != at::kStrided)
      return error{fmt::format("'{}': expected a dense tensor, got {}", t.name,
                               t.value.defined() ? "another layout" : "none")};
    buffers.push_back(compute::to_buffer(std::move(t)));
  }
  const auto shared =
      std::make_shared<const std::vector<compute::named_buffer>>(std::move(buffers));
  // All ranks look before the first one changes.
  auto fits = loop_->for_each_compute([shared](auto& c) { return c.fits(*shared); });
  return fits ? loop_->for_each_compute([shared](auto& c) { return c.restore(*shared); }) : fits;
}

status pipeline::impl::save() {
  if (auto call = begin_call(); !call) return call.failure();
  return loop_->save();
}

result<actors::run_summary> pipeline::impl::finish() {
  if (auto call = begin_call(); !call) return call.failure();
  return loop_->finish();
}

step_result pipeline::impl::result_of(actors::passed_step passed, std::vector<at::Tensor> outputs) {
  const auto& s = passed.summary;
  step_result r;
  r.step = s.step;
  r.loss = s.loss;
  for (const auto& l : s.losses) r.losses.push_back(l.mean);
  r.gradient_norm = s.gradient_norm;
  r.is_skipped = s.is_skipped;
  r.lr = s.lr;
  r.count = s.tokens;
  r.ms = s.step_ms;
  r.bubble = s.bubble_fraction;
  r.weight_shares = s.weight_shares;
  // All work of the step is done on the device.
  for (auto& o : outputs) r.outputs.push_back(o.cpu());
  r.hook_failure = std::move(passed.hook_failure);
  return r;
}

pipeline::pipeline(std::shared_ptr<impl> state) : impl_(std::move(state)) {}
pipeline::~pipeline() { impl_->loop().close(); }

result<std::unique_ptr<pipeline>> pipeline::open(job::job j, pipeline_options options) {
  auto state = std::make_shared<impl>(std::move(j), std::move(options));
  if (auto opened = caught([&] { return state->open(); }); !opened) return opened.failure();
  return std::unique_ptr<pipeline>{new pipeline{std::move(state)}};
}

result<step_result> pipeline::step(const batch& rows, step_options how) {
  return impl_->pass(purpose_of(how), rows, how);
}
result<step_result> pipeline::step(std::vector<compute::microbatch> microbatches,
                                   step_options how) {
  return impl_->pass(purpose_of(how), std::move(microbatches), how);
}
result<step_result> pipeline::eval(const batch& rows, step_options how) {
  return impl_->pass(compute::step_purpose::evaluation, rows, how);
}
result<step_result> pipeline::eval(std::vector<compute::microbatch> microbatches,
                                   step_options how) {
  return impl_->pass(compute::step_purpose::evaluation, std::move(microbatches), how);
}
std::uint64_t pipeline::steps() const { return impl_->loop().steps(); }
bool pipeline::leads() const { return impl_->loop().leads(); }
result<std::vector<compute::named_tensor>> pipeline::state_dict() {
  return caught([&] { return impl_->state_dict(); });
}
status pipeline::load_state_dict(std::vector<compute::named_tensor> state) {
  return caught([&] { return impl_->load_state_dict(std::move(state)); });
}
status pipeline::recover() { return impl_->recover(); }
status pipeline::save() { return impl_->save(); }
result<actors::run_summary> pipeline::finish() { return impl_->finish(); }
void pipeline::interrupt() { impl_->loop().interrupt(); }
void pipeline::report(std::string why) { impl_->loop().report(std::move(why)); }
std::string pipeline::metrics() const { return impl_->loop().metrics_text(); }

}  // namespace rrfp
