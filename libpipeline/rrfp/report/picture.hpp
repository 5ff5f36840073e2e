/// Timelines as a picture for papers and READMEs: one SVG file without script, style sheet or
/// fonts, on a white background.
///
/// The runs are drawn above each other on one time scale, each from the start of its window; every
/// rank is a row. Tasks are bars as high as the row, coloured by kind. A wait for an input, for
/// memory or for other ranks is a thin bar. All other idle time is empty. Kinds differ in lightness
/// as well as in hue, so that they can be distinguished in greyscale and without colour vision.
/// Coordinates are rounded to a tenth of a pixel, and adjacent tasks of one kind form one bar.
#pragma once

#include <string>
#include <vector>

#include <rrfp/report/timeline.hpp>

namespace rrfp::report {

/// `runs` holds at least one timeline, usually of one step each; speed-ups are relative to the
/// first. `title` is the accessible name of the picture, not a visible heading.
std::string svg_of(const std::string& title, const std::vector<timeline>& runs);

}  // namespace rrfp::report
