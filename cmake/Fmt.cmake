# rrfp::fmt: header-only, because libtorch's wheel also contains headers of fmt, of another version than the system's
# library.
if(TARGET rrfp::fmt)
  return()
endif()
find_package(fmt REQUIRED)
add_library(rrfp::fmt INTERFACE IMPORTED GLOBAL)
target_link_libraries(rrfp::fmt INTERFACE fmt::fmt-header-only)
