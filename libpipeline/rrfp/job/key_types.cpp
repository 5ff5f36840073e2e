#include <rrfp/job/key_types.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>

#include <rrfp/base/printable.hpp>

namespace rrfp::job {

namespace {

error mismatch(const std::string& expected, const value& v) {
  return error{"expected " + expected + ", got " + describe(v)};
}

/// The value has the right type but is out of range, so the message omits its type.
error outside(const std::string& expected, const value& v) {
  return error{"expected " + expected + ", got " + shown(v)};
}

/// Reads one value, or every item of a list; an error names the entry.
template <class T, class Read>
result<std::vector<T>> read_each(const value& v, Read read) {
  const auto* list = std::get_if<value_list>(&v.data);
  if (list == nullptr) {
    auto one = read(v);
    if (!one) return one.failure();
    return std::vector{static_cast<T>(std::move(one).value())};
  }
  std::vector<T> all;
  for (const auto& item : *list) {
    auto one = read(item);
    if (!one) return error{"entry " + std::to_string(all.size()) + ": " + one.message()};
    all.push_back(static_cast<T>(std::move(one).value()));
  }
  return all;
}

/// "1", "0.5", "1e-08": a number without the ".0" of a TOML float.
std::string plain(double x) {
  auto text = number_text(x);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text;
}

std::string an_integer(integer_range range) { return "an integer >= " + std::to_string(range.low); }

std::string bounds(number_range range) {
  return std::string{range.open_low ? "(" : "["} + plain(range.low) + ", " + plain(range.high) +
         (range.open_high ? ")" : "]");
}

std::string below(number_range range) { return (range.open_low ? "> " : ">= ") + plain(range.low); }
std::string above(number_range range) {
  return (range.open_high ? "< " : "<= ") + plain(range.high);
}

std::vector<std::string> quoted(const words& all) {
  std::vector<std::string> texts;
  for (const auto& word : all) texts.push_back(in_quotes(word));
  return texts;
}

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

}  // namespace

result<std::int64_t> read_integer(const value& v, integer_range range) {
  const auto* i = std::get_if<std::int64_t>(&v.data);
  if (i == nullptr) return mismatch(an_integer(range), v);
  if (*i < range.low) return outside(an_integer(range), v);
  if (*i > range.high) return outside("an integer <= " + std::to_string(range.high), v);
  return *i;
}

result<std::int64_t> read_integer_or_word(const value& v, integer_range range, const words& also) {
  if (const auto* text = std::get_if<std::string>(&v.data))
    for (std::size_t i = 0; i < also.size(); ++i)
      if (also[i] == *text)
        return static_cast<std::int64_t>(i) - static_cast<std::int64_t>(also.size());
  auto i = read_integer(v, range);
  if (i || std::holds_alternative<std::int64_t>(v.data)) return i;
  auto expected = quoted(also);
  expected.push_back(an_integer(range));
  return mismatch(alternatives(expected), v);
}

result<double> read_number(const value& v, number_range range) {
  double x = 0;
  if (const auto* i = std::get_if<std::int64_t>(&v.data)) {
    x = static_cast<double>(*i);
  } else if (const auto* d = std::get_if<double>(&v.data)) {
    x = *d;
  } else {
    return mismatch("a number in " + bounds(range), v);
  }
  if (std::isnan(x)) return outside("a number in " + bounds(range), v);
  if (range.open_low ? x <= range.low : x < range.low)
    return outside("a number " + below(range), v);
  if (range.open_high ? x >= range.high : x > range.high)
    return outside("a number " + above(range), v);
  return x;
}

result<std::vector<double>> read_numbers(const value& v, number_range range) {
  const auto* list = std::get_if<value_list>(&v.data);
  if (list != nullptr && list->empty()) return outside("a number or an array of at least one", v);
  return read_each<double>(v, [&](const value& item) { return read_number(item, range); });
}

result<std::vector<std::uint32_t>> read_integers(const value& v, integer_range range) {
  return read_each<std::uint32_t>(v, [&](const value& item) { return read_integer(item, range); });
}

result<std::size_t> read_word(const value& v, const words& allowed) {
  const auto* text = std::get_if<std::string>(&v.data);
  if (text == nullptr) return mismatch(alternatives(quoted(allowed)), v);
  const auto at = std::find(allowed.begin(), allowed.end(), *text);
  if (at == allowed.end()) return outside(alternatives(quoted(allowed)), v);
  return static_cast<std::size_t>(at - allowed.begin());
}

result<std::string> read_text(const value& v) {
  const auto* text = std::get_if<std::string>(&v.data);
  if (text == nullptr) return mismatch("a string", v);
  if (text->empty() || std::any_of(text->begin(), text->end(), is_control))
    return mismatch("a string that is not empty and has no control characters", v);
  return *text;
}

result<std::vector<std::string>> read_texts(const value& v) {
  if (!std::holds_alternative<std::string>(v.data) && !std::holds_alternative<value_list>(v.data))
    return mismatch("a string or an array of strings", v);
  return read_each<std::string>(v, read_text);
}

result<bool> read_boolean(const value& v) {
  const auto* b = std::get_if<bool>(&v.data);
  if (b == nullptr) return mismatch("true or false", v);
  return *b;
}

result<std::int64_t> read_bytes(const value& v, std::int64_t high) {
  const auto* text = std::get_if<std::string>(&v.data);
  if (text == nullptr && !std::holds_alternative<std::int64_t>(v.data))
    return mismatch("bytes as an integer or a string like \"64MiB\"", v);
  if (text == nullptr) return read_integer(v, {0, high});
  std::int64_t count = 0;
  const auto* const end = text->data() + text->size();
  const auto parsed = std::from_chars(text->data(), end, count);
  std::string_view unit{parsed.ptr, static_cast<std::size_t>(end - parsed.ptr)};
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  constexpr std::string_view units[] = {"B", "KiB", "MiB", "GiB"};
  const auto* const found = std::find(std::begin(units), std::end(units), unit);
  if (parsed.ec != std::errc{} || count < 0 || found == std::end(units))
    return outside("a number of bytes like \"64MiB\" (B, KiB, MiB or GiB)", v);
  const auto shift = 10 * (found - std::begin(units));
  if (count > (high >> shift)) return outside("at most " + std::to_string(high) + " bytes", v);
  return count << shift;
}

std::string type_name(integer_range range) {
  if (range.high == std::numeric_limits<std::int64_t>::max())
    return "integer >= " + std::to_string(range.low);
  return "integer, " + std::to_string(range.low) + " to " + std::to_string(range.high);
}

std::string type_name(number_range range) { return "number in " + bounds(range); }

std::string type_name(const words& allowed) {
  std::string text;
  for (const auto& word : allowed) {
    if (!text.empty()) text += ", ";
    text += "`" + std::string{word} + "`";
  }
  return text;
}

}  // namespace rrfp::job
