# The libraries of a build by pip: those of Debian's packages, or, if any is missing, those that a source archive carries.
option(RRFP_THIRD_PARTY "Take the libraries that the source archive carries in any case" OFF)
# pip shows the first error of a build alone, so this names all of Debian's packages that are missing.
set(_missing "")
foreach(_needed caf/config.hpp:libcaf-dev CLI/CLI.hpp:libcli11-dev toml++/toml.h:libtomlplusplus-dev
    nlohmann/json.hpp:nlohmann-json3-dev fmt/core.h:libfmt-dev xxhash.h:libxxhash-dev CivetServer.h:libcivetweb-dev
    ucp/api/ucp.h:libucx-dev openssl/ssl.h:libssl-dev png.h:libpng-dev zlib.h:zlib1g-dev dlpack/dlpack.h:libdlpack-dev)
  string(REPLACE ":" ";" _needed ${_needed})
  list(GET _needed 0 _header)
  list(GET _needed 1 _package)
  find_path(_found ${_header} HINTS ${CAF_INCLUDE_DIR} ${RRFP_UCX_ROOT}/include NO_CACHE)
  if(NOT _found)
    list(APPEND _missing ${_package})
  endif()
  unset(_found)
endforeach()
find_program(_found NAMES pkg-config pkgconf NO_CACHE)
if(NOT _found)
  list(APPEND _missing pkg-config)
endif()
if(RRFP_THIRD_PARTY OR (_missing AND EXISTS ${PROJECT_SOURCE_DIR}/third_party))
  include(ThirdParty)
elseif(_missing)
  list(JOIN _missing " " _missing)
  message(FATAL_ERROR "expected the headers of Debian's packages, missing are: ${_missing}\n"
    "Install them (apt-get install ${_missing}), or rrfp from a wheel, which needs none of them.")
endif()
