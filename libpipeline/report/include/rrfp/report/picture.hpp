/// Timelines as a picture for papers and READMEs: one SVG file with no script, no style sheet and
/// no font of its own, on a white ground.
///
/// The runs stand above each other on one time scale, each from the begin of its window; every rank
/// is a row. Tasks are bars as high as the row, coloured by kind; a wait for an input, for memory
/// or for other ranks is a thin bar; all other idle time is empty. Kinds differ in lightness as
/// well as in hue, so that they can be told apart on grey paper and without colour vision.
/// Coordinates are rounded to a tenth of a pixel, and tasks of one kind that touch are one bar.
#pragma once

#include <string>
#include <vector>

#include <rrfp/report/timeline.hpp>

namespace rrfp::report {

/// `runs` holds at least one timeline, as a rule of one step each; speed-ups are over the first.
/// `title` is what a reader of the picture is told instead of it, not a visible heading.
std::string svg_of(const std::string& title, const std::vector<timeline>& runs);

}  // namespace rrfp::report
