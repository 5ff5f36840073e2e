#include "nvtx.hpp"

#include <algorithm>
#include <array>
#include <map>

#include <fmt/format.h>

#include "csv.hpp"

namespace rrfp::foreign {

namespace {

constexpr std::size_t processes_max = 64;

using row = std::array<std::string_view, 5>;  ///< names of columns, or their cells
using places = std::array<std::size_t, 5>;    ///< of the columns

constexpr row range_columns{"Start (ns)", "End (ns)", "Name", "PID", "TID"};
constexpr row kernel_columns{"API Start (ns)", "Kernel Start (ns)", "Kernel Dur (ns)",
                             "Kernel Name", "PID"};

std::optional<places> places_of(const csv_cells& cells, const row& names) {
  places found{};
  for (std::size_t c = 0; c < names.size(); ++c) {
    const auto cell = std::ranges::find(cells, names[c]);
    if (cell == cells.end()) return std::nullopt;
    found[c] = static_cast<std::size_t>(cell - cells.begin());
  }
  return found;
}

/// Calls `take` with the cells of these columns, for each row.
class table_reader : public csv_table {
 public:
  table_reader(const std::string& file, const row& names) : csv_table(file), names_(names) {}

  template <class Take>
  status read_rows(const Take& take) {
    const auto take_row = [&](std::string_view, const csv_cells& cells) -> status {
      if (!places_) {
        places_ = places_of(cells, names_);
        return success();
      }
      row found;
      for (std::size_t c = 0; c < found.size(); ++c)
        found[c] = (*places_)[c] < cells.size() ? cells[(*places_)[c]] : std::string_view{};
      return take(found);
    };
    return read("a table of nsys stats", take_row);
  }

  /// Nanoseconds, or the number of a process or a thread.
  result<std::int64_t> number(const row& cells, std::size_t column) const {
    constexpr std::int64_t most = 2'500'000'000'000'000'000;
    const auto n = parse_number<std::int64_t>(cells[column]);
    if (!n || *n < 0 || *n > most)
      return expected(fmt::format("a whole number as {}", names_[column]), cells[column]);
    return *n;
  }

 private:
  const row& names_;
  std::optional<places> places_;
};

/// What a message of Megatron-Core receives, so what runs after it.
enum class received : std::uint8_t { activation, gradient, nothing, several };

std::optional<received> megatron_message(std::string_view name) {
  constexpr std::string_view functions = "megatron.core.pipeline_parallel.p2p_communication.";
  if (!name.starts_with(functions)) return std::nullopt;
  name.remove_prefix(functions.size());
  if (name == "recv_forward" || name == "send_backward_recv_forward") return received::activation;
  if (name == "recv_backward" || name == "send_forward_recv_backward") return received::gradient;
  if (name == "send_forward" || name == "send_backward") return received::nothing;
  return received::several;
}

std::optional<std::uint64_t> sequence_number(std::string_view text) {
  constexpr std::string_view word = ", seq = ";
  const auto at = text.find(word);
  if (at == std::string_view::npos) return std::nullopt;
  text.remove_prefix(at + word.size());
  return parse_number<std::uint64_t>(text.substr(0, text.find(',')));
}

class process {
 public:
  rank_trace trace;

  bool has_pipeline() const {
    return !trace.named.empty() || !trace.functions.empty() || !trace.posts.empty() ||
           trace.overlapped > 0;
  }

  void add_range(interval time, std::string_view text, std::uint64_t thread) {
    // Before it stands the domain; that of PyTorch has no name.
    if (text.starts_with(':')) text.remove_prefix(1);
    const auto name = text.substr(0, text.find(','));
    if (const auto message = megatron_message(name)) return add_message(time, *message);
    const auto sequence = sequence_number(text);
    const bool is_engine = name.starts_with("autograd::engine::");
    if (!sequence && !is_engine && !name.starts_with("c10d::"))
      return filler_.annotation(time, name);
    const bool is_outer = filler_.operation(time, name, thread);
    if (!sequence || is_engine) return;
    if (is_outer)
      filler_.forward_of(*sequence, time.begin);
    else if (name.find("Backward") != std::string_view::npos)
      filler_.backward_of(*sequence, time.begin);
  }

  void add_kernel(nanoseconds launched, interval ran, bool is_collective) {
    filler_.launch({launched, ++kernels_});
    filler_.kernel({ran, kernels_, is_collective});
  }

  void finish() { filler_.finish(0); }

 private:
  void add_message(interval time, received what) {
    if (open_) filler_.function({begin_, std::max(begin_, time.begin)}, *open_);
    open_ = std::nullopt;
    if (what == received::nothing) return;
    open_ = what == received::activation ? task_kind::forward : task_kind::backward_weight;
    begin_ = time.end;
    filler_.message({time, false});
  }

  rank_trace_filler filler_{trace};
  std::optional<task_kind> open_;  ///< the task since the last receive, which ended at `begin_`
  nanoseconds begin_ = 0;
  std::uint64_t kernels_ = 0;
};

using processes = std::map<std::int64_t, process>;

status read_ranges(const std::string& file, processes& found) {
  table_reader table{file, range_columns};
  return table.read_rows([&](const row& cells) -> status {
    const auto begin = table.number(cells, 0), end = table.number(cells, 1);
    const auto id = table.number(cells, 3), thread = table.number(cells, 4);
    for (const auto* n : {&begin, &end, &id, &thread})
      if (!*n) return n->failure();
    if (*end < *begin) return table.expected("an end not before the start", cells[1]);
    if (megatron_message(cells[2].substr(cells[2].starts_with(':'))) == received::several)
      return table.expected("messages of Megatron's schedule without interleaving", cells[2]);
    if (found.size() == processes_max && !found.contains(*id))
      return table.expected(fmt::format("at most {} processes", processes_max), cells[3]);
    found[*id].add_range({*begin, *end}, cells[2], static_cast<std::uint64_t>(*thread));
    return success();
  });
}

status read_kernels(const std::string& file, processes& found) {
  table_reader table{file, kernel_columns};
  return table.read_rows([&](const row& cells) -> status {
    const auto launched = table.number(cells, 0), begin = table.number(cells, 1);
    const auto took = table.number(cells, 2), id = table.number(cells, 4);
    for (const auto* n : {&launched, &begin, &took, &id})
      if (!*n) return n->failure();
    if (const auto of = found.find(*id); of != found.end())
      of->second.add_kernel(*launched, {*begin, *begin + *took}, cells[3].starts_with("nccl"));
    return success();
  });
}

}  // namespace

std::optional<nsys_table> nsys_table_in(std::string_view head) {
  while (!head.empty()) {
    const auto line = head.substr(0, head.find('\n'));
    const auto cells = cells_of(line);
    if (places_of(cells, range_columns)) return nsys_table::ranges;
    if (places_of(cells, kernel_columns)) return nsys_table::kernels;
    if (line.find("(ns),") != std::string_view::npos) return nsys_table::other;
    head.remove_prefix(std::min(line.size() + 1, head.size()));
  }
  return std::nullopt;
}

std::string kernels_beside(const std::string& ranges) {
  constexpr std::string_view table = "nvtx_pushpop_trace";
  const auto at = ranges.rfind(table);
  if (at == std::string::npos) return {};
  return std::string{ranges}.replace(at, table.size(), "cuda_kern_exec_trace");
}

result<std::vector<rank_trace>> read_nvtx(const std::string& ranges, const std::string& kernels) {
  processes found;
  try {
    if (auto read = read_ranges(ranges, found); !read) return read.failure();
    std::erase_if(found, [](const auto& p) { return !p.second.has_pipeline(); });
    if (!kernels.empty())
      if (auto read = read_kernels(kernels, found); !read) return read.failure();
  } catch (const rank_trace_filler::too_many&) {
    return rank_trace_filler::too_many_in(ranges);
  }
  std::vector<rank_trace> made;
  for (auto& [_, p] : found) {
    p.finish();
    made.push_back(std::move(p.trace));
  }
  if (made.empty()) made.emplace_back();
  for (auto& trace : made) trace.file = ranges;
  if (made.size() == 1) made.front().rank = rank_in(ranges);
  return made;
}

}  // namespace rrfp::foreign
