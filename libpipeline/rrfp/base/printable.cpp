#include <rrfp/base/printable.hpp>

#include <algorithm>

namespace rrfp {

namespace {

/// Number of bytes of the character that `text` begins with; 0 if it is invalid (Unicode 15, table
/// 3-7).
std::size_t character_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const auto first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t size = first >= 0xC2 && first < 0xE0   ? 2
                           : first >= 0xE0 && first < 0xF0 ? 3
                           : first >= 0xF0 && first < 0xF5 ? 4
                                                           : 0;
  // Tighter bounds on some second bytes exclude overlong forms, surrogates and numbers that are too
  // large.
  const unsigned least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (size == 0 || byte(1) < least || byte(1) > most) return 0;
  for (std::size_t i = 2; i < size; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  return size;
}

}  // namespace

std::size_t end_of_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const auto size = character_bytes(text.substr(at));
    if (size == 0) break;
    at += size;
  }
  return at;
}

std::string printable(std::string_view text, std::size_t bytes_max) {
  std::string line;
  while (!text.empty()) {
    const auto size = character_bytes(text);
    if (line.size() + (size == 0 ? 1 : size) > bytes_max) return line + "...";
    const auto first = static_cast<unsigned char>(text.front());
    if (size == 0 || first < 0x20 || first == 0x7f)
      line += '?';
    else
      line += text.substr(0, size);
    text.remove_prefix(size == 0 ? 1 : size);
  }
  return line;
}

std::string alternatives(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i)
    text += (i == 0 ? "" : i + 1 < words.size() ? ", " : " or ") + words[i];
  return text;
}

std::string wrapped(std::string_view text, std::string_view prefix, std::size_t columns) {
  constexpr std::string_view blanks = " \t\n";
  std::string out;
  std::size_t column = 0;
  for (auto at = text.find_first_not_of(blanks); at != text.npos;) {
    const auto end = std::min(text.find_first_of(blanks, at), text.size());
    const auto word = text.substr(at, end - at);
    at = text.find_first_not_of(blanks, end);
    const bool begins = column == 0 || column + 1 + word.size() > columns;
    if (begins) {
      if (column != 0) out += "\n";
      out += prefix;
      column = prefix.size() - 1;
    } else {
      out += " ";
    }
    out += word;
    column += 1 + word.size();
  }
  return out.empty() ? out : out + "\n";
}

}  // namespace rrfp
