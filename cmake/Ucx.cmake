# UCX >= 1.13: Debian's libucx-dev, the wheel libucx-cu13, HPC-X or your own build.
#
#   RRFP_UCX_ROOT   a folder with include/ and lib/ (default: the system's)
#   rrfp::ucx       headers, libucp and libucs
#   RRFP_MISSING    set if something is missing: what it is, and what to do
if(TARGET rrfp::ucx)
  return()
endif()
unset(RRFP_MISSING)
set(RRFP_UCX_ROOT "" CACHE PATH "UCX: a folder with include/ and lib/")
find_package(ucx 1.13 QUIET CONFIG HINTS ${RRFP_UCX_ROOT})
if(ucx_FOUND)
  # Debian 13's package names folders that do not exist; its pkg-config file is right.
  get_target_property(_ucx_library ucx::ucp IMPORTED_LOCATION)
endif()
if(ucx_FOUND AND EXISTS "${_ucx_library}")
  add_library(rrfp::ucx INTERFACE IMPORTED GLOBAL)
  target_link_libraries(rrfp::ucx INTERFACE ucx::ucp ucx::ucs)
else()
  if(RRFP_UCX_ROOT)
    set(ENV{PKG_CONFIG_PATH} "${RRFP_UCX_ROOT}/lib/pkgconfig:$ENV{PKG_CONFIG_PATH}")
  endif()
  pkg_check_modules(ucx QUIET IMPORTED_TARGET ucx>=1.13)
  if(NOT ucx_FOUND)
    string(CONCAT RRFP_MISSING "UCX >= 1.13 not found: run scripts/setup, "
      "or give -DRRFP_UCX_ROOT=DIR, a folder with include/ and lib/")
    return()
  endif()
  add_library(rrfp::ucx INTERFACE IMPORTED GLOBAL)
  target_link_libraries(rrfp::ucx INTERFACE PkgConfig::ucx)
endif()
message(STATUS "UCX ${ucx_VERSION}")
