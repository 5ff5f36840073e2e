#include <rrfp/metrics/prometheus_text.hpp>

#include <cmath>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <rrfp/base/units.hpp>
#include <rrfp/metrics/board.hpp>

namespace rrfp::metrics {

namespace {

using labels = std::vector<std::pair<std::string, std::string>>;

template <class Id>
std::string text_of(Id id) {
  return std::to_string(id.value());
}

std::string text_of_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? std::string{"\\n"} : std::string(1, c);
  }
  return out;
}

constexpr const char* counter_type = "counter";
constexpr const char* gauge_type = "gauge";
constexpr const char* histogram_type = "histogram";

/// The lines of metric families, in the order of family().
class page {
 public:
  explicit page(labels common) : common_(std::move(common)) {}

  /// Starts a family; the values that follow belong to it.
  page& family(const char* name, const char* help, const char* type) {
    name_ = name;
    text_ += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
    return *this;
  }
  void value(const labels& own, auto number) { line("", own, static_cast<double>(number)); }
  void histogram(const labels& own, const duration_histogram& h) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i <= h.bounds.size(); ++i) {
      sum += h.count(i);
      auto of_bucket = own;
      of_bucket.emplace_back("le",
                             i == h.bounds.size() ? "+Inf" : text_of_number(seconds(h.bounds[i])));
      line("_bucket", of_bucket, static_cast<double>(sum));
    }
    line("_sum", own, seconds(h.sum()));
    line("_count", own, static_cast<double>(sum));
  }
  std::string take() { return std::move(text_); }

 private:
  void line(const char* suffix, const labels& own, double number) {
    std::string all;
    for (const auto* list : {&common_, &own})
      for (const auto& [label, text] : *list)
        all += fmt::format("{}{}=\"{}\"", all.empty() ? "" : ",", label, escaped(text));
    text_ += fmt::format("{}{}{{{}}} {}\n", name_, suffix, all, text_of_number(number));
  }

  const labels common_;
  std::string name_;  ///< of the family
  std::string text_;
};

labels labels_of(const stage_counters& s) {
  return {{"replica", text_of(s.replica)}, {"stage", text_of(s.stage)}};
}
labels labels_of(const auto& r) {
  const auto& [stage, rank, replica] = r.at;
  return {{"replica", text_of(replica)}, {"stage", text_of(stage)}, {"rank", text_of(rank)}};
}
labels with(labels all, const char* name, std::string_view value) {
  all.push_back({name, std::string{value}});
  return all;
}

/// A family with a value for each of `all`: what `value` makes of it, a number or a counter.
void add_each(page& to, const char* name, const char* help, const char* type, const auto& all,
              auto value) {
  to.family(name, help, type);
  for (const auto& one : all) {
    const auto& number = std::invoke(value, one);
    if constexpr (requires { number.value(); })
      to.value(labels_of(one), number.value());
    else
      to.value(labels_of(one), number);
  }
}

void add_job(page& to, const job_counters& j) {
  const auto total = [&](const char* name, const char* help, const auto& counted) {
    to.family(name, help, counter_type).value({}, counted.value());
  };
  const auto gauge = [&](const char* name, const char* help, const auto& current) {
    to.family(name, help, gauge_type).value({}, current.value());
  };
  total("rrfp_steps_total", "Steps of this run.", j.steps);
  total("rrfp_tokens_total", "Tokens trained on.", j.tokens);
  gauge("rrfp_first_step", "Steps that were complete before this run.", j.first_step);
  gauge("rrfp_loss", "Mean loss over the tokens of the last step, in nats.", j.loss);
  gauge("rrfp_gradient_norm", "Gradient norm of the last step, before clipping.", j.gradient_norm);
  gauge("rrfp_learning_rate", "Learning rate of the last step.", j.lr);
  gauge("rrfp_bubble_ratio", "Share of the stages' time without a task, in the last step.",
        j.bubble_fraction);
  to.family("rrfp_step_seconds", "Duration of steps.", histogram_type).histogram({}, j.step_time);
  add_each(to, "rrfp_rank_late_seconds_total",
           "By how much the rank worked longer than the median rank, so that others waited for it.",
           counter_type, j.late, [](const auto& r) { return seconds(r.late_ns.value()); });
  add_each(to, "rrfp_straggler_ratio",
           "Of a straggler: its lateness over the time of the last steps; 0: not a straggler.",
           gauge_type, j.late, &late_counter::lateness);
  to.family("rrfp_replica_microbatches", "Microbatches that the replica ran in the last step.",
            gauge_type);
  for (std::size_t r = 0; r < j.shares.size(); ++r)
    to.value({{"replica", std::to_string(r)}}, j.shares[r].value());
  total("rrfp_evaluations_total", "Evaluations on held-out data.", j.evaluations);
  gauge("rrfp_eval_loss", "Mean loss over the tokens of the last evaluation, in nats; 0: none yet.",
        j.eval_loss);
  total("rrfp_checkpoints_total", "Checkpoints that were saved.", j.checkpoints);
  total("rrfp_checkpoint_failures_total", "Checkpoints that could not be saved.",
        j.checkpoint_failures);
  gauge("rrfp_checkpoint_last_step", "Steps complete in the last checkpoint of this run; 0: none.",
        j.checkpoint_step);
  total("rrfp_restarts_total", "Losses and drains of nodes that the job survived.", j.restarts);
  total("rrfp_held_seconds_total", "Time from each loss until all nodes had joined again.",
        j.held_s);
  total("rrfp_repeated_steps_total", "Steps repeated after node losses.", j.repeated_steps);
}

void add_stages(page& to, const std::deque<stage_counters>& stages) {
  using stage = stage_counters;
  add_each(to, "rrfp_stage_steps_total", "Steps of this run that the stage has completed.",
           counter_type, stages, &stage::steps);
  to.family("rrfp_task_seconds", "Duration of tasks on the ranks of a stage, by kind.",
            histogram_type);
  for (const auto& s : stages)
    for (int k = 0; k < task_kinds; ++k)
      to.histogram(with(labels_of(s), "kind", name(static_cast<task_kind>(k))),
                   s.tasks[static_cast<std::size_t>(k)]);
  to.family("rrfp_decisions_total", "Launches by the reason of their choice.", counter_type);
  for (const auto& s : stages)
    for (std::size_t c = 0; c < choices; ++c)
      to.value(with(labels_of(s), "reason", name(static_cast<choice>(c))), s.decisions[c].value());
  add_each(to, "rrfp_skipped_hints_total",
           "Tasks that the hint ranked before a launched task and that were skipped.", counter_type,
           stages, &stage::skipped_hints);
  to.family("rrfp_stage_wait_seconds_total",
            "Time in which the stage could launch nothing, by cause.", counter_type);
  for (const auto& s : stages)
    for (std::size_t c = 0; c < wait_causes; ++c)
      to.value(with(labels_of(s), "cause", name(static_cast<wait_cause>(c))),
               seconds(s.waited_ns[c].value()));
  add_each(to, "rrfp_launch_gap_seconds_total",
           "Time in which a rank had a ready task and had not begun it: overhead of the runtime.",
           counter_type, stages, [](const auto& s) { return seconds(s.launch_gap_ns.value()); });
  to.family("rrfp_tp_wait_seconds",
            "Time from the arrival of an input on the first rank of a stage to the last.",
            histogram_type);
  for (const auto& s : stages) to.histogram(labels_of(s), s.tp_waits);
  const auto gauge = [&](const char* name, const char* help, auto value) {
    add_each(to, name, help, gauge_type, stages, value);
  };
  gauge("rrfp_ready_tasks", "Ready tasks, including those that wait for memory.", &stage::ready);
  gauge("rrfp_launches_outstanding", "Launches that are not finished on every rank.",
        &stage::outstanding);
  gauge("rrfp_slots_in_use", "Microbatches that hold memory on the stage.", &stage::slots);
  gauge("rrfp_slots_limit", "Maximum of rrfp_slots_in_use; 0: no limit.", &stage::slots_limit);
  gauge("rrfp_slot_bytes_in_use", "Estimated bytes of the slots in use.", &stage::slot_bytes);
  gauge("rrfp_slot_bytes_limit", "Maximum of rrfp_slot_bytes_in_use; 0: no limit.",
        &stage::slot_bytes_limit);
}

void add_ranks(page& to, const std::deque<rank_counters>& ranks) {
  const auto counter = [&](const char* name, const char* help, auto value) {
    add_each(to, name, help, counter_type, ranks, value);
  };
  using rank = rank_counters;
  counter("rrfp_tensors_sent_total", "Activations and gradients sent.", &rank::sent);
  counter("rrfp_sent_bytes_total", "Bytes of activations and gradients sent.", &rank::sent_bytes);
  counter("rrfp_tensors_received_total", "Activations and gradients received.", &rank::received);
  counter("rrfp_received_bytes_total", "Bytes of activations and gradients received.",
          &rank::received_bytes);
  counter("rrfp_collectives_total", "Collectives with other ranks.", &rank::collectives);
  add_each(to, "rrfp_collective_seconds_total",
           "Time in collectives, mostly waiting for other ranks.", counter_type, ranks,
           [](const auto& r) { return seconds(r.collective_ns.value()); });
  add_each(to, "rrfp_inputs_waiting", "Inputs that have arrived and whose tasks are not launched.",
           gauge_type, ranks, &rank::inputs_waiting);
  const auto memory = [&](const char* name, const char* help, auto value) {
    to.family(name, help, gauge_type);
    for (const auto& r : ranks)
      if (r.device_reserved.value() > 0) to.value(labels_of(r), (r.*value).value());
  };
  memory("rrfp_device_allocated_bytes", "Bytes of tensors on the device of a rank; absent on CPUs.",
         &rank::device_allocated);
  memory("rrfp_device_reserved_bytes",
         "Bytes that libtorch has reserved on the device; absent on CPUs.", &rank::device_reserved);
}

void add_transport(page& to, const run_counters& run) {
  const auto t = run.transport.read();
  const auto counter = [&](const char* name, const char* help, std::uint64_t value) {
    to.family(name, help, counter_type).value({}, value);
  };
  counter("rrfp_transport_sent_total", "Messages to other nodes, collectives included.", t.sent);
  counter("rrfp_transport_sent_bytes_total", "Bytes of messages to other nodes.", t.sent_bytes);
  counter("rrfp_transport_received_total", "Messages from other nodes.", t.received);
  counter("rrfp_transport_received_bytes_total", "Bytes of messages from other nodes.",
          t.received_bytes);
  counter("rrfp_transport_duplicates_total", "Duplicate messages that were dropped.",
          t.dropped_duplicate);
  counter("rrfp_transport_dropped_total",
          "Stale, damaged and undeliverable messages that were dropped.", t.dropped_others());
  to.family("rrfp_transport_announced", "Announced messages that are not fetched yet.", gauge_type)
      .value({}, t.announced);
  to.family("rrfp_transport_inflight_bytes", "Bytes being fetched.", gauge_type)
      .value({}, t.inflight_bytes);
}

void add_ages(page& to, const run_counters& run, std::int64_t now) {
  const auto age = [&](std::int64_t then) { return seconds(now - then); };
  to.family("rrfp_last_progress_age_seconds",
            "Time since the last progress of a stage on this node.", gauge_type)
      .value({}, age(run.last_progress.value()));
  to.family("rrfp_hang_timeout_seconds",
            "Time without progress after which the run ends; absent without a limit.", gauge_type);
  if (run.hang_timeout_s > 0) to.value({}, run.hang_timeout_s);
  to.family("rrfp_last_step_age_seconds",
            "Time since a stage on this node completed a step; absent before the first.",
            gauge_type);
  if (run.last_step.value() != 0) to.value({}, age(run.last_step.value()));
  to.family("rrfp_healthy", "1 while steps progress, as in /healthz; else 0.", gauge_type)
      .value({}, health_of(&run, now).good ? 1 : 0);
}

}  // namespace

std::string prometheus_text(node_id node, const std::string& version, const run_counters* run,
                            std::int64_t now) {
  const auto node_labels = labels{{"node", text_of(node)}};
  page about{node_labels};
  about.family("rrfp_info", "The version of the program.", gauge_type)
      .value({{"version", version}}, 1);
  auto text = about.take();
  if (run == nullptr) return text;
  page to{with(node_labels, "run", run->run)};
  if (run->leads) add_job(to, run->job);
  add_stages(to, run->stages);
  add_ranks(to, run->ranks);
  add_transport(to, *run);
  add_ages(to, *run, now);
  return text + to.take();
}

}  // namespace rrfp::metrics
