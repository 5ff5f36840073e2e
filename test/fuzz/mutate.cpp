#include "mutate.hpp"

#include <algorithm>
#include <sstream>

namespace rrfp::fuzz {

namespace {

using json_value_type = nlohmann::ordered_json;

/// Marks in values and keys for text that no JSON library writes; replaced after serialisation.
const std::string raw_begin = "@raw(", raw_end = ")raw@", doubled = "@doubled@";

void all_nodes(json_value_type& at, std::vector<json_value_type*>& nodes) {
  nodes.push_back(&at);
  if (at.is_structured())
    for (auto& inner : at) all_nodes(inner, nodes);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in{text};
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const auto& line : lines) text += line + '\n';
  return text;
}

/// Removes the quotes of raw texts and the marks of duplicate keys.
std::string with_raw_texts(std::string text) {
  for (auto at = text.find('"' + raw_begin); at != text.npos; at = text.find('"' + raw_begin)) {
    const auto end = text.find(raw_end + '"', at);
    const auto inner = text.substr(at + 1 + raw_begin.size(), end - at - 1 - raw_begin.size());
    text.replace(at, end + raw_end.size() + 1 - at, inner);
  }
  for (auto at = text.find(doubled); at != text.npos; at = text.find(doubled))
    text.erase(at, doubled.size());
  return text;
}

}  // namespace

std::string mutator::number() {
  static const std::vector<std::string> numbers{"0",
                                                "-0",
                                                "1",
                                                "-1",
                                                "2",
                                                "3",
                                                "7",
                                                "100",
                                                "65535",
                                                "65536",
                                                "1000000",
                                                "2147483647",
                                                "2147483648",
                                                "4294967295",
                                                "4294967296",
                                                "9007199254740993",
                                                "9223372036854775807",
                                                "9223372036854775808",
                                                "18446744073709551615",
                                                "18446744073709551616",
                                                "-2147483648",
                                                "-9223372036854775808",
                                                "-9223372036854775809",
                                                "1e308",
                                                "1e999",
                                                "-1e999",
                                                "1e-320",
                                                "0.0",
                                                "-0.0",
                                                "0.5",
                                                "1.0000001",
                                                "nan",
                                                "-nan",
                                                "NaN",
                                                "inf",
                                                "-inf",
                                                "Infinity",
                                                "0x10",
                                                "1_000",
                                                "1.",
                                                ".5",
                                                "+1",
                                                "00",
                                                "99999999999999999999999999999999999999"};
  return one_in(4) ? std::to_string(below(1000)) : pick(numbers);
}

std::string mutator::brackets() {
  static const std::vector<std::string> opening{"[", "{\"a\":", "{a=", "[[", "a.", "(", "{a.b=["};
  static const std::vector<std::size_t> depths{3, 31, 33, 63, 65, 300, 5000, 100'000};
  const auto& open = pick(opening);
  const auto depth = pick(depths);
  std::string text;
  for (std::size_t i = 0; i < depth; ++i) text += open;
  if (one_in(2)) text += '1';
  const char close = open[0] == '[' ? ']' : open[0] == '(' ? ')' : '}';
  if (one_in(2)) text += std::string(depth, close);
  return text;
}

/// Valid JSON except for its depth.
std::string mutator::json_brackets() {
  static const std::vector<std::size_t> depths{3, 63, 65, 5000, 100'000};
  const auto depth = pick(depths);
  if (one_in(2)) return std::string(depth, '[') + std::string(depth, ']');
  std::string text;
  for (std::size_t i = 0; i < depth; ++i) text += "{\"a\":";
  return text + "1" + std::string(depth, '}');
}

std::string mutator::value() {
  static const std::vector<std::string> values{"",
                                               "\"\"",
                                               "\"x\"",
                                               "x",
                                               "true",
                                               "null",
                                               "[]",
                                               "{}",
                                               "[[]]",
                                               "[1, \"a\"]",
                                               "{a = 1}",
                                               "1979-05-27",
                                               "\"/dev/null\"",
                                               "\"/dev/zero\"",
                                               "\"/dev/full\"",
                                               "\"/\"",
                                               "\"../..\"",
                                               "\"\\u0000\"",
                                               "\"\\ud800\"",
                                               "\"\xff\"",
                                               "'''",
                                               "\"\"\""};
  if (one_in(8)) return brackets();
  if (one_in(12)) return '"' + std::string(1 + below(70'000), 'a') + '"';
  return one_in(2) ? number() : pick(values);
}

void mutator::replace_token(std::string& text, const char* token_characters,
                            const std::string& with) {
  if (text.empty()) return;
  auto begin = text.find_first_of(token_characters, below(text.size()));
  if (begin == text.npos) begin = text.find_first_of(token_characters);
  if (begin == text.npos) return;
  const auto end = std::min(text.find_first_not_of(token_characters, begin), text.size());
  text.replace(begin, end - begin, with);
}

void mutator::change_text(std::string& text) {
  constexpr const char* figures = "0123456789.-+eE";
  constexpr const char* word =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.\"'/:";
  auto lines = lines_of(text);
  const auto a = lines.empty() ? 0 : below(lines.size()),
             b = lines.empty() ? 0 : below(lines.size());
  switch (lines.empty() ? 0 : below(13)) {
    case 0: text.insert(below(text.size() + 1), value()); return;
    case 1: lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(a)); break;
    case 2: lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(a), lines[b]); break;
    case 3: std::swap(lines[a], lines[b]); break;
    case 4: lines[a] = lines[a].substr(0, below(lines[a].size() + 1)); break;
    case 5: replace_token(lines[a], figures, number()); break;
    case 6: replace_token(lines[a], word, value()); break;
    case 7: {  // replaces the value after the sign
      const auto sign = lines[a].find_first_of("=:,");
      if (sign != std::string::npos) lines[a] = lines[a].substr(0, sign + 1) + ' ' + value();
      break;
    }
    case 8: {
      const auto& other = lines[b];
      lines[a] = lines[a].substr(0, lines[a].find_first_of("=,")) +
                 other.substr(std::min(other.size(), other.find_first_of("=,")));
      break;
    }
    case 9: lines[a] = brackets() + lines[a]; break;
    case 10: text.insert(below(text.size() + 1), one_in(2) ? "\xff" : std::string(1, '\0')); return;
    case 11: text.resize(below(text.size() + 1)); return;
    default: {
      const auto room = (std::size_t{4} << 20) / (lines[a].size() + 1);
      const auto times = std::min(room, one_in(10) ? std::size_t{20'000} : 1 + below(20));
      for (std::size_t i = 0; i < times; ++i) text += lines[a] + '\n';
      return;
    }
  }
  text = joined(lines);
}

void mutator::change_bytes(std::string& bytes) {
  const auto at = below(bytes.size() + 1);
  const auto length = std::min(bytes.size() - at, 1 + below(one_in(4) ? 4096 : 16));
  switch (bytes.empty() ? 0 : below(9)) {
    case 0: bytes.insert(at, std::string(1 + below(64), static_cast<char>(bits_()))); break;
    case 1: bytes.erase(at, length); break;
    case 2: bytes.resize(at); break;
    case 3: bytes.replace(at, length, std::string(length, one_in(2) ? '\0' : '\xff')); break;
    case 4: bytes.insert(at, bytes.substr(at, length)); break;
    case 5:
    case 6:
      for (std::size_t i = 0; i < 1 + below(8); ++i)
        bytes[below(bytes.size())] ^= static_cast<char>(1 << below(8));
      break;
    default: {  // a length or an offset of 2, 4 or 8 bytes, in either byte order
      static const std::vector<std::uint64_t> extremes{0,
                                                       1,
                                                       0x7f,
                                                       0xff,
                                                       0x7fff,
                                                       0xffff,
                                                       0x7fffffff,
                                                       0xffffffff,
                                                       ~std::uint64_t{0} >> 1,
                                                       ~std::uint64_t{0}};
      const auto width = std::min(bytes.size(), std::size_t{2} << below(3));
      const auto from = below(bytes.size() - width + 1);
      const auto n = pick(extremes);
      const bool big = one_in(2);
      for (std::size_t i = 0; i < width; ++i)
        bytes[from + (big ? width - 1 - i : i)] = static_cast<char>(n >> (8 * i));
    }
  }
}

nlohmann::ordered_json mutator::json_value() {
  switch (below(6)) {
    case 0: return raw_begin + number() + raw_end;
    case 1: return raw_begin + json_brackets() + raw_end;
    case 2: return nullptr;
    case 3: return nlohmann::ordered_json::array({1, "a", nullptr});
    case 4: return std::string(below(200), 'x');
    default: return static_cast<std::int64_t>(bits_() >> below(64));
  }
}

void mutator::change_json(nlohmann::ordered_json& whole) {
  std::vector<nlohmann::ordered_json*> nodes;
  all_nodes(whole, nodes);
  auto& at = *nodes[below(nodes.size())];
  if (!at.is_structured() || at.empty() || one_in(6)) {
    auto other = one_in(3) ? *nodes[below(nodes.size())] : json_value();
    at = std::move(other);
    return;
  }
  const auto which = below(at.size());
  if (at.is_array()) {
    switch (below(4)) {
      case 0: at.erase(which); return;
      case 1: at.push_back(nlohmann::ordered_json(at[which])); return;
      case 2: std::swap(at[which], at[below(at.size())]); return;
      default: at[which] = json_value(); return;
    }
  }
  const auto chosen = std::next(at.begin(), static_cast<std::ptrdiff_t>(which));
  const auto key = chosen.key();
  switch (below(5)) {
    case 0: at.erase(key); return;
    case 1:
      at[key + doubled] = one_in(2) ? nlohmann::ordered_json(chosen.value()) : json_value();
      return;
    case 2: {
      auto held = chosen.value();
      at.erase(key);
      at[one_in(2) ? key + "x" : std::string{}] = std::move(held);
      return;
    }
    default: at[key] = json_value(); return;
  }
}

std::string mutator::json(const std::string& original) {
  auto whole = nlohmann::ordered_json::parse(original, nullptr, false);
  if (whole.is_discarded() || one_in(6)) return text(original);
  if (one_in(12)) return bytes(original);
  for (std::size_t changes = one_in(3) ? 1 + below(4) : 1; changes > 0; --changes)
    change_json(whole);
  const auto error = nlohmann::ordered_json::error_handler_t::replace;
  return with_raw_texts(whole.dump(one_in(2) ? 1 : -1, ' ', false, error));
}

std::string mutator::text(std::string original) {
  if (one_in(40)) return {};
  if (one_in(40)) original.insert(0, "\xef\xbb\xbf");
  if (one_in(8)) return bytes(std::move(original));
  for (std::size_t changes = one_in(3) ? 1 + below(4) : 1; changes > 0; --changes)
    change_text(original);
  return original;
}

std::string mutator::bytes(std::string original) {
  for (std::size_t changes = one_in(3) ? 1 + below(4) : 1; changes > 0; --changes)
    change_bytes(original);
  return original;
}

}  // namespace rrfp::fuzz
