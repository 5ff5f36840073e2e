# Finds the C++ Actor Framework 0.17.  Debian's libcaf-dev (0.17.6) ships neither a CMake package nor
# pkg-config files; if a CMake package is installed, it is preferred.
#
#   find_package(CAF REQUIRED COMPONENTS core [io] [openssl])
#
# defines the requested ones of CAF::core, CAF::io, CAF::openssl, and CAF_VERSION.
find_package(CAF CONFIG QUIET COMPONENTS ${CAF_FIND_COMPONENTS})
if(TARGET CAF::core)
  return()
endif()

find_path(CAF_INCLUDE_DIR caf/config.hpp)
set(_caf_required CAF_INCLUDE_DIR)
foreach(_component IN LISTS CAF_FIND_COMPONENTS)
  find_library(CAF_${_component}_LIBRARY caf_${_component})
  list(APPEND _caf_required CAF_${_component}_LIBRARY)
endforeach()

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
find_package_handle_standard_args(CAF REQUIRED_VARS ${_caf_required} VERSION_VAR CAF_VERSION)
find_package(Threads REQUIRED)
foreach(_component IN LISTS CAF_FIND_COMPONENTS)
  if(NOT TARGET CAF::${_component})
    add_library(CAF::${_component} UNKNOWN IMPORTED)
    set_target_properties(CAF::${_component} PROPERTIES
      IMPORTED_LOCATION ${CAF_${_component}_LIBRARY}
      INTERFACE_INCLUDE_DIRECTORIES ${CAF_INCLUDE_DIR})
    if(_component STREQUAL core)
      target_link_libraries(CAF::core INTERFACE Threads::Threads)
    else()
      target_link_libraries(CAF::${_component} INTERFACE CAF::core)
    endif()
  endif()
endforeach()
mark_as_advanced(CAF_INCLUDE_DIR)
