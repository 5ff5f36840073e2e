/// Tables for a terminal of 80 columns.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rrfp::apps {

/// The heading first. The first cell of a row is its name.
using table_rows = std::vector<std::vector<std::string>>;

enum class last_column : std::uint8_t { right, left };

/// Names are on the left, other cells on the right. Columns without a value are left out. If the
/// table is wider than the terminal, the name of each row has a line of its own; what still does
/// not fit follows in a further table.
std::string table_text(const table_rows& rows, last_column last = last_column::right);

}  // namespace rrfp::apps
