# Finds the C++ Actor Framework 0.17.  Debian's libcaf-dev (0.17.6) ships neither a CMake package nor
# pkg-config files; if a CMake package is installed, it is preferred.
#
#   find_package(CAF REQUIRED COMPONENTS core)
#
# defines CAF::core and CAF_VERSION.
find_package(CAF CONFIG QUIET COMPONENTS core)
if(TARGET CAF::core)
  return()
endif()

find_path(CAF_INCLUDE_DIR caf/config.hpp)
find_library(CAF_core_LIBRARY caf_core)
if(CAF_INCLUDE_DIR)
  file(STRINGS ${CAF_INCLUDE_DIR}/caf/config.hpp _caf_version REGEX "#define CAF_VERSION ")
  if(_caf_version MATCHES "CAF_VERSION ([0-9]+)")
    math(EXPR _caf_major "${CMAKE_MATCH_1} / 10000")
    math(EXPR _caf_minor "${CMAKE_MATCH_1} / 100 % 100")
    math(EXPR _caf_patch "${CMAKE_MATCH_1} % 100")
    set(CAF_VERSION ${_caf_major}.${_caf_minor}.${_caf_patch})
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CAF REQUIRED_VARS CAF_core_LIBRARY CAF_INCLUDE_DIR
  VERSION_VAR CAF_VERSION)
find_package(Threads REQUIRED)
if(NOT TARGET CAF::core)
  add_library(CAF::core UNKNOWN IMPORTED)
  set_target_properties(CAF::core PROPERTIES
    IMPORTED_LOCATION ${CAF_core_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${CAF_INCLUDE_DIR})
  target_link_libraries(CAF::core INTERFACE Threads::Threads)
endif()
mark_as_advanced(CAF_INCLUDE_DIR CAF_core_LIBRARY)
