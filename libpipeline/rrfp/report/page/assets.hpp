/// The contents of page.css and page.js.
#pragma once

namespace rrfp::report {

extern const char* const page_css;
extern const char* const page_js;

}  // namespace rrfp::report
