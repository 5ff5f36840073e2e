#include <rrfp/job/toml_reader.hpp>

#include <algorithm>
#include <tuple>

#include <toml++/toml.h>

#include <rrfp/base/printable.hpp>

namespace rrfp::job {

namespace {

value value_of(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::boolean: return {node.as_boolean()->get()};
    case toml::node_type::integer: return {node.as_integer()->get()};
    case toml::node_type::floating_point: return {node.as_floating_point()->get()};
    case toml::node_type::string: return {node.as_string()->get()};
    case toml::node_type::array: {
      value_list list;
      for (const auto& item : *node.as_array()) list.push_back(value_of(item));
      return {std::move(list)};
    }
    case toml::node_type::table: return {foreign_value{"a table", true}};
    case toml::node_type::date: return {foreign_value{"a date"}};
    case toml::node_type::time: return {foreign_value{"a time"}};
    case toml::node_type::date_time: return {foreign_value{"a date and time"}};
    case toml::node_type::none: break;
  }
  return {foreign_value{"nothing"}};
}

entry entry_of(std::vector<std::string> path, const toml::node& node) {
  const auto begin = node.source().begin;
  return {std::move(path), value_of(node), begin.line, begin.column};
}

/// The entries of a table and of the tables in it, without `skipped`.
std::vector<entry> flatten(const toml::table& root, std::span<const std::string_view> skipped) {
  std::vector<entry> entries;
  for (const auto& [key, node] : root) {
    const std::string section{key.str()};
    if (std::find(skipped.begin(), skipped.end(), section) != skipped.end()) continue;
    entries.push_back(entry_of({section}, node));
    if (const auto* table = node.as_table())
      for (const auto& [inner_key, inner] : *table)
        entries.push_back(entry_of({section, std::string{inner_key.str()}}, inner));
  }
  std::stable_sort(entries.begin(), entries.end(), [](const entry& a, const entry& b) {
    return std::tie(a.line, a.column) < std::tie(b.line, b.column);
  });
  return entries;
}

/// Deeper than any job or experiment. The library limits nested brackets but not the parts of a
/// key, and frees its tables recursively: a key of a hundred thousand parts would overflow the
/// stack.
constexpr std::size_t depth_max = 32;

/// Maximum length of what the library says about a mistake.
constexpr std::size_t description_bytes_max = 500;

struct place {
  std::uint32_t line = 1;
  std::uint32_t column = 1;
};

/// Scans TOML text outside strings and comments, and stops where it is nested too deeply: too many
/// open brackets, or too many parts of one key. It knows no more of the grammar: text that is not
/// TOML passes, and the parser reports it.
class depth_check {
 public:
  explicit depth_check(std::string_view text) : rest_(text) {}

  /// The first place that is nested too deeply.
  std::optional<place> run() {
    while (!rest_.empty()) {
      const char c = rest_.front();
      if (c == '#') {
        skip(std::min(rest_.find('\n'), rest_.size()));
      } else if (c == '"' || c == '\'') {
        skip(string_length(c));
      } else {
        if (exceeds_depth(c)) return at_;
        skip(1);
      }
    }
    return std::nullopt;
  }

 private:
  /// The length of the string at the front, which opens with one or three of `quote`.
  std::size_t string_length(char quote) const {
    const std::string three(3, quote);
    const bool is_long = rest_.starts_with(three);
    for (std::size_t i = is_long ? 3 : 1; i < rest_.size(); ++i) {
      if (quote == '"' && rest_[i] == '\\') {
        ++i;
      } else if (is_long ? rest_.substr(i).starts_with(three) : rest_[i] == quote) {
        return i + (is_long ? 3 : 1);
      } else if (!is_long && rest_[i] == '\n') {
        return i;  // unclosed: the parser reports it
      }
    }
    return rest_.size();
  }

  bool exceeds_depth(char c) {
    if (c == '.') return ++dots_ >= depth_max;
    if (c == '[' || c == '{') ++open_;
    if ((c == ']' || c == '}') && open_ > 0) --open_;
    if (std::string_view{"[]{}=,\n"}.find(c) != std::string_view::npos) dots_ = 0;
    return open_ > depth_max;
  }

  void skip(std::size_t count) {
    for (const char c : rest_.substr(0, count)) {
      ++at_.column;
      if (c == '\n') at_ = {at_.line + 1, 1};
    }
    rest_.remove_prefix(std::min(count, rest_.size()));
  }

  std::string_view rest_;
  place at_;
  std::size_t open_ = 0;
  std::size_t dots_ = 0;  ///< since the key or value began
};

}  // namespace

std::string entry::name() const {
  constexpr std::string_view bare =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
  std::string text;
  for (const auto& part : path) {
    if (!text.empty()) text += '.';
    const bool is_bare = !part.empty() && part.find_first_not_of(bare) == std::string::npos;
    text += is_bare ? part : in_quotes(part);
  }
  return text;
}

result<document> read_toml(std::string_view text, const std::string& source,
                           std::span<const std::string_view> lists) {
  const auto wrong_at = [&](std::uint32_t line, std::uint32_t column, const std::string& what) {
    return error{source + ":" + std::to_string(line) + ":" + std::to_string(column) + ": " + what};
  };
  if (const auto deep = depth_check{text}.run())
    return wrong_at(deep->line, deep->column,
                    "expected tables, arrays and keys of at most " + std::to_string(depth_max) +
                        " levels, got more");
  toml::table root;
  try {
    root = toml::parse(text, source);
  } catch (const toml::parse_error& e) {
    const auto at = e.source().begin;
    return wrong_at(at.line, at.column, printable(e.description(), description_bytes_max));
  }
  document doc;
  std::vector<std::string_view> found;
  for (const auto name : lists) {
    auto& list = doc.lists.emplace_back();
    const auto* node = root.get(name);
    if (node == nullptr || !node->is_array_of_tables()) continue;
    found.push_back(name);
    for (const auto& table : *node->as_array())
      list.push_back({flatten(*table.as_table(), {}), table.source().begin.line});
  }
  doc.entries = flatten(root, found);
  return doc;
}

std::optional<value> read_value(const std::string& text) {
  const auto line = "value = " + text;
  if (depth_check{line}.run()) return std::nullopt;
  try {
    const auto root = toml::parse(line);
    const auto* node = root.get("value");
    // More than one key: the text contains a further line.
    if (node == nullptr || root.size() != 1) return std::nullopt;
    return value_of(*node);
  } catch (const toml::parse_error&) {
    return std::nullopt;
  }
}

}  // namespace rrfp::job
