#include "table_text.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace rrfp::apps {

namespace {

constexpr std::size_t columns_max = 80;

/// Of a column; 0: only its heading has a text.
std::size_t width_of(const table_rows& rows, std::size_t column) {
  std::size_t width = 0;
  for (auto r = rows.begin() + 1; r != rows.end(); ++r)
    width = std::max(width, (*r)[column].size());
  return width == 0 ? 0 : std::max(width, rows[0][column].size());
}

struct shown_column {
  std::size_t number;
  std::size_t width;
};

}  // namespace

std::string table_text(const table_rows& rows, last_column last) {
  const auto name_width = width_of(rows, 0);
  const auto all = rows[0].size();
  std::vector<shown_column> columns;
  std::size_t total = 0;
  for (std::size_t c = 1; c < all; ++c)
    if (const auto width = width_of(rows, c); width != 0) {
      columns.push_back({c, width});
      total += width;
    }
  const bool own_line = name_width + total + columns.size() > columns_max;
  const auto room = columns_max - (own_line ? 0 : name_width);
  const std::size_t gap = total + 2 * columns.size() > room ? 1 : 2;
  std::string text;
  for (auto from = columns.begin(); from != columns.end();) {
    auto end = from;
    for (std::size_t used = 0; end != columns.end(); ++end) {
      used += gap + end->width;
      if (used > room && end != from) break;
    }
    for (const auto& row : rows) {
      text += own_line ? row[0] + "\n" : fmt::format("{:<{}}", row[0], name_width);
      for (auto c = from; c != end; ++c) {
        const bool is_left = c->number + 1 == all && last == last_column::left;
        text += is_left ? std::string(gap, ' ') + row[c->number]
                        : fmt::format("{:>{}}", row[c->number], gap + c->width);
      }
      text += "\n";
    }
    from = end;
  }
  return text;
}

}  // namespace rrfp::apps
