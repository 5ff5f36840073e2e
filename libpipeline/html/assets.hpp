/// html.css, as text.
#pragma once

namespace rrfp::html {

extern const char* const html_css;

}  // namespace rrfp::html
