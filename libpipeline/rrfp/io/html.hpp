/// Shared parts of the HTML pages: each page is one HTML file with its style and script inside, and
/// loads nothing from a network. Functions take plain text and escape it, unless stated otherwise.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace rrfp::html {

/// Replaces &, <, > and quotes by entities.
std::string escaped(std::string_view text);

/// All fields except the title are HTML, CSS or JavaScript and are not escaped.
struct document {
  std::string title;
  /// Added to the style of all pages (headings, tables, cards, bars, swatches).
  std::string_view style;
  /// The HTML after the heading.
  std::string body;
  /// May be empty.
  std::string_view script;
};

std::string text_of(const document& d);

/// A table with header cells; the first cell of each row is its name.
class table {
 public:
  table(std::string_view caption, const std::vector<std::string_view>& heads);
  /// Adds a header cell. Call before the first row.
  void head(std::string_view cell);

  /// Begins a row; `kind` is its CSS class.
  void row(std::string_view first, std::string_view kind = {});
  /// Adds a cell; `value` is HTML, `kind` its CSS class.
  void cell(std::string_view value, std::string_view kind = {});

  /// The HTML of the table. Call nothing after this.
  std::string finish();

 private:
  void end_row();

  std::string text_;
  bool in_body_ = false;
};

/// A colour sample (CSS) with its label.
std::string swatch(std::string_view colour, std::string_view word);

}  // namespace rrfp::html
