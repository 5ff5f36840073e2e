#include <rrfp/actors/session.hpp>

#include <algorithm>
#include <functional>
#include <future>
#include <thread>

#include <rrfp/actors/job/job_actor.hpp>
#include <rrfp/actors/recovery/copy_exchange.hpp>
#include <rrfp/actors/stage/node_actor.hpp>
#include <rrfp/base/check.hpp>
#include <rrfp/base/step_name.hpp>
#include <rrfp/compute/user_functions.hpp>
#include <rrfp/device/compute_thread.hpp>

#include "cluster_link.hpp"
#include "hosted_parts.hpp"

namespace rrfp::actors {

namespace {

/// The injected delay of a message, in milliseconds; only inputs from other stages have one.
double delay_of(const session_setup& setup, const message_header& h) {
  if (!is_input(h.kind) || h.from.stage == h.to.stage) return 0;
  const auto kind = h.kind == payload::activation ? task_kind::forward : task_kind::backward;
  return setup.delays.link(h.step, setup.shape.virtual_stage(h.to.stage, h.chunk), h.to,
                           {kind, h.mb, h.chunk});
}

class open_session final : public session {
 public:
  open_session(session_setup setup, std::optional<cluster> in_cluster)
      : setup_(std::move(setup)),
        cluster_(std::move(in_cluster)),
        hosted_(setup_, cluster_ ? &*cluster_ : nullptr),
        counters_(hosted_.counters()) {}

  status build() {
    const auto made = setup_.ready ? caught([&] { return hosted_.make(); }) : setup_.ready;
    const auto told = !made         ? result<std::string>{made.failure()}
                      : setup_.tell ? setup_.tell()
                                    : std::string{};
    if (cluster_) {
      auto opened = cluster_link::open(*cluster_, setup_, hosted_, told);
      if (!opened) return opened.failure();
      opened_ = *std::move(opened);
    } else {
      if (!told) return told.failure();
      if (auto all = hosted_.check_restored({hosted_.restored()}); !all) return all;
      opened_.told = {*told};
    }
    return setup_.hear ? setup_.hear(opened_.told) : success();
  }

  run_result run() override {
    RRFP_CHECK(!std::exchange(has_run_, true), "a session runs once");
    if (const std::lock_guard lock{mutex_}; interrupts_ > 0 && !cluster_)
      return ended_early({{}, error_kind::interrupted});
    const auto link = std::move(opened_.link);  // outlives the transport, which reports to it
    if (!link) {
      opened_.sides = hosted_.sides();
      opened_.start = std::chrono::steady_clock::now();
    }
    const auto context = make_context(link.get());
    begin_counting();
    if (link && setup_.recovery)
      context->copies = std::make_shared<copy_exchange>(
          *setup_.recovery, *context, cluster_->members->node(), std::move(opened_.buddies));
    std::unique_ptr<compute_thread> saver;
    if (setup_.checkpoint) {
      saver = std::make_unique<compute_thread>("checkpoint");
      context->saver = saver.get();
    }
    if (auto ready = connect(*context, link.get()); !ready) return ended_early(ready.failure());
    if (setup_.board != nullptr) setup_.board->show(counters_);

    caf::actor_system_config config;
    set_scheduler(config, actor_threads(), setup_.spin);
    caf::actor_system system{config};
    auto result = drive(system, link.get(), context, hosted_.take(opened_.sides));
    counters_->over.set(true);
    counters_->transport.set(nullptr);
    context->wire->close();
    if (link) link->end_watch();
    if (context->copies) context->copies->close();
    context->actors.close();
    system.await_all_actors_done();
    // All wait for running work, which refers to actors; that of a device may copy its state.
    hosted_.release_devices();
    context->copies.reset();
    saver.reset();
    return result;
  }

  void demand(job_demand wanted, microbatch_counts microbatches) override {
    RRFP_CHECK(setup_.on_request && leads(), "demands need on_request, and the leader");
    const std::lock_guard lock{mutex_};
    if (to_interrupt_)
      post(to_interrupt_, demanded{wanted, std::move(microbatches)});
    else
      early_demands_.push_back({wanted, std::move(microbatches)});
  }

  void give_batch(step_id step) override {
    const std::lock_guard lock{mutex_};
    given_ = step;
    if (to_interrupt_) post(to_interrupt_, batch_given{step});
  }

  status for_each_rank(const rank_work& work, std::chrono::milliseconds limit) override {
    std::vector<std::future<void>> all;
    {
      // Under the lock, so that the devices are still there.
      const std::lock_guard lock{mutex_};
      if (!has_ended_) all = hosted_.post_to_ranks(work);
    }
    const auto until = std::chrono::steady_clock::now() + limit;
    try {
      for (auto& one : all) {
        if (one.wait_until(until) != std::future_status::ready) {
          hosted_.drop_posted();
          return error{"the ranks are busy", error_kind::failed};
        }
        one.get();
      }
    } catch (const std::future_error&) {
      all.clear();  // the run has ended meanwhile
    }
    return all.empty() ? error{"the training is over", error_kind::failed} : success();
  }

  void interrupt() override {
    const std::lock_guard lock{mutex_};
    ++interrupts_;
    if (to_interrupt_) post(to_interrupt_, interrupted{interrupts_ > 1});
  }

  void abandon(error why) override {
    const std::lock_guard lock{mutex_};
    if (to_interrupt_)
      post(to_interrupt_, failed{std::move(why)});
    else if (!has_ended_)
      abandoned_ = std::move(why);
  }

  void drain() override {
    const std::lock_guard lock{mutex_};
    drains_ = true;
    if (to_interrupt_) post(to_interrupt_, drain_asked{node()});
  }

  void report(std::string why) override {
    const std::lock_guard lock{mutex_};
    if (to_report_) post(to_report_, report_requested{std::move(why)});
  }

 private:
  node_id node() const { return cluster_ ? cluster_->members->node() : node_id{0}; }
  node_id leader() const { return cluster_ ? cluster_->members->leader() : node_id{0}; }
  bool leads() const { return node() == leader(); }

  std::shared_ptr<run_context> make_context(const cluster_link* link) {
    const auto context = std::make_shared<run_context>(
        setup_, node(),
        [this](const rank_address& a) {
          return cluster_->places.node_of(a.replica, a.stage, a.rank);
        },
        link != nullptr ? link->actor_message_sender() : nullptr,
        message_ranges{setup_.shape, setup_.ranks, setup_.replicas,
                       cluster_ ? cluster_->places.nodes() : 1, setup_.checkpoint.has_value(),
                       setup_.recovery.has_value(), leader()});
    if (cluster_) context->in_cluster = &*cluster_;
    context->start = opened_.start;
    context->counters = counters_;
    context->watches = hosted_.watches();
    context->run_posted = [this](const rank_address& at) { hosted_.run_posted(at); };
    return context;
  }

  void begin_counting() const {
    counters_->run = setup_.name;
    counters_->hang_timeout_s = setup_.hang_timeout_s;
    auto& job = counters_->job;
    job.first_step.set(setup_.first_step());
    job.restarts.set(setup_.losses.restarts);
    job.held_s.set(setup_.losses.held_s);
    job.repeated_steps.set(setup_.losses.repeated_steps);
    if (leads()) {
      job.shares.resize(setup_.replicas);
      for (const auto& a : setup_.all_ranks()) job.late.emplace_back().at = a;
    }
    counters_->note_progress();
  }

  /// `link`: null in one process.
  status connect(run_context& context, cluster_link* link) {
    auto wire = std::move(opened_.wire);
    if (link != nullptr) {
      context.on_step_begun = [members = cluster_->members](step_id step) {
        members->set_status(to_string(step));
      };
      link->attach(hosted_.groups());
      counters_->leads = leads();
      if (setup_.on_connected) setup_.on_connected(link->transports(hosted_.has_device_memory()));
    } else {
      wire = make_in_process_transport();
    }
    if (setup_.wrap_transport) wire = setup_.wrap_transport(std::move(wire));
    if (wire == nullptr) return error{"wrap_transport returned null", error_kind::failed};
    if (setup_.delays.link)
      wire = make_delaying_transport(std::move(wire), std::bind_front(delay_of, std::cref(setup_)));
    context.wire = setup_.wrap_outputs ? setup_.wrap_outputs(std::move(wire)) : std::move(wire);
    if (context.copies)
      context.wire->bind(copies_at(node()),
                         std::bind_front(&copy_exchange::on_piece, context.copies.get()));
    if (link != nullptr) counters_->transport.set([link] { return link->count(); });
    return success();
  }

  run_result ended_early(const error& why) const {
    run_result nothing{{end_of(why.kind), why.message}};
    nothing.summary.stages.resize(setup_.shape.stages);
    return nothing;
  }

  /// Handlers only record and decide, so one thread serves many ranks.
  std::size_t actor_threads() const {
    // With emulated devices, handlers run back to back, and more threads would not help.
    const std::size_t ranks_a_thread = setup_.emulated ? 64 : 16;
    if (hosted_.ranks() <= ranks_a_thread && setup_.emulated) return 1;
    const auto cores = std::max<std::size_t>(std::thread::hardware_concurrency(), 1);
    return std::min(cores, 1 + (hosted_.ranks() + ranks_a_thread - 1) / ranks_a_thread);
  }

  /// Spawns the actors and waits until the job has ended.
  run_result drive(caf::actor_system& system, cluster_link* link,
                   const std::shared_ptr<run_context>& context, node_parts parts) {
    std::promise<run_result> job_over;
    std::promise<job_ended> node_over;
    const bool leads = this->leads();
    caf::actor job;
    if (leads) {
      job = system.spawn<job_actor, caf::detached>(
          context, [&](run_result r) { job_over.set_value(std::move(r)); });
      context->actors.bind({actor_kind::job}, job);
    }
    const auto node = system.spawn<node_actor>(host(system, std::move(parts), context),
                                               context->actors.find({actor_kind::job}), context,
                                               [&](const job_ended& m) { node_over.set_value(m); });
    context->actors.bind({actor_kind::node}, node);
    if (const auto met = link != nullptr ? link->meet(context->actors) : success(); !met) {
      if (leads)
        post(job, failed{met.failure()});
      else
        post(node, job_ended{{end_of(met.failure().kind), met.message()}});
      node_over.get_future().wait();
      if (leads) job_over.get_future().wait();
      return ended_early(met.failure());
    }
    if (leads) post(job, actors::start{});
    set_receivers(leads ? job : node, node);
    if (link != nullptr) link->watch(leads ? job : node);
    // The job ends when it is done, interrupted, failed, or has lost a node, and notifies its
    // nodes.
    run_result result;
    if (leads) {
      result = job_over.get_future().get();
    } else {
      const auto over = node_over.get_future().get();
      static_cast<job_action::end&>(result) = over;
      result.summary.stages.resize(setup_.shape.stages);
      if (!over.summary.summary.empty())
        if (auto kept = summary_of(over.summary)) result.summary = *std::move(kept);
    }
    const auto how = result.how;
    const auto why = result.message;
    if (link != nullptr) note_loss(*link, result);
    if (setup_.on_ending) setup_.on_ending(result);
    if (leads) node_over.get_future().wait();
    set_receivers(nullptr, nullptr);
    if (link != nullptr) finish(*link, how, why, result);
    return result;
  }

  /// A failure together with a loss is its consequence: what a module of the user's own exchanges
  /// with the lost node fails before the loss is known.
  void note_loss(cluster_link& link, run_result& result) const {
    if (result.how != ending::done && result.how != ending::failed) return;
    const auto limit = result.how == ending::failed && link.has_lost_connections()
                           ? unexplained_loss_time
                           : std::chrono::milliseconds{0};
    if (const auto lost = cluster_->members->loss(limit)) {
      result.how = ending::node_lost;
      result.message = lost->why;
    }
  }

  /// The other nodes get what they need of this one, and this one their traces.
  void finish(cluster_link& link, ending how, const std::string& why, run_result& result) const {
    link.watch(nullptr);
    if (how != ending::node_lost)
      result.trace_gaps = link.finish(setup_.trace);
    else if (result.drained)
      link.finish(nullptr);  // no node takes the end of another for a loss
    // A node lost before all nodes have finished may not have completed its part, so all nodes
    // report the loss.
    note_loss(link, result);
    if (how == ending::node_lost && leads() && setup_.trace != nullptr)
      result.trace_gaps = "only the tasks of node " + std::to_string(node().value()) + ": " + why;
  }

  /// Sets the actors that receive interrupts and demands, and report requests.
  void set_receivers(const caf::actor& for_job, const caf::actor& for_reports) {
    const std::lock_guard lock{mutex_};
    to_interrupt_ = for_job;
    to_report_ = for_reports;
    has_ended_ = !for_job;
    if (has_ended_) return;
    if (interrupts_ > 0) post(for_job, interrupted{interrupts_ > 1});
    if (abandoned_) post(for_job, failed{*abandoned_});
    if (drains_) post(for_job, drain_asked{node()});
    if (given_) post(for_job, batch_given{*given_});
    for (const auto& m : std::exchange(early_demands_, {})) post(for_job, m);
  }

  const session_setup setup_;
  const std::optional<cluster> cluster_;
  hosted_parts hosted_;
  const std::shared_ptr<metrics::run_counters> counters_;
  /// Until run(). Alone, this process has no link and no buddies.
  cluster_link::opened opened_;
  bool has_run_ = false;
  bool has_ended_ = false;
  std::mutex mutex_;
  caf::actor to_interrupt_;
  caf::actor to_report_;
  int interrupts_ = 0;
  std::optional<error> abandoned_;
  bool drains_ = false;
  std::optional<step_id> given_;         ///< the last step whose batch this process has given
  std::vector<demanded> early_demands_;  ///< received before the job actor existed
};

}  // namespace

result<std::unique_ptr<session>> session::open(session_setup setup,
                                               std::optional<cluster> in_cluster) {
  if (auto valid = setup.shape.validate(); !valid) return valid.failure();
  RRFP_CHECK(setup.limits.size() == setup.shape.stages, "each stage has a memory limit");
  RRFP_CHECK(setup.rule.make_policy && (setup.emulated || setup.make_compute),
             "make_policy is set, and emulated or make_compute");
  RRFP_CHECK(!setup.checkpoint || !setup.emulated, "an emulated device has nothing to save");
  RRFP_CHECK(!setup.open_devices || !setup.emulated, "ranks compute on devices of one kind");
  auto opened = std::make_unique<open_session>(std::move(setup), std::move(in_cluster));
  if (auto built = opened->build(); !built) return built.failure();
  return std::unique_ptr<session>{std::move(opened)};
}

}  // namespace rrfp::actors
