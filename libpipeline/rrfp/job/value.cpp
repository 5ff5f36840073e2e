#include <rrfp/job/value.hpp>

#include <charconv>
#include <cmath>

#include <rrfp/base/printable.hpp>

namespace rrfp::job {

namespace {

std::string hex_of(char c) {
  constexpr char digits[] = "0123456789ABCDEF";
  const auto byte = static_cast<unsigned char>(c);
  return {digits[byte >> 4], digits[byte & 15]};
}

}  // namespace

std::string in_quotes(std::string_view text) {
  const bool is_utf8 = end_of_utf8(text) == text.size();
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      out += "\\u00" + hex_of(c);
    } else if (byte >= 0x80 && !is_utf8) {
      out += "\\x" + hex_of(c);
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string number_text(double x) {
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x < 0 ? "-inf" : "inf";
  // Without this, 0.0003 would print as 3e-04.
  const auto size = std::abs(x);
  const bool plain = size == 0 || (size >= 1e-4 && size < 1e15);
  char digits[64];
  const auto end = std::to_chars(digits, digits + sizeof digits, x,
                                 plain ? std::chars_format::fixed : std::chars_format::general)
                       .ptr;
  std::string text{digits, end};
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string to_toml(const value& v) {
  struct writer {
    std::string operator()(bool b) const { return b ? "true" : "false"; }
    std::string operator()(std::int64_t i) const { return std::to_string(i); }
    std::string operator()(double x) const { return number_text(x); }
    std::string operator()(const std::string& s) const { return in_quotes(s); }
    std::string operator()(const value_list& list) const {
      std::string text = "[";
      for (const auto& item : list) text += (text.size() > 1 ? ", " : "") + to_toml(item);
      return text + "]";
    }
    std::string operator()(const foreign_value& f) const { return std::string{f.type}; }
  };
  return std::visit(writer{}, v.data);
}

std::string shown(const value& v) { return printable(to_toml(v)); }

std::string describe(const value& v) {
  constexpr const char* types[] = {"a boolean ", "an integer ", "a float ",
                                   "a string ",  "an array ",   ""};
  return types[v.data.index()] + shown(v);
}

status check_utf8(std::string_view text) {
  const auto at = end_of_utf8(text);
  if (at == text.size()) return success();
  return error{"expected UTF-8, got the byte 0x" + hex_of(text[at]) + " at " + std::to_string(at)};
}

status check_utf8(const value& v) {
  if (const auto* text = std::get_if<std::string>(&v.data))
    return check_utf8(std::string_view{*text});
  if (const auto* list = std::get_if<value_list>(&v.data))
    for (const auto& item : *list)
      if (auto good = check_utf8(item); !good) return good;
  return success();
}

}  // namespace rrfp::job
