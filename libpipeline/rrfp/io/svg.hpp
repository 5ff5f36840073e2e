/// Charts as SVG pictures, which need neither a style sheet nor a script. Sizes are in pixels, from
/// the top left; texts are plain and are escaped.
#pragma once

#include <string>
#include <string_view>

namespace rrfp::svg {

/// Colours of text and axes, and of the lines behind a chart.
inline constexpr std::string_view soft = "#55606f", rule = "#dde2e9";

/// `more`: further attributes.
std::string text(double x, double y, std::string_view text, std::string_view more = {});
std::string line(double x1, double y1, double x2, double y2, std::string_view colour);
std::string rect(double x, double y, double width, double height, std::string_view colour);

/// The distance of at most `ticks_max` ticks on an axis: 1, 2 or 5 times a power of ten.
double tick_for(double width, int ticks_max);

/// The first heading_height pixels of a picture.
inline constexpr double heading_height = 52;
/// `body`: what the functions above return, below the heading.
std::string picture(double width, double height, std::string_view title, std::string_view subtitle,
                    std::string_view body);

}  // namespace rrfp::svg
