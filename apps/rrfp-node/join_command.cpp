#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <stop_token>
#include <thread>

#include <fmt/format.h>

#include <rrfp/base/exit_code.hpp>

#include <rrfp/actors/job_cluster.hpp>
#include <rrfp/plan/node_places.hpp>
#include <rrfp/policies/registry.hpp>

#include "../common/console.hpp"
#include "../common/program.hpp"
#include "commands.hpp"
#include "framework.hpp"
#include "metrics_server.hpp"
#include "report_file.hpp"
#include "training.hpp"

#include <fcntl.h>

namespace rrfp::apps {

namespace {

/// How long node 0 may take to write traces and tables after training.
constexpr std::chrono::minutes outputs_limit{10};

/// The membership closes its descriptors; the next one needs them again.
int duplicate(int fd) { return fd < 0 ? fd : ::fcntl(fd, F_DUPFD_CLOEXEC, 0); }

/// Says what a join waits for: soon, whenever that changes, and once a minute.
class waiting_lines {
 public:
  void note(const std::string& text) {
    const auto now = std::chrono::steady_clock::now();
    const auto since_last = now - last_;
    if (since_last < between || (text == said_ && since_last < again)) return;
    said_ = text;
    last_ = now;
    print_error("rrfp-node: {}\n", text);
  }

 private:
  static constexpr std::chrono::seconds between{3};
  static constexpr std::chrono::minutes again{1};
  std::string said_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

actors::join_hooks hooks_of(const join_options& join, std::string description,
                            std::stop_token stop) {
  actors::join_hooks hooks;
  hooks.listen_fd = duplicate(join.rendezvous_fd);
  hooks.key_fd = duplicate(join.key_fd);
  hooks.version = RRFP_VERSION;
  hooks.description = std::move(description);
  hooks.stop = std::move(stop);
  hooks.on_refused = [](const std::string& why) { print_error("rrfp-node: {}\n", why); };
  // The launcher names the lost node.
  if (!join.launched) hooks.on_gone_early = hooks.on_refused;
  return hooks;
}

/// As actors::join_job(). After a loss, a node that has not noticed it yet refuses to let others
/// join, also the replacement, so each tries again: for recovery.hold_s in all, or, in a process
/// that has just started, for transport.join_timeout_s.
result<std::unique_ptr<actors::membership>> join_nodes(
    job::job j, const join_options& join, const actors::launch_place& place,
    const std::string& description, const training& course,
    const std::shared_ptr<actors::process_standing>& standing, const std::stop_token& stop,
    bool waits_once) {
  using seconds = std::chrono::duration<double>;
  constexpr std::chrono::milliseconds pause{100};
  const bool is_new = course.loss().empty();
  const auto since = is_new ? std::chrono::steady_clock::now() : course.lost_at();
  const auto limit = is_new ? j.transport.join_timeout_s : j.recovery.hold_s;
  waiting_lines lines;
  // Of a launcher's nodes, one speaks for all.
  const bool speaks = !join.launched || place.node == node_id{0};
  const auto note = [&](const std::string& text) {
    if (speaks) lines.note(text);
  };
  for (j.transport.join_timeout_s = limit;;) {
    const auto left = [&] {
      return limit - seconds{std::chrono::steady_clock::now() - since}.count();
    };
    auto hooks = hooks_of(join, description, stop);
    hooks.standing = standing;
    hooks.on_waiting = note;
    auto joined = actors::join_job(j, place, *make_framework(), std::move(hooks));
    const bool may_try_again = standing && !standing->is_lost() && !standing->is_over();
    // Told to end itself, it waits for the others at most once.
    if (joined || !may_try_again || waits_once || joined.failure().kind != error_kind::node_lost ||
        left() <= 0)
      return joined;
    note(joined.message());
    std::this_thread::sleep_for(pause);
    j.transport.join_timeout_s = std::max(left(), seconds{pause}.count());
  }
}

/// Nobody is left who could tell the end of the job to a replacement: a kill from here on would
/// look like a loss to whoever starts nodes again. So no time is spent on destructors.
[[noreturn]] void end_at_once(int code) {
  std::_Exit(code == exit_done && has_output_failed() ? exit_failed : code);
}

/// Node 0 writes the outputs of the job. If it is lost before that, all nodes must restart. Once
/// all have agreed that it has written them, the job is over: replacements of nodes that are lost
/// after that are told so, for recovery.hold_s.
int wait_for_outputs(training& course, const node_context& context, double hold_s,
                     interrupt_watch& interrupts) {
  auto& members = *context.members;
  interrupts.let_drain(false);
  interrupts.on_interrupt([&] { members.interrupt(); });
  const auto agreed = context.standing != nullptr
                          ? members.finish(outputs_limit)
                          : actors::agree_on(members, success(), outputs_limit);
  const auto lost = members.loss();
  const bool counts = lost && !(agreed && context.standing != nullptr);
  const int code = counts ? course.lose(lost->why, context) : exit_done;
  if (agreed && context.standing != nullptr) {
    std::fflush(nullptr);
    members.leave(std::chrono::milliseconds{static_cast<std::int64_t>(hold_s * 1e3)},
                  [code] { end_at_once(code); });
  }
  interrupts.on_interrupt(nullptr);
  return code;
}

/// Joins the other nodes and trains. Returns the exit code, or nothing after a loss after which the
/// job may go on.
std::optional<int> train_as_member(const job::job& j, const join_options& join,
                                   const actors::launch_place& place,
                                   const std::string& description, training& course,
                                   const std::shared_ptr<actors::process_standing>& standing,
                                   interrupt_watch& interrupts) {
  std::stop_source stop;
  interrupts.let_drain(false);
  // Told to end when another node was: this one leaves after that one is replaced.
  if (!course.is_handed_over()) interrupts.give_up_drain();
  interrupts.on_interrupt([&] { stop.request_stop(); });
  const auto joined = join_nodes(j, join, place, description, course, standing, stop.get_token(),
                                 interrupts.is_draining());
  interrupts.on_interrupt(nullptr);
  const auto loss = course.loss();
  if (!joined) interrupts.give_up_drain();
  if (interrupts.interrupted()) {
    // A launcher forwards the user's interrupts as SIGINT. With SIGTERM it ends the remaining nodes
    // after a failure, which it reports itself.
    if (!join.launched || (place.node == node_id{0} && interrupts.last() == SIGINT))
      print_error("rrfp-node: interrupted {}\n",
                  loss.empty() ? "before the training began" : "after " + loss);
    return exit_interrupted;
  }
  if (!joined && standing && standing->is_over()) {
    print("{}: the job is over\n", j.name);
    return exit_done;
  }
  if (!joined) {
    if (loss.empty()) return end_with(joined.failure());
    print_error("rrfp-node: {}; {}\n", loss, joined.message());
    return exit_code_of(joined.failure().kind);
  }
  const auto& members = *joined;
  interrupts.let_drain(place.nodes > 1);
  const node_context context{{members.get()}, join.launched, standing};
  const auto end = [&](int code) {
    return course.loss().empty() ? std::optional{code} : std::nullopt;
  };
  int code = course.go_on(context);
  if (code == exit_done) code = wait_for_outputs(course, context, j.recovery.hold_s, interrupts);
  // All nodes have agreed on every other end, and know which node leaves.
  const bool is_known = code != exit_node_lost || course.is_handed_over();
  if (is_known && !(standing && standing->is_over())) members->leave();
  return end(code);
}

}  // namespace

int join_command(const command_options& options, const join_options& join) {
  interrupt_watch interrupts;
  const auto place = actors::resolve_launch(
      {join.nodes, join.node_rank, join.rendezvous, join.master_host, join.master_port},
      [](const char* name) -> const char* { return std::getenv(name); });
  if (!place) return end_with(place.failure());
  if (!place->has_nodes)
    return end_with(
        {"--nnodes: expected the number of nodes, here or in WORLD_SIZE, NNODES, GROUP_WORLD_SIZE "
         "or "
         "SLURM_NNODES, got none; `rrfp-node run` trains on this machine alone"});
  const auto loaded = job::load_job(options.job, policies::registry(), options.settings);
  if (!loaded) return end_with(loaded.failure());
  const auto runs = job::variants(*loaded);
  if (auto enough = actors::check_threads(runs[0], place->nodes); !enough)
    return end_with(enough.failure());
  auto reports = reports_folder(options);
  if (!reports) return end_with(reports.failure());
  metrics::board board;
  const training_options outputs{options.json, options.trace, *reports, &board};
  auto checked =
      check_training(runs, place->node == node_id{0} ? outputs : training_options{}, place->nodes);
  if (!checked) return end_with(checked.failure());
  std::unique_ptr<metrics_server> server;
  if (!options.metrics.empty()) {
    const auto at = parse_http_address(options.metrics);
    if (!at) return end_with(at.failure());
    auto opened = metrics_server::open(*at, place->node, board);
    if (!opened) return end_with(opened.failure());
    server = std::move(*opened);
  }
  const auto places = plan::node_places::make(runs[0], place->nodes);

  // A launcher starts a node again only when its process has ended, so that one may join again.
  const auto standing = runs[0].recovery.max_restarts > 0
                            ? std::make_shared<actors::process_standing>(!join.launched)
                            : nullptr;
  training course{*std::move(checked), outputs, interrupts};
  for (;;)
    if (const auto code = train_as_member(*loaded, join, *place, places->describe(place->node),
                                          course, standing, interrupts))
      return *code;
}

}  // namespace rrfp::apps
