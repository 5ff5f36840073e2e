#include <rrfp/actors/session.hpp>

#include <algorithm>
#include <future>
#include <map>
#include <set>
#include <thread>

#include <fmt/format.h>

#include <rrfp/actors/checkpoint_tensors.hpp>
#include <rrfp/base/check.hpp>
#include <rrfp/base/step_name.hpp>
#include <rrfp/compute/stage_compute.hpp>
#include <rrfp/schedule/check_policy.hpp>
#include <rrfp/schedule/sequence.hpp>

#include "accelerated_ranks.hpp"
#include "cluster_link.hpp"
#include "collective_group.hpp"
#include "compute_thread.hpp"
#include "emulated_compute.hpp"
#include "job_actor.hpp"
#include "node_actor.hpp"
#include "rank_groups.hpp"
#include "virtual_device.hpp"

namespace rrfp::actors {

namespace {

/// The stage that holds the other side of a tied parameter of `stage`, or `stage` itself.
stage_id partner_of(stage_id stage, const std::map<stage_id, compute::tie>& sides) {
  const auto mine = sides.find(stage);
  if (mine == sides.end() || mine->second == compute::tie::none) return stage;
  for (const auto& [other, side] : sides)
    if (other != stage && side != compute::tie::none) return other;
  return stage;
}

/// The microbatches of one replica, from the batch of all replicas.
class replica_source final : public compute::batch_source {
 public:
  replica_source(std::shared_ptr<const compute::batch_source> all, std::uint32_t first)
      : all_(std::move(all)), first_(first) {}

  compute::microbatch load(step_id step, microbatch_id mb) const override {
    return all_->load(step, microbatch_id{first_ + mb.value()});
  }
  compute::microbatch load_text(step_id step, microbatch_id mb) const override {
    return all_->load_text(step, microbatch_id{first_ + mb.value()});
  }
  compute::microbatch_layout layout(step_id step, microbatch_id mb) const override {
    return all_->layout(step, microbatch_id{first_ + mb.value()});
  }
  std::int64_t step_tokens(step_id step) const override { return all_->step_tokens(step); }

 private:
  const std::shared_ptr<const compute::batch_source> all_;
  const std::uint32_t first_;
};

/// Microbatches are numbered over all replicas.
std::function<std::uint64_t(step_id, microbatch_id)> slot_bytes_of(const session_setup& setup,
                                                                   replica_id replica,
                                                                   stage_id stage) {
  if (!setup.slot_bytes) return {};
  return [slot_bytes = setup.slot_bytes, stage, first = replica.value() * setup.shape.microbatches](
             step_id step, microbatch_id mb) {
    return slot_bytes(step, stage, microbatch_id{first + mb.value()});
  };
}

result<std::shared_ptr<compute::rank_compute>> make_compute(const session_setup& setup,
                                                            rank_address address,
                                                            const rank_collectives& groups,
                                                            const rank_watch& watch,
                                                            at::Device device) {
  const auto& shape = setup.shape;
  if (setup.emulated) {
    return std::shared_ptr<compute::rank_compute>{std::make_shared<emulated_compute>(
        shape, address.stage,
        emulated_model{setup.emulated->activation_bytes, setup.emulated->tokens,
                       slot_bytes_of(setup, address.replica, address.stage)})};
  }
  if (setup.make_compute) {
    auto made = setup.make_compute(address);
    if (made && *made == nullptr)
      return error{fmt::format("stage {}: make_compute returned null", address.stage.value())};
    return made;
  }
  const auto group = groups.stage ? make_collective_group(groups.stage, watch.stage) : nullptr;
  const auto first = address.replica.value() * shape.microbatches;
  std::vector<std::unique_ptr<compute::stage_module>> chunks;
  for (std::uint32_t c = 0; c < shape.chunks; ++c) {
    auto chunk = setup.make_chunk(shape.virtual_stage(address.stage, chunk_id{c}), group);
    if (!chunk)
      return error{fmt::format("stage {} chunk {}: {}", address.stage.value(), c, chunk.message())};
    chunks.push_back(std::move(*chunk));
  }
  compute::stage_compute_config config{shape, address.stage, setup.train, group};
  config.first_microbatch = first;
  config.recompute = setup.recompute;
  config.make_optimizer = setup.make_optimizer;
  config.device = device;
  auto compute = compute::stage_compute::make(config, std::move(chunks),
                                              std::make_shared<replica_source>(setup.data, first));
  if (!compute) return error{fmt::format("stage {}: {}", address.stage.value(), compute.message())};
  return std::shared_ptr<compute::rank_compute>{std::move(*compute)};
}

/// The time limit of collectives: longer than hang_timeout_s, so that a hang ends with a report of
/// who waits for whom.
std::chrono::milliseconds limit_of(const session_setup& setup) {
  constexpr std::int64_t forever_ms = 7LL * 24 * 3600 * 1000;
  constexpr std::int64_t reporting_ms = 5000;
  const auto ms = static_cast<std::int64_t>(setup.hang_timeout_s * 1e3);
  return std::chrono::milliseconds{ms > 0 ? ms + reporting_ms : forever_ms};
}

result<stage_parts> make_stage(const session_setup& setup, replica_id replica, stage_id stage) {
  stage_parts parts;
  parts.replica = replica;
  parts.config = {setup.shape,     stage,      setup.ranks,
                  setup.lookahead, setup.mode, setup.limits[stage.value()]};
  parts.hint = setup.make_policy(stage);
  if (parts.hint == nullptr)
    return error{fmt::format("stage {}: make_policy returned null", stage.value())};
  try {
    if (auto fits = check_policy(*parts.hint, setup.shape, setup.mode); !fits)
      return error{fmt::format("stage {}: {}", stage.value(), fits.message())};
  } catch (const std::exception& e) {
    return error{fmt::format("stage {}: policy '{}' threw: {}", stage.value(), parts.hint->name(),
                             e.what())};
  }
  parts.slot_bytes = slot_bytes_of(setup, replica, stage);
  return parts;
}

/// The task whose input a message carries, and its virtual stage; nothing for messages without
/// injected delays or losses.
std::optional<std::pair<virtual_stage_id, task>> input_task_of(const pipeline_shape& shape,
                                                               const message_header& h) {
  if (h.kind == payload::tied_gradient || h.from.stage == h.to.stage) return std::nullopt;
  const auto kind = h.kind == payload::activation ? task_kind::forward : task_kind::backward;
  return std::pair{shape.virtual_stage(h.to.stage, h.chunk), task{kind, h.mb, h.chunk}};
}

std::unique_ptr<transport> with_delays(const session_setup& setup, std::unique_ptr<transport> wire,
                                       const std::shared_ptr<metrics::run_counters>& counters) {
  const auto& shape = setup.shape;
  if (setup.delays.link)
    wire = make_delaying_transport(std::move(wire),
                                   [shape, link = setup.delays.link](const message_header& h) {
                                     const auto t = input_task_of(shape, h);
                                     return t ? link(h.step, t->first, t->second) : 0.0;
                                   });
  if (!setup.delays.fate) return wire;
  wire = make_lossy_transport(std::move(wire), [shape, fate = setup.delays.fate](
                                                   const message_header& h, std::uint32_t attempt) {
    const auto t = input_task_of(shape, h);
    return t ? fate(h.step, t->first, t->second, attempt) : attempt_fate{};
  });
  const std::chrono::duration<double, std::milli> after{setup.delays.resend_ms};
  return make_resending_transport(std::move(wire),
                                  std::chrono::duration_cast<std::chrono::nanoseconds>(after),
                                  [counters] { counters->resent.add(); });
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

accelerator::memory_counts run_summary::device_memory() const {
  accelerator::memory_counts most;
  for (const auto& s : stages) most = accelerator::most_of(most, s.device_memory);
  return most;
}

class session::impl {
 public:
  impl(session_setup setup, std::optional<cluster> in_cluster)
      : setup_(std::move(setup)), cluster_(std::move(in_cluster)), groups_(limit_of(setup_)) {}

  /// Makes the stages and ranks hosted here.
  status build() {
    if (setup_.resume) {
      auto opened = checkpoint_tensors::open(*setup_.resume);
      if (!opened) return opened.failure();
      saved_ = std::move(*opened);
      if (!setup_.make_compute) note_saved_parameters();
    }
    if (setup_.accelerated) {
      auto ready = accelerated_ranks::open(setup_, hosted(), share_of_machine(), limit_of(setup_));
      if (!ready) return ready.failure();
      accelerated_ = std::move(*ready);
    }
    std::map<std::pair<std::uint32_t, std::uint32_t>, members> of_replicas;  // by stage and rank
    for (std::uint32_t d = 0; d < setup_.replicas; ++d)
      for (std::uint32_t s = 0; s < setup_.shape.stages; ++s) {
        const replica_id replica{d};
        const stage_id stage{s};
        if (hosts({stage, rank_id{0}, replica})) {
          auto made = make_stage(setup_, replica, stage);
          if (!made) return made.failure();
          parts_.stages.push_back(std::move(*made));
          parts_.stages.back().counters = &count_stage(replica, stage);
        }
        const auto of_stage = group_of(d * setup_.shape.stages + s, setup_.ranks, [&](auto r) {
          return rank_address{stage, rank_id{r}, replica};
        });
        for (std::uint32_t r = 0; r < setup_.ranks; ++r) {
          const rank_address address{stage, rank_id{r}, replica};
          if (d == 0)
            of_replicas[{s, r}] = group_of(
                (setup_.replicas + r) * setup_.shape.stages + s, setup_.replicas, [&](auto other) {
                  return rank_address{stage, rank_id{r}, replica_id{other}};
                });
          if (!hosts(address)) continue;
          rank_collectives groups{of_stage[r], of_replicas[{s, r}][d]};
          if (accelerated_) groups = accelerated_->join(address, groups);
          auto& counters = count_rank(address, groups);
          const auto& watch = watches_.back();
          auto compute = make_compute(setup_, address, groups, watch,
                                      accelerated_ ? accelerated_->device_of(address) : at::kCPU);
          if (!compute) return compute.failure();
          if (auto restored = restore(**compute, stage); !restored) return restored;
          note_restored(**compute);
          sides_[stage] = (*compute)->tied_side();
          devices_.push_back(make_device(fmt::format("compute {}.{}", s, r), address));
          parts_.ranks.push_back({address, stage, std::move(*compute), std::move(groups),
                                  devices_.back().get(), order_of(stage), &counters,
                                  watch.replicas});
        }
      }
    saved_.reset();
    return cluster_ ? success() : check_restored();
  }

  status check_restored() const {
    auto taken = is_restored_;
    if (cluster_ && !taken.empty()) {
      constexpr std::chrono::minutes limit{5};
      const auto all = cluster_->members->all_gather(is_restored_, limit);
      if (!all) return error{all.message(), error_kind::node_lost};
      for (const auto& of_node : *all) {
        if (of_node.size() != taken.size())
          return error{setup_.resume->folder + ": nodes see different tensors in it"};
        for (std::size_t i = 0; i < taken.size(); ++i)
          if (of_node[i] == has_place) taken[i] = has_place;
      }
    }
    const auto left = taken.find(has_none);
    if (left == std::string::npos) return success();
    return error{fmt::format("{}: tensor '{}': expected in the model, which has no such parameter",
                             setup_.resume->folder, saved_parameters_[left])};
  }

  run_result run() {
    RRFP_CHECK(!std::exchange(has_run_, true), "a session runs once");
    if (const std::lock_guard lock{mutex_}; interrupts_ > 0 && !cluster_)
      return ended_early({{}, error_kind::interrupted});
    auto context = std::make_shared<run_context>();
    context->shape = setup_.shape;
    context->counters = counters_;
    context->watches = watches_;
    context->on_report = setup_.on_report;
    counters_->run = setup_.name;
    counters_->hang_timeout_s = setup_.hang_timeout_s;
    counters_->job.first_step.set(setup_.resume ? setup_.resume->contents.step : 0);
    counters_->note_progress();
    context->ranks = setup_.ranks;
    context->replicas = setup_.replicas;
    context->delay = setup_.delays.compute;
    if (setup_.emulated) context->emulated_time = setup_.emulated->task_ms;
    context->trace = setup_.trace;
    context->record_transcripts = setup_.record_transcripts;
    context->on_step = setup_.on_step;
    std::unique_ptr<work_queue> saver;
    if (setup_.checkpoint) {
      saver = std::make_unique<compute_thread>("checkpoint");
      context->saver = saver.get();
      context->checkpoint_dir = setup_.checkpoint->dir;
    }

    std::unique_ptr<cluster_link> link;
    std::unique_ptr<transport> wire;
    if (cluster_) {
      auto opened =
          cluster_link::open(*cluster_, setup_, sides_, context->start, memory_of_arrivals());
      if (!opened) return ended_early(opened.failure());
      link = std::move(opened->link);
      wire = std::move(opened->wire);
      sides_ = std::move(opened->sides);
      context->start = opened->start;
      context->on_step_begun = [members = cluster_->members](step_id step) {
        members->set_status(to_string(step));
      };
      link->attach(groups_);
      counters_->leads = link->leads();
      counters_->transport.set([&counted = *link] { return counted.count(); });
      if (setup_.on_connected)
        setup_.on_connected(link->transports() +
                            (accelerated_ ? link->device_transfer_note() : ""));
    } else {
      wire = make_in_process_transport();
    }
    if (setup_.wrap_transport) wire = setup_.wrap_transport(std::move(wire));
    if (wire == nullptr) return ended_early({"wrap_transport returned null", error_kind::failed});
    context->wire = with_delays(setup_, std::move(wire), counters_);
    if (setup_.board != nullptr) setup_.board->show(counters_);
    if (setup_.blocking_messages) {
      auto synchronous = std::make_unique<synchronous_transport>(std::move(context->wire));
      context->synchronous = synchronous.get();
      context->wire = std::move(synchronous);
    }
    for (auto& rank : parts_.ranks) rank.tied_with = partner_of(rank.address.stage, sides_);

    caf::actor_system_config config;
    add_messages(config);
    set_scheduler(config, actor_threads(), setup_.spin);
    if (link) link->configure(config);
    caf::actor_system system{config};
    auto result = drive(system, link.get(), context);
    counters_->over.set(true);
    counters_->transport.set(nullptr);
    context->wire->close();
    system.await_all_actors_done();
    timer_.reset();
    devices_.clear();  // waits for running work, which refers to actors
    accelerated_.reset();
    saver.reset();  // likewise
    return result;
  }

  void add_demand(job_demand wanted) {
    RRFP_CHECK(setup_.on_request && leads(), "demands need on_request, and node 0");
    const std::lock_guard lock{mutex_};
    if (to_interrupt_)
      post(to_interrupt_, demand{wanted});
    else
      early_demands_.push_back({wanted});
  }

  void interrupt() {
    const std::lock_guard lock{mutex_};
    ++interrupts_;
    if (to_interrupt_) post(to_interrupt_, interrupted{interrupts_ > 1});
  }

  void report(std::string why) {
    const std::lock_guard lock{mutex_};
    if (to_report_) post(to_report_, report_requested{std::move(why)});
  }

 private:
  metrics::stage_counters& count_stage(replica_id replica, stage_id stage) {
    auto& counters = counters_->stages.emplace_back();
    counters.replica = replica;
    counters.stage = stage;
    return counters;
  }

  metrics::rank_counters& count_rank(rank_address a, const rank_collectives& groups) {
    auto& counters = counters_->ranks.emplace_back();
    counters.replica = a.replica;
    counters.stage = a.stage;
    counters.rank = a.rank;
    const auto watch = [&](const auto& group) {
      return group ? std::make_shared<collective_watch>(counters) : nullptr;
    };
    watches_.push_back({a, watch(groups.stage), watch(groups.replicas)});
    return counters;
  }

  using members = std::vector<std::shared_ptr<tp_coord::collective>>;

  /// Group `id` of `size` ranks; null for members on other nodes.
  template <class AddressOf>
  members group_of(std::uint32_t id, std::uint32_t size, AddressOf address_of) {
    std::vector<rank_address> all;
    std::vector<bool> here;
    for (std::uint32_t i = 0; i < size; ++i) {
      all.push_back(address_of(i));
      here.push_back(hosts(all.back()));
    }
    return groups_.make(id, all, here);
  }

  status restore(compute::rank_compute& compute, stage_id stage) const {
    if (saved_ == nullptr) return success();
    auto restored = compute.restore(saved_->all());
    if (restored) return success();
    return error{
        fmt::format("{}: stage {}: {}", setup_.resume->folder, stage.value(), restored.message())};
  }

  void note_saved_parameters() {
    std::set<std::string> names;
    for (const auto& t : saved_->all())
      if (!t.name.starts_with(compute::optimizer_prefix)) names.insert(t.name);
    saved_parameters_.assign(names.begin(), names.end());
    is_restored_.assign(saved_parameters_.size(), has_none);
  }

  void note_restored(const compute::rank_compute& compute) {
    if (saved_parameters_.empty()) return;
    for (const auto& t : compute.snapshot()) {
      const auto at = std::lower_bound(saved_parameters_.begin(), saved_parameters_.end(), t.name);
      if (at != saved_parameters_.end() && *at == t.name)
        is_restored_[static_cast<std::size_t>(at - saved_parameters_.begin())] = has_place;
    }
  }

  bool leads() const { return !cluster_ || cluster_->members->node() == node_id{0}; }

  bool hosts(rank_address a) const {
    return !cluster_ ||
           cluster_->places.node_of(a.replica, a.stage, a.rank) == cluster_->members->node();
  }

  /// The sequence that the stage follows, if its ranks need it; else empty.
  sequence order_of(stage_id stage) const {
    if (!setup_.blocking_messages) return {};
    return obeyed_order(*setup_.make_policy(stage), setup_.shape);
  }

  run_result ended_early(const error& why) const {
    run_result nothing;
    nothing.how = end_of(why.kind);
    nothing.message = why.message;
    nothing.summary.stages.resize(setup_.shape.stages);
    return nothing;
  }

  std::vector<rank_address> hosted() const {
    std::vector<rank_address> all;
    for (std::uint32_t d = 0; d < setup_.replicas; ++d)
      for (std::uint32_t s = 0; s < setup_.shape.stages; ++s)
        for (std::uint32_t r = 0; r < setup_.ranks; ++r)
          if (const rank_address a{stage_id{s}, rank_id{r}, replica_id{d}}; hosts(a))
            all.push_back(a);
    return all;
  }

  /// Nodes of the job that run on the same machine share its devices.
  accelerator::machine_share share_of_machine() const {
    accelerator::machine_share share;
    if (!cluster_) return share;
    const auto& all = cluster_->members->members();
    const auto own = cluster_->members->node();
    share.processes = 0;
    for (const auto& other : all) {
      if (other.host != all[own.value()].host) continue;
      if (other.node < own) ++share.place;
      ++share.processes;
    }
    return share;
  }

  arrival_memory memory_of_arrivals() const {
    if (!accelerated_) return {};
    return {
        accelerated_->pinned_memory(),
        [ranks = accelerated_](const rank_address& to, at::IntArrayRef shape, at::ScalarType type) {
          return ranks->make_receive_buffer(to, shape, type);
        },
        [ranks = accelerated_] { ranks->enter_thread(); }};
  }

  std::unique_ptr<device> make_device(std::string name, rank_address address) {
    if (accelerated_) return accelerated_->make_device(std::move(name), address);
    if (!setup_.emulated) return std::make_unique<compute_thread>(std::move(name), setup_.spin);
    if (!timer_) timer_ = std::make_unique<timer_thread>("virtual devices");
    return std::make_unique<virtual_device>(*timer_);
  }

  /// Handlers only record and decide, so one thread serves many ranks.
  std::size_t actor_threads() const {
    // With emulated devices, handlers run back to back, and more threads would not help.
    const std::size_t ranks_a_thread = setup_.emulated ? 64 : 16;
    if (parts_.ranks.size() <= ranks_a_thread && setup_.emulated) return 1;
    const auto cores = std::max<std::size_t>(std::thread::hardware_concurrency(), 1);
    return std::min(cores, 1 + (parts_.ranks.size() + ranks_a_thread - 1) / ranks_a_thread);
  }

  /// Spawns the actors and waits until the job has ended.
  run_result drive(caf::actor_system& system, cluster_link* link,
                   const std::shared_ptr<run_context>& context) {
    std::promise<run_result> job_over;
    std::promise<job_ended> node_over;
    const auto node = system.spawn<node_actor>(std::move(parts_), context,
                                               [&](const job_ended& m) { node_over.set_value(m); });
    std::vector<caf::actor> nodes{node};
    if (link != nullptr) {
      auto all = link->exchange(system, node);
      if (!all) {
        post(node, job_ended{end_of(all.failure().kind), all.message()});
        node_over.get_future().wait();
        return ended_early(all.failure());
      }
      nodes = std::move(*all);
    }
    const bool leads = link == nullptr || link->leads();
    caf::actor job;
    if (leads)
      job = spawn_detached<job_actor>(
          system, job_setup{nodes, setup_.train, setup_.on_request,
                            setup_.resume ? setup_.resume->contents.step : 0, setup_.checkpoint,
                            context, setup_.hang_timeout_s, setup_.on_step, setup_.on_checkpoint,
                            [&](run_result r) { job_over.set_value(std::move(r)); }});
    set_receivers(leads ? job : node, node);
    if (link != nullptr) link->watch(leads ? job : node);
    // The job ends when it is done, interrupted, failed, or has lost a node, and notifies its
    // nodes.
    run_result result;
    if (leads) {
      result = job_over.get_future().get();
      if (setup_.on_ending) setup_.on_ending(result);
    }
    const auto over = node_over.get_future().get();
    if (!leads) {
      result.how = over.how;
      result.message = over.message;
      result.summary.stages.resize(setup_.shape.stages);
      result.nothing_lost = over.nothing_lost;
      result.hung = over.hung;
      if (setup_.on_ending) setup_.on_ending(result);
    }
    set_receivers(nullptr, nullptr);
    if (link != nullptr) {
      link->watch(nullptr);
      if (over.how != ending::node_lost) result.trace_gaps = link->finish(setup_.trace);
      // A node lost before all nodes have finished may not have completed its part, so all nodes
      // report the loss. A failure together with a loss is its consequence: a collective of the
      // lost node fails before the loss is known.
      const bool can_be_loss = over.how == ending::done || over.how == ending::failed;
      if (auto lost = cluster_->members->loss(); can_be_loss && !lost.empty()) {
        result.how = ending::node_lost;
        result.message = std::move(lost);
      }
      if (over.how == ending::node_lost && leads && setup_.trace != nullptr)
        result.trace_gaps = "only the tasks of node 0: " + over.message;
    }
    return result;
  }

  /// Sets the actors that receive interrupts and demands, and report requests.
  void set_receivers(const caf::actor& for_job, const caf::actor& for_reports) {
    const std::lock_guard lock{mutex_};
    to_interrupt_ = for_job;
    to_report_ = for_reports;
    if (!for_job) return;
    if (interrupts_ > 0) post(for_job, interrupted{interrupts_ > 1});
    for (const auto& m : std::exchange(early_demands_, {})) post(for_job, m);
  }

  session_setup setup_;
  /// The checkpoint to resume from, while ranks are made.
  std::shared_ptr<const checkpoint_tensors> saved_;
  /// Names of its parameters, sorted, and, as one character each to be exchanged between nodes,
  /// whether ranks here have them.
  std::vector<std::string> saved_parameters_;
  std::string is_restored_;
  static constexpr char has_place = '1', has_none = '0';
  const std::optional<cluster> cluster_;
  rank_groups groups_;
  const std::shared_ptr<metrics::run_counters> counters_ =
      std::make_shared<metrics::run_counters>();
  std::vector<rank_watch> watches_;
  /// Devices of the ranks in `parts_`; destroyed at the end of the run.
  std::vector<std::unique_ptr<device>> devices_;
  /// Set if ranks compute on devices with their own memory.
  std::shared_ptr<accelerated_ranks> accelerated_;
  /// The timer of emulated devices.
  std::unique_ptr<timer_thread> timer_;
  node_parts parts_;
  /// Tied sides of the stages hosted here; after connecting, of all stages.
  std::map<stage_id, compute::tie> sides_;
  bool has_run_ = false;
  std::mutex mutex_;
  caf::actor to_interrupt_;
  caf::actor to_report_;
  int interrupts_ = 0;
  std::vector<demand> early_demands_;  ///< received before the job actor existed
};

session::session(std::unique_ptr<impl> state) : impl_(std::move(state)) {}
session::~session() = default;

result<std::unique_ptr<session>> session::open(session_setup setup,
                                               std::optional<cluster> in_cluster) {
  if (auto valid = setup.shape.validate(); !valid) return valid.failure();
  RRFP_CHECK(setup.limits.size() == setup.shape.stages, "each stage has a memory limit");
  RRFP_CHECK(setup.make_policy && (setup.make_chunk || setup.emulated || setup.make_compute),
             "make_policy is set, and so is make_chunk, emulated or make_compute");
  RRFP_CHECK(!setup.blocking_messages || (setup.mode == dispatch_mode::in_order &&
                                          setup.lookahead == 0 && !in_cluster.has_value()),
             "blocking_messages needs mode in_order, no lookahead, and one process");
  RRFP_CHECK(!setup.checkpoint || !setup.emulated, "an emulated device has nothing to save");
  RRFP_CHECK(!setup.accelerated || !setup.emulated, "ranks compute on devices of one kind");
  RRFP_CHECK(!setup.delays.fate || !in_cluster.has_value(), "delays.fate needs one process");
  auto state = std::make_unique<impl>(std::move(setup), std::move(in_cluster));
  if (auto built = state->build(); !built) return built.failure();
  return std::unique_ptr<session>{new session{std::move(state)}};
}

status session::check_restored() const { return impl_->check_restored(); }
run_result session::run() { return impl_->run(); }
void session::interrupt() { impl_->interrupt(); }
void session::train() { impl_->add_demand(job_demand::train); }
void session::evaluate() { impl_->add_demand(job_demand::evaluate); }
void session::save() { impl_->add_demand(job_demand::save); }
void session::finish() { impl_->add_demand(job_demand::finish); }
void session::report(std::string why) { impl_->report(std::move(why)); }

}  // namespace rrfp::actors
