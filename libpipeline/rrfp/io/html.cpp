#include <rrfp/io/html.hpp>

#include <fmt/format.h>

namespace rrfp::html {

extern const char* const html_css;  // the file, embedded

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string text_of(const document& d) {
  return fmt::format(
      R"page(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{0}</title>
<style>
{1}{2}</style>
</head>
<body>
<h1>{0}</h1>
{3}{4}</body>
</html>
)page",
      escaped(d.title), html_css, d.style, d.body,
      d.script.empty() ? "" : fmt::format("<script>\n{}</script>\n", d.script));
}

table::table(std::string_view caption, const std::vector<std::string_view>& heads) {
  text_ = "<table>\n";
  if (!caption.empty()) text_ += fmt::format("<caption>{}</caption>\n", escaped(caption));
  text_ += "<thead><tr>";
  for (const auto h : heads) head(h);
}

void table::head(std::string_view cell) { text_ += fmt::format("<th>{}</th>", escaped(cell)); }

void table::row(std::string_view first, std::string_view kind) {
  end_row();
  text_ += kind.empty() ? "<tr>" : fmt::format("<tr class=\"{}\">", kind);
  text_ += fmt::format("<td>{}</td>", escaped(first));
}

void table::cell(std::string_view value, std::string_view kind) {
  text_ += kind.empty() ? "<td>" : fmt::format("<td class=\"{}\">", kind);
  text_ += value;
  text_ += "</td>";
}

std::string table::finish() {
  end_row();
  return "<div class=\"wide\">" + text_ + "</tbody></table></div>\n";
}

void table::end_row() {
  text_ += in_body_ ? "</tr>\n" : "</tr></thead>\n<tbody>\n";
  in_body_ = true;
}

std::string swatch(std::string_view colour, std::string_view word) {
  return fmt::format("<span><i class=\"swatch\" style=\"background:{}\"></i>{}</span>", colour,
                     escaped(word));
}

}  // namespace rrfp::html
