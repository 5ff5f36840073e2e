/// The table of keys: what a job file may hold. Parsing, errors, the dump and the reference read
/// it, and nothing else knows a key.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/job/job.hpp>
#include <rrfp/schedule/result.hpp>

#include "value.hpp"

namespace rrfp::job {

/// What a text of this key names: nothing on disk, files, or perhaps a table of a policy.
enum class path_rule : std::uint8_t { none, files, policy_table };

struct key {
  /// "section.key"; "name" alone stands before all sections.
  std::string path;
  /// What it takes, with its limits: "integer, 1 to 1024".
  std::string type;
  /// "ms", "bytes"; empty: a plain number or a word.
  std::string unit;
  /// One line, for the reference.
  std::string meaning;
  /// Set and bare on the command line: `--set dispatch.policy=bf` needs no quotes.
  bool is_text = false;
  path_rule paths = path_rule::none;
  /// Error: "expected ..., got ...".
  std::function<status(job&, const value&)> set;
  /// Empty: a short form for several other keys, which win over it.
  std::function<value(const job&)> get;

  std::string_view section() const;
  std::string_view leaf() const;
};

struct section_info {
  std::string_view name;
  std::string_view meaning;
};

/// In the order of the reference and of the dump.
const std::vector<section_info>& sections();
const std::vector<key>& keys();

/// Null if there is none.
const key* find_key(std::string_view path);
bool is_section(std::string_view name);

/// What is wrong with a name that is neither key nor section, and what may have been meant.
std::string unknown_name(std::string_view section, std::string_view leaf);

}  // namespace rrfp::job
