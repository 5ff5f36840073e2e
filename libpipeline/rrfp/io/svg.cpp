#include <rrfp/io/svg.hpp>

#include <cmath>

#include <fmt/format.h>

#include <rrfp/io/html.hpp>

namespace rrfp::svg {

std::string text(double x, double y, std::string_view text, std::string_view more) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\"{}>{}</text>\n", x, y, more,
                     html::escaped(text));
}

std::string line(double x1, double y1, double x2, double y2, std::string_view colour) {
  return fmt::format(
      "<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", x1, x2, y1,
      y2, colour);
}

std::string rect(double x, double y, double width, double height, std::string_view colour) {
  return fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n", x, y,
      width, height, colour);
}

double tick_for(double width, int ticks_max) {
  const auto least = width / ticks_max;
  const auto power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= least) return factor * power;
  return 10 * power;
}

std::string picture(double width, double height, std::string_view title, std::string_view subtitle,
                    std::string_view body) {
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1:.0f}\" "
             "viewBox=\"-10 0 {0} {1:.0f}\" font-family=\"sans-serif\" font-size=\"12\" "
             "fill=\"#1c2330\">\n<rect x=\"-10\" width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
             width, height) +
         text(0, 16, title, " font-size=\"15\" font-weight=\"bold\"") +
         text(0, 34, subtitle, " fill=\"#55606f\"") + std::string{body} + "</svg>\n";
}

}  // namespace rrfp::svg
