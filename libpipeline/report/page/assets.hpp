/// page.css and page.js, as text.
#pragma once

namespace rrfp::report {

extern const char* const page_css;
extern const char* const page_js;

}  // namespace rrfp::report
