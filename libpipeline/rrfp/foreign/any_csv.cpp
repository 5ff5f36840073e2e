#include "any_csv.hpp"

#include <array>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "assemble.hpp"
#include "csv.hpp"

namespace rrfp::foreign {

namespace {

enum class column : std::uint8_t { stage, chunk, microbatch, kind, step, start, end };
constexpr std::size_t columns = 7;
constexpr std::size_t rows_max = 16'000'000;

struct column_name {
  std::string_view name;
  column what;
};
constexpr column_name names[] = {{"stage", column::stage},    {"rank", column::stage},
                                 {"chunk", column::chunk},    {"microbatch", column::microbatch},
                                 {"mb", column::microbatch},  {"kind", column::kind},
                                 {"step", column::step},      {"start", column::start},
                                 {"start_ms", column::start}, {"begin_ms", column::start},
                                 {"end", column::end},        {"end_ms", column::end}};

/// The cell of each column; npos: the file has none.
using layout = std::array<std::size_t, columns>;

std::optional<layout> layout_of(std::string_view header) {
  constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";
  if (header.starts_with(byte_order_mark)) header.remove_prefix(byte_order_mark.size());
  layout found;
  found.fill(std::string_view::npos);
  const auto cells = cells_of(header);
  for (std::size_t i = 0; i < cells.size(); ++i)
    for (const auto& n : names)
      if (cells[i] == n.name) found[static_cast<std::size_t>(n.what)] = i;
  for (const auto c : {column::stage, column::microbatch, column::kind, column::start, column::end})
    if (found[static_cast<std::size_t>(c)] == std::string_view::npos) return std::nullopt;
  return found;
}

class csv_reader : public csv_table {
 public:
  using csv_table::csv_table;

  result<found_run> read_run() {
    const auto take = [&](std::string_view line, const csv_cells& cells) -> status {
      if (width_ > 0) return read_line(line, cells);
      const auto found = layout_of(line);
      if (!found)
        return error{file() + ":1: expected a header with stage, microbatch, kind, start and end"};
      where_ = *found;
      width_ = cells.size();
      return success();
    };
    if (auto done = read("a CSV file", take); !done) return done.failure();
    return finish();
  }

 private:
  status read_line(std::string_view line, const csv_cells& cells) {
    // With a comma in a number, times would be read from the wrong cells.
    if (cells.size() > width_) return expected(fmt::format("at most {} cells", width_), line);
    const auto kind = task_kind_of(cell(cells, column::kind));
    if (!kind) return expected("a kind F, B, W or BW", cell(cells, column::kind));
    const auto whole = [&](column c, std::uint64_t max) -> result<std::uint64_t> {
      const auto text = cell(cells, c);
      if (text.empty() && where_[static_cast<std::size_t>(c)] == std::string_view::npos)
        return std::uint64_t{0};
      const auto n = parse_number<std::uint64_t>(text);
      if (!n || *n > max) return expected(fmt::format("a whole number up to {}", max), text);
      return *n;
    };
    const auto stage = whole(column::stage, report::traced_stages_max - 1);
    const auto chunk = whole(column::chunk, report::traced_chunks_max - 1);
    const auto mb = whole(column::microbatch, report::traced_microbatches_max - 1);
    const auto step = whole(column::step, std::uint64_t{1} << 52);
    for (const auto* n : {&stage, &chunk, &mb, &step})
      if (!*n) return n->failure();
    const auto begin = time(cell(cells, column::start));
    const auto end = time(cell(cells, column::end));
    if (!begin || !end || *end < *begin)
      return expected("milliseconds, of the end not before those of the start",
                      fmt::format("{}, {}", cell(cells, column::start), cell(cells, column::end)));
    if (records_.size() >= rows_max) return expected("at most 16,000,000 tasks", "more");
    auto& t = records_.emplace_back();
    t.stage = stage_id{static_cast<std::uint32_t>(*stage)};
    t.step = step_id{*step};
    t.what = {*kind, microbatch_id{static_cast<std::uint32_t>(*mb)},
              chunk_id{static_cast<std::uint32_t>(*chunk)}};
    t.begin = *begin;
    t.end = *end;
    return success();
  }

  result<found_run> finish() {
    if (records_.empty()) return error{file() + ": expected rows with tasks, got none"};
    found_run made;
    made.file = file();
    auto& shape = made.run.shape;
    shape = {0, 0, 0, placement::linear};
    for (const auto& r : records_) {
      shape.stages = std::max(shape.stages, r.stage.value() + 1);
      shape.chunks = std::max(shape.chunks, r.what.chunk.value() + 1);
      made.run.tasks.push_back(r);
    }
    shape.layout = report::infer_placement(made.run);
    made.run.tasks.clear();
    made.notes.push_back("Tasks are those of the CSV file.");
    if (auto done = complete(std::move(records_), made); !done) return done.failure();
    return made;
  }

  std::string_view cell(const csv_cells& cells, column c) const {
    const auto at = where_[static_cast<std::size_t>(c)];
    return at < cells.size() ? cells[at] : std::string_view{};
  }

  static std::optional<nanoseconds> time(std::string_view text) {
    const auto ms = parse_number<double>(text);
    constexpr double most = 2.5e12;  // so that times since 1970 fit
    if (!ms || !(std::abs(*ms) <= most)) return std::nullopt;
    const auto whole = std::trunc(*ms);  // apart, for the product has no single nanoseconds
    return std::llround(whole) * 1'000'000 + std::llround((*ms - whole) * 1e6);
  }

  layout where_{};
  std::size_t width_ = 0;  ///< cells of the header
  std::vector<placed_record> records_;
};

}  // namespace

bool is_csv_header(std::string_view line) { return layout_of(line).has_value(); }

result<found_run> read_csv_trace(const std::string& file) { return csv_reader{file}.read_run(); }

}  // namespace rrfp::foreign
