/// The contents of html.css.
#pragma once

namespace rrfp::html {

extern const char* const html_css;

}  // namespace rrfp::html
