/// TOML text as a flat list of keys with their places. The only door to the TOML library, which is
/// slow to compile: one source includes it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/schedule/result.hpp>

#include <rrfp/job/value.hpp>

namespace rrfp::job {

/// A value at `path` (one or two names; deeper tables are values that no key takes). A section
/// itself is an entry too, so that an unknown empty one is seen.
struct entry {
  std::vector<std::string> path;
  value what;
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
  /// But for those of the lists.
  std::vector<entry> entries;
  /// By the names that were asked for: the tables of [[name]]. A name that stands for anything else
  /// is an entry, and its list is empty.
  std::vector<std::vector<table_entries>> lists;
};

/// Error: "SOURCE:LINE:COLUMN: what the grammar expects".
result<document> read_toml(std::string_view text, const std::string& source,
                           std::span<const std::string_view> lists);

/// One value as it may stand right of "="; nothing if it is not TOML.
std::optional<value> read_value(const std::string& text);

}  // namespace rrfp::job
