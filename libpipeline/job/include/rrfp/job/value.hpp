/// One value of a job file, free of the TOML library.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace rrfp::job {

struct value;
using value_list = std::vector<value>;

/// A value of a sort that no key takes, with its name: "a table", "a date".
struct foreign_value {
  std::string_view what;
  bool is_table = false;
};

struct value {
  std::variant<bool, std::int64_t, double, std::string, value_list, foreign_value> is;
};

/// As TOML: shortest digits that read back the same, strings quoted and on one line.
std::string to_toml(const value& v);

/// The same for messages: what is long is cut.
std::string shown(const value& v);

/// Type and value for messages: a string "four".
std::string describe(const value& v);

/// `text` as a TOML string.
std::string in_quotes(std::string_view text);

/// A number as TOML writes a float.
std::string number_text(double x);

}  // namespace rrfp::job
