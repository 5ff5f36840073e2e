#include <rrfp/simulate/duration_table.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>

#include <rrfp/base/parse_number.hpp>
#include <rrfp/base/printable.hpp>
#include <rrfp/base/step_name.hpp>
#include <rrfp/simulate/keyed_random.hpp>

#include "milliseconds.hpp"

namespace rrfp::simulate {

namespace {

constexpr std::string_view header = "step,stage,chunk,mb,kind,ms";
constexpr std::size_t columns = 6;

/// Maximum size of a file, which is held in memory while it is parsed.
constexpr std::size_t durations_bytes_max = std::size_t{256} << 20;

std::string quoted(std::string_view text) { return "'" + printable(text) + "'"; }

std::optional<std::array<std::string_view, columns>> split(std::string_view line) {
  std::array<std::string_view, columns> cells;
  for (std::size_t i = 0; i < columns; ++i) {
    const auto comma = line.find(',');
    if ((comma == std::string_view::npos) != (i + 1 == columns)) return std::nullopt;
    cells[i] = line.substr(0, comma);
    line.remove_prefix(std::min(line.size(), cells[i].size() + 1));
  }
  return cells;
}

/// Parses a number below `end`; the error says what was expected.
status parse_index(std::string_view cell, const char* noun, std::uint32_t end,
                   std::uint32_t& value) {
  const auto number = parse_number<std::uint32_t>(cell);
  value = number.value_or(end);
  if (value < end) return success();
  return error{"expected a " + std::string(noun) + " from 0 to " + std::to_string(end - 1) +
               ", got " + quoted(cell)};
}

std::string milliseconds_text(nanoseconds duration) {
  const auto fraction = std::to_string(1'000'000 + duration % 1'000'000).substr(1);
  return std::to_string(duration / 1'000'000) + "." + fraction;
}

}  // namespace

std::size_t duration_table::key_hash::operator()(const key& k) const noexcept {
  simulate::keyed_random words{k.step, std::uint64_t{k.stage} << 32 | k.chunk,
                               std::uint64_t{k.mb} << 32 | static_cast<std::uint64_t>(k.kind)};
  return words.bits();
}

duration_table::duration_table(const pipeline_shape& shape) : shape_(shape) {
  RRFP_CHECK(shape.validate().ok(), "the shape must be valid");
}

result<duration_table> duration_table::read(const std::string& file, const pipeline_shape& shape) {
  std::ifstream in{file, std::ios::binary};
  const auto why = [&] { return error{file + ": cannot be read: " + std::strerror(errno)}; };
  if (!in) return why();
  std::string text;
  char block[1 << 16];
  while (in.read(block, sizeof block), in.gcount() > 0) {
    text.append(block, static_cast<std::size_t>(in.gcount()));
    if (text.size() > durations_bytes_max)
      return error{file + ": expected durations of at most " + std::to_string(durations_bytes_max) +
                   " bytes, got more"};
  }
  // A folder can be opened but not read.
  if (in.bad() || !in.eof()) return why();
  return parse(text, file, shape);
}

result<duration_table> duration_table::parse(std::string_view text, std::string_view file,
                                             const pipeline_shape& shape) {
  if (auto valid = shape.validate(); !valid) return valid.failure();
  duration_table table{shape};
  std::uint64_t number = 0;
  const auto at_line = [&](const std::string& message) {
    return error{std::string(file) + ":" + std::to_string(number) + ": " + message};
  };
  bool has_header = false;
  while (!text.empty()) {
    ++number;
    const auto end = std::min(text.find('\n'), text.size());
    auto line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    if (!has_header) {
      if (line != header)
        return at_line("expected the header line " + quoted(header) + ", got " + quoted(line));
      has_header = true;
      continue;
    }
    const auto parsed = table.parse_row(line);
    if (!parsed) return at_line(parsed.message());
    if (!table.rows_.emplace(parsed->row_id, parsed->duration).second)
      return at_line("expected one row per duration, got a second one in " + quoted(line));
  }
  if (has_header) return table;
  number = 1;
  return at_line("expected the header line " + quoted(header) + ", got an empty file");
}

result<duration_table::row> duration_table::parse_row(std::string_view line) const {
  const auto cells = split(line);
  if (!cells)
    return error{"expected " + std::to_string(columns) + " columns (" + std::string(header) +
                 "), got " + quoted(line)};
  row parsed;
  auto& row_id = parsed.row_id;
  const auto step = parse_number<std::uint64_t>((*cells)[0]);
  if (!step || *step == 0 || *step > first_evaluation)
    return error{"expected a step number from 1 to " + std::to_string(first_evaluation) + ", got " +
                 quoted((*cells)[0])};
  row_id.step = *step - 1;
  for (const auto& ok : {parse_index((*cells)[1], "stage", shape_.stages, row_id.stage),
                         parse_index((*cells)[2], "chunk", shape_.chunks, row_id.chunk),
                         parse_index((*cells)[3], "microbatch", shape_.microbatches, row_id.mb)})
    if (!ok) return ok.failure();
  const auto* const name = std::find(std::begin(row_names), std::end(row_names), (*cells)[4]);
  if (name == std::end(row_names))
    return error{"expected a kind (F, B, W, BW, act or grad), got " + quoted((*cells)[4])};
  row_id.kind = static_cast<row_kind>(name - std::begin(row_names));
  const auto vs = shape_.virtual_stage(stage_id{row_id.stage}, chunk_id{row_id.chunk});
  if (row_id.kind == row_kind::act && shape_.is_first(vs))
    return error{"expected a stage that receives activations, got the first virtual stage in " +
                 quoted(line)};
  if (row_id.kind == row_kind::grad && shape_.is_last(vs))
    return error{"expected a stage that receives gradients, got the last virtual stage in " +
                 quoted(line)};
  const auto ms = parse_number<double>((*cells)[5]);
  if (!ms || !is_duration_ms(*ms))
    return error{std::string("expected ") + duration_ms_range + ", got " + quoted((*cells)[5])};
  parsed.duration = nanoseconds_of(*ms);
  return parsed;
}

void duration_table::set_compute(step_id step, stage_id stage, const task& t,
                                 nanoseconds duration) {
  rows_[{step.value(), stage.value(), t.chunk.value(), t.mb.value(), row_kind_of(t.kind)}] =
      duration;
}

duration_table::key duration_table::link_key(step_id step, virtual_stage_id to,
                                             const task& t) const {
  const auto [stage, chunk] = shape_.at(to);
  const auto kind = is_backward(t.kind) ? row_kind::grad : row_kind::act;
  return {step.value(), stage.value(), chunk.value(), t.mb.value(), kind};
}

void duration_table::set_link(step_id step, virtual_stage_id to, const task& t,
                              nanoseconds duration) {
  rows_[link_key(step, to, t)] = duration;
}

std::string duration_table::text() const {
  std::vector<row> sorted;
  sorted.reserve(rows_.size());
  for (const auto& [row_id, duration] : rows_) sorted.push_back({row_id, duration});
  std::ranges::sort(sorted, {}, &row::row_id);
  std::string csv{header};
  csv += '\n';
  for (const auto& [row_id, duration] : sorted) {
    for (const std::uint64_t cell : {number_of(step_id{row_id.step}), std::uint64_t{row_id.stage},
                                     std::uint64_t{row_id.chunk}, std::uint64_t{row_id.mb}})
      csv += std::to_string(cell) + ",";
    csv += row_names[static_cast<int>(row_id.kind)];
    csv += "," + milliseconds_text(duration) + "\n";
  }
  return csv;
}

std::uint64_t duration_table::steps() const {
  std::uint64_t end = 0;
  for (const auto& [row_id, duration] : rows_) end = std::max(end, row_id.step + 1);
  return end;
}

const nanoseconds* duration_table::find(const key& k) const {
  const auto found = rows_.find(k);
  return found == rows_.end() ? nullptr : &found->second;
}

std::optional<nanoseconds> duration_table::duration_of(step_id step, stage_id stage,
                                                       const task& t) const {
  const auto look_up = [&](row_kind kind) {
    return find({step.value(), stage.value(), t.chunk.value(), t.mb.value(), kind});
  };
  if (const auto* const known = look_up(row_kind_of(t.kind))) return *known;
  if (t.kind != task_kind::backward_weight) return std::nullopt;
  const auto* const backward = look_up(row_kind::backward);
  const auto* const weight = look_up(row_kind::weight);
  if (backward == nullptr || weight == nullptr) return std::nullopt;
  return *backward + *weight;
}

nanoseconds duration_table::compute(step_id step, stage_id stage, const task& t) const {
  const auto duration = duration_of(step, stage, t);
  RRFP_CHECK(duration.has_value(), "the table must cover the plan");
  return *duration;
}

nanoseconds duration_table::link(step_id step, virtual_stage_id to, const task& t) const {
  const auto* const known = find(link_key(step, to, t));
  return known == nullptr ? 0 : *known;
}

status duration_table::covers(const plan& p,
                              const std::function<task(step_id, task)>& loaded) const {
  if (!(p.shape == shape_))
    return error{
        "durations: expected a table for the shape of the plan, got one for another shape"};
  const auto check = [&](step_id step, stage_id stage, const task& of_plan) -> status {
    const auto t = loaded(step, of_plan);
    if (duration_of(step, stage, t)) return success();
    return error{"durations: expected a row for " + to_string(t) + " of stage " +
                 std::to_string(stage.value()) + " in " + to_string(step) + ", got none"};
  };
  for (std::uint32_t s = 0; s < shape_.stages; ++s) {
    const stage_id stage{s};
    const auto tasks = tasks_of(*p.rule.make_policy(shape_, stage), shape_);
    for (std::uint64_t n = 0; n < p.steps; ++n)
      for (const auto& t : tasks)
        if (auto covered = check(step_id{p.first.value() + n}, stage, t); !covered) return covered;
  }
  return success();
}

step_id given_delays::listed(step_id step) const {
  return steps_ == 0 ? step : step_id{step.value() % steps_};
}

nanoseconds given_delays::compute(step_id step, stage_id stage, const task& t) const {
  const auto at = listed(step);
  if (const auto known = table_.duration_of(at, stage, t)) return *known;
  if (t.kind != task_kind::backward_weight) return 0;
  auto part = t;
  part.kind = task_kind::backward;
  const auto backward = table_.duration_of(at, stage, part).value_or(0);
  part.kind = task_kind::weight;
  return backward + table_.duration_of(at, stage, part).value_or(0);
}

nanoseconds given_delays::link(step_id step, virtual_stage_id to, const task& t) const {
  return table_.link(listed(step), to, t);
}

}  // namespace rrfp::simulate
