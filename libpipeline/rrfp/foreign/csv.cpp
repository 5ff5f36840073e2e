#include "csv.hpp"

#include <fmt/format.h>

#include <rrfp/base/printable.hpp>
#include <rrfp/io/byte_source.hpp>

namespace rrfp::foreign {

namespace {

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\"";
  const auto first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

}  // namespace

status read_lines(const std::string& file, std::string_view what,
                  const std::function<status(std::string_view)>& take) {
  auto source = io::byte_source::open(file);
  if (!source) return source.failure();
  std::string rest;
  for (auto piece = source->next(); !piece.empty(); piece = source->next()) {
    rest += piece;
    std::size_t begin = 0;
    for (auto end = rest.find('\n'); end != std::string::npos; end = rest.find('\n', begin)) {
      if (auto taken = take(std::string_view{rest}.substr(begin, end - begin)); !taken)
        return taken;
      begin = end + 1;
    }
    rest.erase(0, begin);
    if (rest.size() > line_bytes_max)
      return error{fmt::format("{}: expected lines of at most {} bytes", file, line_bytes_max)};
  }
  if (!source->fault().empty())
    return error{fmt::format("{}: expected {}, got {}", file, what, source->fault())};
  return rest.empty() ? success() : take(rest);
}

csv_cells cells_of(std::string_view line) {
  csv_cells cells;
  bool in_quotes = false;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < line.size(); ++at) {
    if (line[at] == '"') in_quotes = !in_quotes;
    if (line[at] != ',' || in_quotes) continue;
    cells.push_back(trimmed(line.substr(begin, at - begin)));
    begin = at + 1;
  }
  cells.push_back(trimmed(line.substr(begin)));
  return cells;
}

status csv_table::read(std::string_view what,
                       const std::function<status(std::string_view, const csv_cells&)>& take) {
  return read_lines(file_, what, [&](std::string_view line) -> status {
    ++line_;
    const auto cells = cells_of(line);
    return cells.size() == 1 && cells.front().empty() ? success() : take(line, cells);
  });
}

error csv_table::expected(std::string_view what, std::string_view got) const {
  return error{fmt::format("{}:{}: expected {}, got \"{}\"", file_, line_, what,
                           printable(std::string{got}))};
}

}  // namespace rrfp::foreign
