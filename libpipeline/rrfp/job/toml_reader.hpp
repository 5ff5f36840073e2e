/// TOML text as a flat list of keys with their places. Hides the TOML library, which is slow to
/// compile: only one source file includes it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/base/result.hpp>
#include <rrfp/job/value.hpp>

namespace rrfp::job {

/// A value at `path`, which has one or two names; deeper tables are values that no key accepts. A
/// section is an entry, too, so that an unknown empty section is reported.
struct entry {
  std::vector<std::string> path;
  value content;
  std::uint32_t line = 0;
  std::uint32_t column = 0;

  /// The path as TOML writes it.
  std::string name() const;
};

/// One table of a list: one [[compare]].
struct table_entries {
  std::vector<entry> entries;
  std::uint32_t line = 0;
};

/// Entries in the order of the text.
struct document {
  /// All entries except those of the lists.
  std::vector<entry> entries;
  /// For each requested name, the tables of [[name]]. If the name is anything else, it is an entry
  /// and its list is empty.
  std::vector<std::vector<table_entries>> lists;
};

/// Error: "SOURCE:LINE:COLUMN: what the grammar expects".
result<document> read_toml(std::string_view text, const std::string& source,
                           std::span<const std::string_view> lists);

/// Parses one value, as written after "="; nothing if it is not TOML.
std::optional<value> read_value(const std::string& text);

}  // namespace rrfp::job
