/// One value of a job file, independent of the TOML library.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

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

}  // namespace rrfp::job
