#include <rrfp/actors/trace.hpp>

#include <algorithm>
#include <cstring>
#include <span>
#include <type_traits>

#include <fmt/format.h>

#include <rrfp/base/check.hpp>
#include <rrfp/base/step_name.hpp>
#include <rrfp/io/atomic_file.hpp>

namespace rrfp::actors {

namespace {

/// Threads of a stage's process in the viewer: ranks from 0, waits below them.
constexpr std::uint32_t waits_thread = 1000;
constexpr std::uint32_t steps_thread = 1001;

double microseconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1000.0; }

const char* kind_of(step_id s) { return is_evaluation(s) ? "evaluation" : "step"; }

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out;
}

class json_events {
 public:
  explicit json_events(io::atomic_file& file) : file_(file) { put("{\"traceEvents\":[\n"); }

  void name(std::string_view what, std::uint32_t process, std::uint32_t thread,
            const std::string& value) {
    event(fmt::format(R"({{"name":"{}","ph":"M","pid":{},"tid":{},"args":{{"name":"{}"}}}})", what,
                      process, thread, value));
  }

  void add(std::uint32_t process, const task_record& r) {
    const auto& l = r.launched;
    const auto piece = l.piece.count == 1 ? std::string{}
                                          : fmt::format(R"("piece":{},"pieces":{},)",
                                                        l.piece.number, l.piece.count);
    const auto pass = l.pass == forward_pass::once
                          ? std::string{}
                          : fmt::format(R"("pass":"{}",)", rrfp::name(l.pass));
    event(fmt::format(
        R"({{"name":"{}","cat":"{}","ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{)"
        R"("{}":{},"mb":{},"chunk":{},"seq":{},{}{}"reason":"{}","skipped":{},"folds":{},)"
        R"("decided_us":{:.3f},"delay_us":{:.3f}}}}})",
        to_string(l.what), rrfp::name(l.what.kind), process, r.rank.value(), microseconds(r.begin),
        microseconds(r.end - r.begin), kind_of(r.step), number_of(r.step), l.what.mb.value(),
        l.what.chunk.value(), l.seq.value(), piece, pass, rrfp::name(l.why.why), l.why.skipped,
        l.folds.count, microseconds(r.decided), microseconds(r.delay)));
    event(fmt::format(R"({{"name":"slots","ph":"C","pid":{},"ts":{:.3f},"args":{{"held":{}}}}})",
                      process, microseconds(r.end), r.memory.slots));
    event(fmt::format(
        R"({{"name":"activation bytes","ph":"C","pid":{},"ts":{:.3f},"args":{{"held":{}}}}})",
        process, microseconds(r.end), r.held_bytes));
    if (r.device_memory.reserved == 0) return;
    event(fmt::format(R"({{"name":"device bytes","ph":"C","pid":{},"ts":{:.3f},)"
                      R"("args":{{"allocated":{},"reserved":{}}}}})",
                      process, microseconds(r.end), r.device_memory.allocated,
                      r.device_memory.reserved));
  }

  void add(std::uint32_t process, const wait_record& r) {
    event(fmt::format(
        R"({{"name":"wait: {}","cat":"wait","ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},)"
        R"("args":{{"{}":{},"for":"{}"}}}})",
        rrfp::name(r.waiting.why), process, waits_thread, microseconds(r.begin),
        microseconds(r.end - r.begin), kind_of(r.step), number_of(r.step),
        r.waiting.why == wait_cause::complete ? std::string{"the next step"}
                                              : to_string(r.waiting.head)));
  }

  void add(std::uint32_t process, const step_record& r) {
    event(fmt::format(
        R"({{"name":"step","cat":"step","ph":"i","s":"t","pid":{},"tid":{},"ts":{:.3f},)"
        R"("args":{{"step":{},"took_us":{:.3f},"peak_bytes":{}}}}})",
        process, steps_thread, microseconds(r.begin), number_of(r.step),
        microseconds(r.end - r.begin), r.peak_bytes));
  }

  void add(std::uint32_t process, const recovery_record& r) {
    event(fmt::format(
        R"({{"name":"recovery","cat":"recovery","ph":"X","pid":{},"tid":{},"ts":0,"dur":0,)"
        R"("args":{{"lost":"{}","step":{},"from_copies":{},"repeated_steps":{},"held_us":{:.3f}}}}})",
        process, steps_thread, escaped(r.lost), r.step, r.from_copies ? 1 : 0, r.repeated_steps,
        r.held_s * 1e6));
  }

  status finish(std::uint64_t dropped) {
    put(fmt::format("\n],\"displayTimeUnit\":\"ms\",\"otherData\":{{\"records_dropped\":{}}}}}\n",
                    dropped));
    flush();
    return written_;
  }

 private:
  void event(const std::string& text) {
    if (!first_) put(",\n");
    first_ = false;
    put(text);
  }
  void put(const std::string& text) {
    pending_ += text;
    if (pending_.size() >= bytes_at_once) flush();
  }
  void flush() {
    if (written_) written_ = file_.write(std::as_bytes(std::span{pending_}));
    pending_.clear();
  }

  static constexpr std::size_t bytes_at_once = std::size_t{1} << 20;

  io::atomic_file& file_;
  std::string pending_;
  status written_ = success();
  bool first_ = true;
};

}  // namespace

template <class Record>
void trace_recorder::keep(std::vector<Record>& all, const Record& r) {
  const std::lock_guard lock{mutex_};
  if (all.size() < records_max)
    all.push_back(r);
  else
    ++records_.dropped;
}

void trace_recorder::add(const task_record& r) { keep(records_.tasks, r); }
void trace_recorder::add(const wait_record& r) { keep(records_.waits, r); }
void trace_recorder::add(const step_record& r) { keep(records_.steps, r); }
void trace_recorder::add(const recovery_record& r) { keep(records_.recoveries, r); }

trace_records trace_recorder::records() const {
  const std::lock_guard lock{mutex_};
  return records_;
}

namespace {

// Records travel as raw memory: both ends are of the same build.
static_assert(std::is_trivially_copyable_v<task_record> &&
              std::is_trivially_copyable_v<wait_record>);

struct bytes_header {
  std::uint64_t tasks = 0;
  std::uint64_t waits = 0;
  std::uint64_t dropped = 0;
};

template <class T>
void append(std::string& bytes, const T* items, std::size_t count) {
  bytes.append(reinterpret_cast<const char*>(items), count * sizeof(T));
}

template <class T>
std::vector<T> read_records(std::string_view& bytes, std::size_t count) {
  std::vector<T> items(count);
  RRFP_CHECK(bytes.size() / sizeof(T) >= count, "records come from the same build");
  std::memcpy(items.data(), bytes.data(), count * sizeof(T));
  bytes.remove_prefix(count * sizeof(T));
  return items;
}

}  // namespace

std::string trace_recorder::to_bytes(std::size_t bytes_max) const {
  const std::lock_guard lock{mutex_};
  RRFP_CHECK(bytes_max >= sizeof(bytes_header), "bytes_max holds at least a header");
  const auto& all = records_;
  auto room = bytes_max - sizeof(bytes_header);
  bytes_header h;
  h.tasks = std::min(all.tasks.size(), room / sizeof(task_record));
  room -= h.tasks * sizeof(task_record);
  h.waits = std::min(all.waits.size(), room / sizeof(wait_record));
  h.dropped = all.dropped + (all.tasks.size() - h.tasks) + (all.waits.size() - h.waits);
  std::string bytes;
  append(bytes, &h, 1);
  append(bytes, all.tasks.data(), h.tasks);
  append(bytes, all.waits.data(), h.waits);
  return bytes;
}

void trace_recorder::add_bytes(std::string_view bytes) {
  if (bytes.empty()) return;
  const auto header = read_records<bytes_header>(bytes, 1)[0];
  const auto tasks = read_records<task_record>(bytes, header.tasks);
  const auto waits = read_records<wait_record>(bytes, header.waits);
  for (const auto& r : tasks) add(r);
  for (const auto& r : waits) add(r);
  const std::lock_guard lock{mutex_};
  records_.dropped += header.dropped;
}

status write_chrome_json(const std::string& path, const std::vector<titled_trace>& runs) {
  const auto file = io::atomic_file::create(path);
  if (!file) return file.failure();
  json_events events{**file};
  std::uint64_t dropped = 0;
  std::uint32_t first_process = 0;
  for (const auto& run : runs) {
    const auto all = run.trace->records();
    std::uint32_t replicas = 0;
    std::uint32_t stages = 0;
    std::uint32_t ranks = 1;
    const auto count = [&](const auto& r) {
      replicas = std::max(replicas, r.replica.value() + 1);
      stages = std::max(stages, r.stage.value() + 1);
    };
    for (const auto& r : all.tasks) {
      count(r);
      ranks = std::max(ranks, r.rank.value() + 1);
    }
    for (const auto& r : all.waits) count(r);
    const auto process_of = [&](const auto& r) {
      return first_process + r.replica.value() * stages + r.stage.value();
    };
    for (std::uint32_t i = 0; i < replicas * stages; ++i) {
      const auto process = first_process + i;
      const auto stage = fmt::format("stage {}", i % stages);
      const auto where = replicas == 1 ? stage : fmt::format("replica {} {}", i / stages, stage);
      events.name("process_name", process, 0, escaped(fmt::format("{}: {}", run.title, where)));
      for (std::uint32_t r = 0; r < ranks; ++r)
        events.name("thread_name", process, r, fmt::format("rank {}", r));
      events.name("thread_name", process, waits_thread, "waits");
    }
    if (!all.steps.empty() || !all.recoveries.empty())
      events.name("thread_name", first_process, steps_thread, "steps");
    for (const auto& r : all.recoveries) events.add(first_process, r);
    for (const auto& r : all.steps) events.add(first_process, r);
    for (const auto& r : all.tasks) events.add(process_of(r), r);
    for (const auto& r : all.waits) events.add(process_of(r), r);
    first_process += replicas * stages;
    dropped += all.dropped;
  }
  if (auto written = events.finish(dropped); !written) return written;
  return (*file)->commit();
}

}  // namespace rrfp::actors
