/// The types of keys: conversions between a value of the file and a member of a struct.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/job/key_table.hpp>

namespace rrfp::job {

/// Includes both ends.
struct integer_range {
  std::int64_t low = 0;
  std::int64_t high = std::numeric_limits<std::int64_t>::max();
};

/// Includes its ends unless they are open.
struct number_range {
  double low = 0;
  double high = 0;
  bool open_low = false;
  bool open_high = false;
};

/// The words that a choice allows; they stand for 0, 1, 2, ...
using words = std::vector<std::string_view>;

// Readers. Errors: "expected ..., got ...".
result<std::int64_t> read_integer(const value& v, integer_range range);
/// As read_integer(), but also accepts the n words of `also`; word i gives i - n.
result<std::int64_t> read_integer_or_word(const value& v, integer_range range, const words& also);
result<double> read_number(const value& v, number_range range);
/// One number, or a list of at least one.
result<std::vector<double>> read_numbers(const value& v, number_range range);
result<std::size_t> read_word(const value& v, const words& allowed);
/// A text that is not empty and has no control characters.
result<std::string> read_text(const value& v);
/// A list of any number of integers, or one integer.
result<std::vector<std::uint32_t>> read_integers(const value& v, integer_range range);
/// One text, or a list of texts.
result<std::vector<std::string>> read_texts(const value& v);
result<bool> read_boolean(const value& v);
/// A number of bytes, or a text with a unit: "64MiB".
result<std::int64_t> read_bytes(const value& v, std::int64_t high);

/// T: std::int64_t, double or std::string.
template <class T>
value to_list(const std::vector<T>& items) {
  value_list list(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) list[i].data = items[i];
  return {std::move(list)};
}

// The types as the reference prints them.
std::string type_name(integer_range range);
std::string type_name(number_range range);
std::string type_name(const words& allowed);

/// Adds the keys of one section of a Root, each bound to its member. An empty section name: keys
/// without a section. The initializers of the members are the defaults.
template <class Root, class Section>
class basic_section_keys {
 public:
  using key = basic_key<Root>;

  using access = std::function<Section&(Root&)>;

  /// `get_section` returns the section of a Root: a pointer to a member, or a function.
  basic_section_keys(std::vector<key>& table, std::string section, access get_section)
      : table_(table), section_(std::move(section)), get_section_(std::move(get_section)) {}

  /// `Part`: the section, or a base of it.
  template <class T, class Part>
  void integer(const char* leaf, T Part::*field, integer_range range, const char* unit,
               const char* meaning) {
    add(
        leaf, static_cast<T Section::*>(field), type_name(range), unit, meaning,
        [range](const value& v) { return read_integer(v, range); },
        [](const T& x) { return value{static_cast<std::int64_t>(x)}; });
  }

  void number(const char* leaf, double Section::*field, number_range range, const char* unit,
              const char* meaning) {
    add(leaf, field, type_name(range), unit, meaning,
        [range](const value& v) { return read_number(v, range); });
  }

  void numbers(const char* leaf, std::vector<double> Section::*field, number_range range,
               const char* unit, const char* meaning) {
    add(
        leaf, field, type_name(range) + ", or an array", unit, meaning,
        [range](const value& v) { return read_numbers(v, range); },
        [](const std::vector<double>& x) { return x.size() == 1 ? value{x[0]} : to_list(x); });
  }

  void integers(const char* leaf, std::vector<std::uint32_t> Section::*field, integer_range range,
                const char* meaning) {
    using list = std::vector<std::uint32_t>;
    add(
        leaf, field, "array of " + type_name(range), "", meaning,
        [range](const value& v) { return read_integers(v, range); },
        [](const list& x) { return to_list(std::vector<std::int64_t>(x.begin(), x.end())); });
  }

  void boolean(const char* leaf, bool Section::*field, const char* meaning) {
    add(leaf, field, "boolean", "", meaning, read_boolean);
  }

  /// `allowed`: the names of the enumerators, in order from 0.
  template <class Enum>
  void choice(const char* leaf, Enum Section::*field, words allowed, const char* meaning) {
    text_key(add(
        leaf, field, type_name(allowed), "", meaning,
        [allowed](const value& v) { return read_word(v, allowed); },
        [allowed](Enum x) { return value{std::string{allowed[static_cast<std::size_t>(x)]}}; }));
  }

  /// "auto" stands for an empty value; `allowed` as above.
  template <class Enum>
  void choice(const char* leaf, std::optional<Enum> Section::*field, words allowed,
              const char* meaning) {
    allowed.insert(allowed.begin(), "auto");
    using maybe = std::optional<Enum>;
    text_key(add(
        leaf, field, type_name(allowed), "", meaning,
        [allowed](const value& v) -> result<maybe> {
          const auto at = read_word(v, allowed);
          if (!at) return at.failure();
          return *at == 0 ? maybe{} : maybe{static_cast<Enum>(*at - 1)};
        },
        [allowed](const maybe& x) {
          return value{std::string{allowed[x ? static_cast<std::size_t>(*x) + 1 : 0]}};
        }));
  }

  void text(const char* leaf, std::string Section::*field, path_rule paths, const char* type,
            const char* meaning) {
    text_key(add(leaf, field, type, "", meaning, read_text)).paths = paths;
  }

  /// One of `allowed`; the first one stands for no text.
  void name_of(const char* leaf, std::string Section::*field, const words& allowed,
               const char* meaning) {
    text_key(add(
        leaf, field, type_name(allowed), "", meaning,
        [allowed](const value& v) -> result<std::string> {
          const auto at = read_word(v, allowed);
          if (!at) return at.failure();
          return std::string{*at == 0 ? std::string_view{} : allowed[*at]};
        },
        [allowed](const std::string& x) {
          return value{x.empty() ? std::string{allowed[0]} : x};
        }));
  }

  /// A text that may be empty, which means that there is none.
  void optional_text(const char* leaf, std::string Section::*field, path_rule paths,
                     const char* type, const char* meaning) {
    text_key(add(leaf, field, type, "", meaning, [](const value& v) -> result<std::string> {
      const auto* text = std::get_if<std::string>(&v.data);
      return text != nullptr && text->empty() ? *text : read_text(v);
    })).paths = paths;
  }

  void texts(const char* leaf, std::vector<std::string> Section::*field, path_rule paths,
             const char* type, const char* meaning) {
    text_key(add(leaf, field, type, "", meaning, read_texts, to_list<std::string>)).paths = paths;
  }

  void bytes(const char* leaf, std::uint64_t Section::*field, std::int64_t high,
             const char* meaning) {
    add(
        leaf, field, "integer >= 0, or text with B, KiB, MiB or GiB", "bytes", meaning,
        [high](const value& v) { return read_bytes(v, high); },
        [](std::uint64_t x) { return value{static_cast<std::int64_t>(x)}; });
  }

  using maybe_limit = std::optional<std::uint32_t>;

  /// A number of units, or the value of one of `allowed`.
  void limit(const char* leaf, maybe_limit Section::*field, integer_range range,
             const words& allowed, const std::vector<maybe_limit>& values, const char* unit,
             const char* meaning) {
    add(
        leaf, field, type_name(allowed) + " or " + type_name(range), unit, meaning,
        [=](const value& v) -> result<maybe_limit> {
          const auto n = read_integer_or_word(v, range, allowed);
          if (!n) return n.failure();
          const auto word = *n + static_cast<std::int64_t>(allowed.size());
          return *n < 0 ? values[static_cast<std::size_t>(word)] : static_cast<std::uint32_t>(*n);
        },
        [=](const maybe_limit& x) {
          for (std::size_t i = 0; i < values.size(); ++i)
            if (x == values[i]) return value{std::string{allowed[i]}};
          return value{std::int64_t{*x}};
        });
  }

  /// A short form: `apply(section, word)` sets other members.
  template <class Apply>
  void preset(const char* leaf, words allowed, const char* meaning, Apply apply) {
    const auto get_section = get_section_;
    table_.push_back({path_of(leaf),
                      type_name(allowed),
                      "",
                      meaning,
                      true,
                      path_rule::none,
                      [=](Root& j, const value& v) -> status {
                        const auto at = read_word(v, allowed);
                        if (!at) return at.failure();
                        apply(get_section(j), allowed[*at]);
                        return success();
                      },
                      {}});
  }

 private:
  std::string path_of(const char* leaf) const {
    return section_.empty() ? leaf : section_ + "." + leaf;
  }

  static key& text_key(key& k) {
    k.is_text = true;
    return k;
  }

  static value as_it_is(auto x) { return value{std::move(x)}; }

  /// `read`: the value of the member, or what converts to it; `show`: the inverse.
  template <class Field, class Read, class Show = value (*)(Field)>
  key& add(const char* leaf, Field Section::*field, std::string type, const char* unit,
           const char* meaning, Read read, Show show = as_it_is<Field>) {
    const auto get_section = get_section_;
    table_.push_back(
        {path_of(leaf), std::move(type), unit, meaning, false, path_rule::none,
         [=](Root& j, const value& v) -> status {
           auto made = read(v);
           if (!made) return made.failure();
           get_section(j).*field = static_cast<Field>(*std::move(made));
           return success();
         },
         // Only reads; one accessor serves both directions.
         [=](const Root& j) { return show(get_section(const_cast<Root&>(j)).*field); }});
    return table_.back();
  }

  std::vector<key>& table_;
  std::string section_;
  access get_section_;
};

}  // namespace rrfp::job
