/// A table of keys: what one kind of file, or one table of it, may hold. Reading, errors and
/// references all use it; no other code lists keys.
///
/// `Root` is the plain struct that receives the values: a job, or an entry of an experiment.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/base/result.hpp>
#include <rrfp/job/closest.hpp>
#include <rrfp/job/provenance.hpp>
#include <rrfp/job/toml_reader.hpp>
#include <rrfp/job/value.hpp>

namespace rrfp::job {

/// What the text of a key names: no file, files, or a policy that may be in a file.
enum class path_rule : std::uint8_t { none, files, policy_file };

template <class Root>
struct basic_key {
  /// "section.key"; a key without a section comes before all sections.
  std::string path;
  /// The type of the value, with its limits: "integer, 1 to 1024".
  std::string type;
  /// "ms", "bytes"; empty: a plain number or a word.
  std::string unit;
  /// One line, for the reference.
  std::string meaning;
  /// Whether an override may omit the quotes: `--set dispatch.policy=bf`.
  bool is_text = false;
  path_rule paths = path_rule::none;
  /// Error: "expected ..., got ...".
  std::function<status(Root&, const value&)> set;
  /// Empty for a short form, which sets several other keys; those keys take precedence over it.
  std::function<value(const Root&)> get;

  std::string_view section() const {
    const auto dot = path.find('.');
    return dot == std::string::npos ? std::string_view{} : std::string_view{path}.substr(0, dot);
  }
  std::string_view leaf() const {
    const auto dot = path.find('.');
    return std::string_view{path}.substr(dot == std::string::npos ? 0 : dot + 1);
  }
};

struct section_info {
  std::string_view name;
  std::string_view meaning;
};

template <class Root>
struct key_table {
  /// For messages: "a job".
  std::string_view whole;
  /// Sections and keys are in the order of the reference and of the dump.
  std::vector<section_info> sections;
  std::vector<basic_key<Root>> keys;

  /// Null if there is no such key.
  const basic_key<Root>* find(std::string_view path) const {
    const auto at = std::find_if(keys.begin(), keys.end(), [&](auto& k) { return k.path == path; });
    return at == keys.end() ? nullptr : &*at;
  }

  bool is_section(std::string_view name) const {
    return std::any_of(sections.begin(), sections.end(), [&](auto& s) { return s.name == name; });
  }

  /// The error message for a name that is neither a key nor a section, with a suggestion.
  std::string unknown_name(std::string_view section, std::string_view leaf) const {
    if (section.empty() && is_section(leaf)) return "expected section.key, got a section";
    const auto has = std::string{whole} + " has ";
    std::vector<std::string_view> names;
    if (!section.empty() && sections.empty()) {
      for (const auto& k : keys) names.push_back(k.leaf());
      return "unknown key" + suggestion(section, names, has);
    }
    if (!section.empty() && !is_section(section)) {
      for (const auto& s : sections) names.push_back(s.name);
      return "unknown section" + suggestion(section, names, has);
    }
    for (const auto& k : keys)
      if (k.section() == section) names.push_back(k.leaf());
    if (section.empty())
      for (const auto& s : sections) names.push_back(s.name);
    if (section.empty() || !closest(leaf, names))
      for (const auto& k : keys)
        if (k.leaf() == leaf) return "unknown key, did you mean " + k.path + "?";
    return "unknown key" + suggestion(leaf, names, section.empty() ? has : "the section has ");
  }

  /// The key of an entry; null for a section, which itself sets nothing.
  result<const basic_key<Root>*> key_of(const entry& e, const origin& from) const {
    const auto name = e.name();
    if (e.path.size() == 1) {
      const auto* foreign = std::get_if<foreign_value>(&e.content.data);
      const bool is_table = foreign != nullptr && foreign->is_table;
      if (is_section(name) && is_table) return nullptr;
      if (is_section(name)) return from.blame(name, "expected a table, got " + describe(e.content));
      if (e.path[0].find('.') != std::string::npos)
        return from.blame(name, "unknown key; write section and key without quotes");
      if (is_table) return from.blame(name, unknown_name(name, ""));
    }
    if (const auto* k = find(name)) return k;
    return from.blame(
        name, e.path.size() == 1 ? unknown_name("", name) : unknown_name(e.path[0], e.path[1]));
  }

  /// Sets the values of the entries and records their places. Sets short forms first, so that the
  /// keys that they set take precedence, whatever the order in the file. Does not resolve paths.
  status read(Root& to, std::span<const entry> entries, const std::string& source,
              provenance& from) const {
    for (const bool short_forms : {true, false})
      for (const auto& e : entries) {
        const auto place = at_line(source, e.line);
        const auto k = key_of(e, place);
        if (!k) return k.failure();
        if (*k == nullptr || !(*k)->get != short_forms) continue;
        if (const auto set = (*k)->set(to, e.content); !set)
          return place.blame((*k)->path, set.message());
        from.record((*k)->path, place);
      }
    return success();
  }
};

}  // namespace rrfp::job
