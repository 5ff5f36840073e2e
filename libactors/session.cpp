#include <rrfp/actors/session.hpp>

#include <future>

#include <fmt/format.h>

#include <rrfp/compute/stage_compute.hpp>
#include <rrfp/schedule/check.hpp>

#include "job_actor.hpp"
#include "node_actor.hpp"

namespace rrfp::actors {

namespace {

/// The stage that holds the other side of a tied parameter of `stage`, or `stage` itself.
stage_id partner_of(stage_id stage, const std::vector<std::shared_ptr<stage_parts>>& parts) {
  const auto side = [&](stage_id s) { return parts[s.value()]->compute[0]->tied_side(); };
  const auto mine = side(stage);
  if (mine == compute::tie::none) return stage;
  for (std::uint32_t s = 0; s < parts.size(); ++s)
    if (s != stage.value() && side(stage_id{s}) != compute::tie::none) return stage_id{s};
  return stage;
}

result<std::shared_ptr<stage_parts>> make_parts(const session_setup& setup, stage_id stage) {
  const auto& shape = setup.shape;
  std::vector<std::unique_ptr<compute::stage_module>> chunks;
  for (std::uint32_t c = 0; c < shape.chunks; ++c) {
    auto chunk = setup.make_chunk(shape.virtual_stage(stage, chunk_id{c}));
    if (!chunk) return error{fmt::format("stage {} chunk {}: {}", stage.value(), c, chunk.message())};
    chunks.push_back(std::move(*chunk));
  }
  auto compute = compute::stage_compute::make({shape, stage, setup.train}, std::move(chunks),
                                              setup.data);
  if (!compute) return error{fmt::format("stage {}: {}", stage.value(), compute.message())};
  auto parts = std::make_shared<stage_parts>();
  parts->config = {shape, stage, 1, setup.lookahead, setup.mode, setup.limits[stage.value()]};
  parts->hint = setup.make_policy(stage);
  if (setup.slot_bytes)
    for (std::uint32_t mb = 0; mb < shape.microbatches; ++mb)
      parts->slot_bytes.push_back(setup.slot_bytes(stage, microbatch_id{mb}));
  parts->compute.emplace_back(std::move(*compute));
  return parts;
}

std::unique_ptr<transport> make_wire(const session_setup& setup) {
  auto wire = make_in_process_transport();
  if (!setup.delays.link) return wire;
  return make_delaying_transport(
      std::move(wire), [shape = setup.shape, link = setup.delays.link](const message_header& h) {
        if (h.what == payload::tied_gradient || h.from.stage == h.to.stage) return 0.0;
        const auto kind =
            h.what == payload::activation ? task_kind::forward : task_kind::backward;
        return link(h.step, shape.virtual_stage(h.to.stage, h.chunk), task{kind, h.mb, h.chunk});
      });
}

}  // namespace

std::uint32_t run_summary::peak_slots() const {
  std::uint32_t peak = 0;
  for (const auto& s : stages) peak = std::max(peak, s.memory.slots_peak);
  return peak;
}

std::int64_t run_summary::peak_bytes() const {
  std::int64_t peak = 0;
  for (const auto& s : stages) peak = std::max(peak, s.peak_bytes);
  return peak;
}

class session::impl {
 public:
  explicit impl(session_setup setup) : setup_(std::move(setup)) {}

  status build() {
    for (std::uint32_t s = 0; s < setup_.shape.stages; ++s) {
      auto parts = make_parts(setup_, stage_id{s});
      if (!parts) return parts.failure();
      parts_.push_back(std::move(*parts));
    }
    for (std::uint32_t s = 0; s < setup_.shape.stages; ++s)
      parts_[s]->tied_with = partner_of(stage_id{s}, parts_);
    return success();
  }

  run_result run() {
    RRFP_CHECK(!parts_.empty(), "a session runs once");
    if (const std::lock_guard lock{mutex_}; interrupted_) {
      run_result nothing{ending::interrupted, {}, {}, {}};
      nothing.summary.stages.resize(parts_.size());
      return nothing;
    }
    auto context = std::make_shared<run_context>();
    context->shape = setup_.shape;
    context->wire = make_wire(setup_);
    context->delay = setup_.delays.compute;
    context->trace = setup_.trace;
    context->record_transcripts = setup_.record_transcripts;

    caf::actor_system_config config;
    caf::actor_system system{config};
    std::promise<run_result> ended;
    const auto node = system.spawn<node_actor>(std::move(parts_), context);
    {
      const std::lock_guard lock{mutex_};
      job_ = spawn_detached<job_actor>(
          system, job_setup{node, setup_.train, context, setup_.hang_timeout_s, setup_.on_step,
                            [&](run_result r) { ended.set_value(std::move(r)); }});
      if (interrupted_) post(job_, interrupted{});
    }
    auto result = ended.get_future().get();
    post(node, stop{});
    {
      const std::lock_guard lock{mutex_};
      job_ = nullptr;
    }
    context->wire->close();
    system.await_all_actors_done();
    return result;
  }

  void interrupt() {
    const std::lock_guard lock{mutex_};
    interrupted_ = true;
    if (job_) post(job_, interrupted{});
  }

 private:
  session_setup setup_;
  std::vector<std::shared_ptr<stage_parts>> parts_;
  std::mutex mutex_;
  caf::actor job_;
  bool interrupted_ = false;
};

session::session(std::unique_ptr<impl> state) : impl_(std::move(state)) {}
session::~session() = default;

result<std::unique_ptr<session>> session::open(session_setup setup) {
  if (auto valid = setup.shape.validate(); !valid) return valid.failure();
  RRFP_CHECK(setup.limits.size() == setup.shape.stages, "a memory limit for each stage");
  RRFP_CHECK(setup.make_policy && setup.make_chunk, "a source of policies and of chunks");
  auto state = std::make_unique<impl>(std::move(setup));
  if (auto built = state->build(); !built) return built.failure();
  return std::unique_ptr<session>{new session{std::move(state)}};
}

run_result session::run() { return impl_->run(); }
void session::interrupt() { impl_->interrupt(); }

}  // namespace rrfp::actors
