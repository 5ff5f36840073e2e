#include <charconv>
#include <optional>

#include <rrfp/base/check.hpp>
#include <rrfp/base/printable.hpp>
#include <rrfp/policies/table_csv.hpp>

namespace rrfp::policies {

namespace {

/// PyTorch's suffix for a pair whose communication overlaps: "(0F8;7B0)OVERLAP_F_B".
constexpr std::string_view pair_end = ")OVERLAP_F_B";

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blank = " \t\r";
  const auto begin = text.find_first_not_of(blank);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(blank) - begin + 1);
}

/// Removes and returns the text up to the next `separator`.
std::string_view next_part(std::string_view& rest, char separator) {
  const auto end = rest.find(separator);
  const auto part = rest.substr(0, end);
  rest = end == rest.npos ? std::string_view{} : rest.substr(end + 1);
  return part;
}

std::optional<std::uint32_t> take_number(std::string_view& text) {
  std::uint32_t number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc{}) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

std::optional<task_kind> kind_of(char letter) {
  switch (letter) {
    case 'F': return task_kind::forward;
    case 'I': return task_kind::backward;
    case 'W': return task_kind::weight;
    case 'B': return task_kind::backward_weight;
    default: return std::nullopt;
  }
}

char letter_of(task_kind kind) {
  switch (kind) {
    case task_kind::forward: return 'F';
    case task_kind::backward: return 'I';
    case task_kind::weight: return 'W';
    case task_kind::backward_weight: return 'B';
  }
  RRFP_CHECK(false, "unknown kind");
}

/// Parses one task; the error says what was expected.
result<task> parse_task(std::string_view text, const pipeline_shape& shape, stage_id stage) {
  auto rest = text;
  const auto vs = take_number(rest);
  const auto kind = vs && !rest.empty() ? kind_of(rest.front()) : std::nullopt;
  if (kind) rest.remove_prefix(1);
  const auto mb = kind ? take_number(rest) : std::nullopt;
  if (!mb || !rest.empty())
    return error{"expected a compute task like 0F3 (virtual stage; F, I, W or B; microbatch)"};
  if (*vs >= shape.virtual_stages())
    return error{"expected a virtual stage below " + std::to_string(shape.virtual_stages())};
  const auto [owner, chunk] = shape.at(virtual_stage_id{*vs});
  if (owner != stage)
    return error{"expected a virtual stage of stage " + std::to_string(stage.value()) +
                 " (virtual stage " + std::to_string(*vs) + " is on stage " +
                 std::to_string(owner.value()) + ")"};
  if (*mb >= shape.microbatches)
    return error{"expected a microbatch below " + std::to_string(shape.microbatches)};
  return task{*kind, microbatch_id{*mb}, chunk};
}

/// Appends the tasks of one cell: none, one, or the two of a pair.
status parse_cell(std::string_view cell, const pipeline_shape& shape, stage_id stage,
                  sequence& order) {
  const bool pair = cell.starts_with('(') && cell.ends_with(pair_end);
  auto rest = pair ? cell.substr(1, cell.size() - 1 - pair_end.size()) : cell;
  while (!rest.empty()) {
    const auto t =
        parse_task(trimmed(pair ? next_part(rest, ';') : next_part(rest, '\0')), shape, stage);
    if (!t) return t.failure();
    order.push_back(*t);
  }
  return success();
}

}  // namespace

result<std::vector<sequence>> read_csv(std::string_view text, const pipeline_shape& shape,
                                       std::string_view source) {
  if (const auto valid = shape.validate(); !valid) return valid.failure();
  std::vector<sequence> orders;
  for (std::size_t line = 1; !text.empty(); ++line) {
    auto row = next_part(text, '\n');
    if (trimmed(row).empty()) continue;
    const auto at = std::string{source} + ":" + std::to_string(line) + ": ";
    if (orders.size() == shape.stages)
      return error{at + "expected " + std::to_string(shape.stages) +
                   " rows, one per stage, got another row"};
    const stage_id stage{static_cast<std::uint32_t>(orders.size())};
    auto& order = orders.emplace_back();
    for (std::size_t number = 1; !row.empty(); ++number) {
      auto cell = trimmed(next_part(row, ','));
      if (cell.size() >= 2 && cell.front() == '"' && cell.back() == '"')
        cell = trimmed(cell.substr(1, cell.size() - 2));
      if (const auto parsed = parse_cell(cell, shape, stage, order); !parsed)
        return error{at + "cell " + std::to_string(number) + ": " + parsed.message() + ", got \"" +
                     printable(cell) + "\""};
    }
  }
  if (orders.size() < shape.stages)
    return error{std::string{source} + ": expected " + std::to_string(shape.stages) +
                 " rows, one per stage, got " + std::to_string(orders.size())};
  return orders;
}

std::string write_csv(const std::vector<sequence>& sequences, const pipeline_shape& shape) {
  RRFP_CHECK(sequences.size() == shape.stages, "there must be one sequence per stage");
  std::string text;
  for (std::uint32_t s = 0; s < shape.stages; ++s) {
    const char* separator = "";
    for (const auto& t : sequences[s]) {
      text += separator;
      text += std::to_string(shape.virtual_stage(stage_id{s}, t.chunk).value());
      text += letter_of(t.kind);
      text += std::to_string(t.mb.value());
      separator = ",";
    }
    text += '\n';
  }
  return text;
}

}  // namespace rrfp::policies
