/// What the product's pages have in common: one HTML file each, with style and script in it, which
/// asks nothing of any network. Texts come in as they are and go out escaped, unless said
/// otherwise.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace rrfp::html {

/// The same with &, <, > and quotes as entities.
std::string escaped(std::string_view text);

/// All but the title are HTML, CSS and JavaScript, taken as they are.
struct document {
  std::string title;
  /// Beside that of all pages: headings, tables, cards, bars, swatches.
  std::string_view style;
  /// After the heading.
  std::string body;
  /// May be empty.
  std::string_view script;
};

std::string text_of(const document& d);

/// Rows of cells under heads; the first cell of a row is its name.
class table {
 public:
  explicit table(std::string_view caption, std::initializer_list<std::string_view> heads);
  /// Before the first row.
  void head(std::string_view cell);

  /// `kind` is a class of the row.
  void row(std::string_view first, std::string_view kind = {});
  /// `value` is HTML; `kind` is a class of the cell.
  void cell(std::string_view value, std::string_view kind = {});

  /// No call after this one.
  std::string finish();

 private:
  void end_row();

  std::string text_;
  bool in_body_ = false;
};

/// A sample of a colour (CSS) and what it stands for.
std::string swatch(std::string_view colour, std::string_view word);

}  // namespace rrfp::html
