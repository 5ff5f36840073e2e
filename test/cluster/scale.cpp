#include "scale.hpp"

#include <cmath>
#include <cstdio>

namespace rrfp::cluster {

namespace {

/// Encryption, a system call and a decision, for each message of node 0; and the bytes of a link.
constexpr nanoseconds message_time = 10 * us;
constexpr double link_bytes_a_second = 125e6;
/// Room for what is constant, and for retries that differ from run to run.
constexpr double growth_room = 1.3;
constexpr std::uint64_t small_messages = 64, small_bytes = 16 * 1024;
/// Node 0 has other work, too.
constexpr double heartbeat_share_max = 0.5;
constexpr nanoseconds busy_max = 5 * s;
constexpr nanoseconds training_time = 8 * s;

double n_log_n(std::uint32_t nodes) { return nodes * std::log2(nodes); }

std::string format(const char* form, auto... values) {
  char text[256];
  std::snprintf(text, sizeof text, form, values...);
  return text;
}

}  // namespace

scenario scale_scenario(std::uint32_t nodes) {
  scenario c;
  c.seed = nodes;
  c.nodes = nodes;
  c.shape = {nodes, 1, 4, placement::linear};
  c.steps = 3;
  c.policy = "bfw";
  // Equally long, so that as many heartbeats are sent.
  c.task_time = training_time / (static_cast<nanoseconds>(2 * c.steps) * (nodes + 4));
  c.max_restarts = 50;
  c.saves = {1, 2};
  c.heartbeat = 200 * ms;
  c.node_timeout = 10 * s;
  c.eager_bytes_max = 1000;
  c.inflight_bytes_max = 4000;
  c.piece_bytes = membership_core::piece_bytes_max;
  c.address_bytes = 300;  // of UCX with shared memory and TCP
  c.record_bytes = 350;
  for (std::uint32_t n = 0; n < nodes; ++n) {
    c.hosts.push_back("host-" + std::to_string(n / 8));
    c.skew.push_back(0);
    c.drift_ppm.push_back(0);
    c.starts_late.push_back(0);
  }
  return c;
}

scale_result run_at_scale(std::uint32_t nodes) {
  auto c = scale_scenario(nodes);
  traffic ignored;
  const auto whole = run_scenario(c, nullptr, &ignored);
  // In the middle of the steps.
  c.faults.push_back({fault_kind::crash, (whole.first_commit + whole.last_commit) / 2, nodes / 2});
  scale_result r;
  r.nodes = nodes;
  r.ended = run_scenario(c, nullptr, &r.counted);
  r.time = r.ended.time;
  r.recovery = r.ended.went_on - c.faults.front().at;
  if (r.ended.failure.empty() && whole.failure.empty() && r.ended.recoveries == 0)
    r.ended.failure = "no node was lost";
  if (r.ended.failure.empty()) r.ended.failure = whole.failure;
  return r;
}

nanoseconds busy_time_of_0(const traffic::sums& of) {
  const auto messages = of.sent_by_0.messages + of.received_by_0.messages;
  const auto bytes = std::max(of.sent_by_0.bytes, of.received_by_0.bytes);
  return static_cast<nanoseconds>(messages) * message_time +
         static_cast<nanoseconds>(static_cast<double>(bytes) / link_bytes_a_second * 1e9);
}

std::string table_of(const std::vector<scale_result>& results) {
  auto text = format(
      "One node a stage, 3 steps, copies and a save after each, the crash of one node. Bytes "
      "without TLS\n"
      "and TCP. Node 0 is busy for %.0f us with each message, and sends %.0f MB a second.\n\n",
      static_cast<double>(message_time) / us, link_bytes_a_second / 1e6);
  for (const auto& r : results) {
    text += format("%u nodes: %.1f s, %.2f s from the crash to the next complete step%s\n", r.nodes,
                   static_cast<double>(r.time) / s, static_cast<double>(r.recovery) / s,
                   r.ended.failure.empty() ? "" : ", FAILED");
    text += format("  %-12s %10s %12s | node 0 sends %8s %10s | gets %8s %10s | busy %8s\n", "",
                   "messages", "bytes", "messages", "bytes", "messages", "bytes", "ms");
    for (std::size_t p = 0; p < purposes; ++p) {
      const auto& c = r.counted.by_purpose[p];
      text += format("  %-12s %10llu %12llu | %21llu %10llu | %13llu %10llu | %13.1f\n",
                     std::string{name(static_cast<purpose>(p))}.c_str(), c.all.messages,
                     c.all.bytes, c.sent_by_0.messages, c.sent_by_0.bytes, c.received_by_0.messages,
                     c.received_by_0.bytes, static_cast<double>(busy_time_of_0(c)) / ms);
    }
  }
  return text;
}

std::vector<std::string> faults_of_scale(const std::vector<scale_result>& results) {
  std::vector<std::string> faults;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const auto& r = results[i];
    if (!r.ended.failure.empty()) faults.push_back(format("%u nodes: ", r.nodes) + r.ended.failure);
    for (std::size_t p = 0; p < purposes; ++p) {
      const auto kind = static_cast<purpose>(p);
      const auto title = std::string{name(kind)} + format(", %u nodes: ", r.nodes);
      const auto& now = r.counted.by_purpose[p];
      const auto busy = busy_time_of_0(now);
      if (kind == purpose::heartbeats) {
        const auto share = static_cast<double>(busy) / static_cast<double>(r.time);
        if (share > heartbeat_share_max)
          faults.push_back(title +
                           format("node 0 is busy with them for %.0f %% of the time", 100 * share));
      } else if (busy > busy_max) {
        faults.push_back(title +
                         format("node 0 is busy for %.1f s", static_cast<double>(busy) / s));
      }
      if (i == 0) continue;
      const auto& before = results[i - 1];
      const auto& then = before.counted.by_purpose[p];
      const auto may = growth_room * n_log_n(r.nodes) / n_log_n(before.nodes);
      const auto check = [&](const char* what, std::uint64_t a, std::uint64_t b,
                             std::uint64_t small) {
        if (static_cast<double>(b) > may * static_cast<double>(a) + static_cast<double>(small))
          faults.push_back(title +
                           format("%s grew from %llu to %llu, faster than n log n", what, a, b));
      };
      check("messages", then.all.messages, now.all.messages, small_messages);
      check("bytes", then.all.bytes, now.all.bytes, small_bytes);
      check("messages of node 0", then.sent_by_0.messages, now.sent_by_0.messages, small_messages);
      check("bytes of node 0", then.sent_by_0.bytes, now.sent_by_0.bytes, small_bytes);
    }
  }
  return faults;
}

}  // namespace rrfp::cluster
