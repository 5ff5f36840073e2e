/// One value of a job file, independent of the TOML library.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <rrfp/base/result.hpp>

namespace rrfp::job {

struct value;
using value_list = std::vector<value>;

/// A value of a type that no key accepts; `type` names it: "a table", "a date".
struct foreign_value {
  std::string_view type;
  bool is_table = false;
};

struct value {
  std::variant<bool, std::int64_t, double, std::string, value_list, foreign_value> data;
};

/// The value as TOML on one line: numbers with the fewest digits that parse to the same value.
std::string to_toml(const value& v);

/// The same for messages: a long value is truncated.
std::string shown(const value& v);

/// Type and value, for messages: a string "four".
std::string describe(const value& v);

/// `text` as a TOML string.
std::string in_quotes(std::string_view text);

/// A number as a TOML float.
std::string number_text(double x);

/// Names and paths are written to JSON, which requires UTF-8. Error: "expected UTF-8, got the byte
/// 0xFF at 12".
status check_utf8(std::string_view text);
/// The same for all strings in a value.
status check_utf8(const value& v);

}  // namespace rrfp::job
