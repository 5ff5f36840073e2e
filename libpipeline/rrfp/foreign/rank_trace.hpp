/// What the trace of one rank says about its pipeline, whoever wrote it.
///
/// The names come from torch.distributed.pipelining:
///
///   PP:1F0, PP:1I0, PP:1W0, PP:1B0       a task of _PipelineScheduleRuntime (all schedules with
///   PP:1SEND_F0, PP:1RECV_B0, ...        several stages per rank): virtual stage, kind, microbatch
///   Forward 0, Backward 0                GPipe
///   c10d::send, c10d::recv_              posts of messages
///
/// Schedule1F1B names nothing: its tasks are found between its messages (find_tasks.hpp).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <rrfp/base/result.hpp>
#include <rrfp/report/trace.hpp>

namespace rrfp::foreign {

using report::nanoseconds;

struct interval {
  nanoseconds begin = 0;
  nanoseconds end = 0;
};

/// Its virtual stage or microbatch is not in its name.
inline constexpr std::uint32_t unnamed = ~std::uint32_t{0};

/// A named interval of the host.
struct marked_range : interval {
  std::optional<task_kind> kind;  ///< nothing: it receives a message
  /// Of a message: of an activation, else of a gradient.
  bool is_forward = true;
  std::uint32_t virtual_stage = unnamed;
  std::uint32_t microbatch = unnamed;
};

struct message_span : interval {
  bool is_send = false;
};

/// An operator, without those inside it.
struct operator_span : interval {
  bool is_autograd = false;
};

/// A kernel, or a copy on the device.
struct kernel_span : interval {
  std::uint64_t correlation = 0;
  bool is_collective = false;
};

struct kernel_launch {
  nanoseconds at = 0;
  std::uint64_t correlation = 0;
};

/// The forward operator that a backward operator belongs to.
struct gradient_link {
  nanoseconds forward = 0;
  nanoseconds backward = 0;
};

/// Times are nanoseconds on the clock of the rank's node. All lists are ordered by begin.
struct rank_trace {
  std::string file;
  std::optional<std::uint32_t> rank;
  /// The ranks of its pipeline in order; empty: unknown.
  std::vector<std::uint32_t> pipeline;
  std::vector<marked_range> named;      ///< PP: and Forward, Backward
  std::vector<marked_range> functions;  ///< Python functions that run one task
  std::vector<message_span> posts;
  std::vector<message_span> transfers;  ///< of gloo
  std::vector<operator_span> operators;
  std::vector<gradient_link> links;
  std::vector<nanoseconds> splits;   ///< ends of the splits of a batch into microbatches
  std::vector<nanoseconds> updates;  ///< ends of the steps of torch.optim
  std::vector<kernel_span> kernels;
  std::vector<kernel_launch> launches;
  /// Pairs of an F and a B that DualPipeV runs as one, without times of their own.
  std::uint64_t overlapped = 0;
};

/// Records of one file that are kept; beyond, a trace has too many steps to be read.
inline constexpr std::size_t kept_records_max = 16'000'000;

/// "trace_rank3.json.gz", "rank3_trace.json": the number after the last "rank" of the file's name.
std::optional<std::uint32_t> rank_in(const std::string& file);

/// Fills a trace, record by record. Intervals of a thread come in the order of their begins, the
/// outer one first.
class rank_trace_filler {
 public:
  /// Thrown beyond kept_records_max.
  struct too_many {};
  static error too_many_in(const std::string& file);

  explicit rank_trace_filler(rank_trace& into) : into_(into) {}

  void annotation(interval time, std::string_view name);
  /// Returns whether it is an operator inside no other one.
  bool operation(interval time, std::string_view name, std::uint64_t thread);
  void function(interval time, task_kind kind) { push(into_.functions, {time, kind}); }
  void kernel(kernel_span span) { push(into_.kernels, span); }
  void launch(kernel_launch launched) { push(into_.launches, launched); }
  void message(message_span span) { push(into_.transfers, span); }
  /// Where the forward operator with an identity of its own begins, and where its gradient's does.
  /// If an identity comes again, the last one counts.
  void forward_of(std::uint64_t id, nanoseconds at) { link(link_begins_, id, at); }
  void backward_of(std::uint64_t id, nanoseconds at) { link(link_ends_, id, at); }

  /// Call at the end, once: adds `base` to all times, and orders all lists.
  void finish(nanoseconds base);

 private:
  using times_by_id = std::unordered_map<std::uint64_t, nanoseconds>;

  void count();
  template <class Record>
  void push(std::vector<Record>& list, const Record& record) {
    count();
    list.push_back(record);
  }
  void link(times_by_id& ends, std::uint64_t id, nanoseconds at) {
    count();
    ends[id] = at;
  }

  rank_trace& into_;
  std::size_t kept_ = 0;
  times_by_id link_begins_, link_ends_, operator_ends_;
};

}  // namespace rrfp::foreign
