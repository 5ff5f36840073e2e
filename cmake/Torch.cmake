# Imported target for libtorch in the layout of the PyPI wheel.
#
# The wheel's own CMake package enables the CUDA language and fails without nvcc, although nvcc compiles
# nothing here. So this file makes the target from the wheel's include/ and lib/.
#
#   RRFP_TORCH_ROOT   a folder with include/ and lib/ (default: torch in .venv of this checkout, or the
#                     torch that python3 imports; for a wheel that of the Python that builds it)
#   rrfp::torch       headers and CPU libraries
#   RRFP_TORCH_VERSION    the version found
#   RRFP_TORCH_EXPECTED   the only accepted version; unset: any (the static libraries of an installed
#                         package are compatible with one version only)
#   RRFP_MISSING      set if something is missing: what it is, and what to do
if(TARGET rrfp::torch)
  return()
endif()
unset(RRFP_MISSING)
set(RRFP_TORCH_ROOT "" CACHE PATH "libtorch: a folder with include/ and lib/")
set(_torch_root "${RRFP_TORCH_ROOT}")
set(_torch_python python3)
if(SKBUILD)
  set(_torch_python ${Python_EXECUTABLE})  # the one that the wheel is built for
elseif(NOT _torch_root)
  file(GLOB _torch_root ${PROJECT_SOURCE_DIR}/.venv/lib/python3.*/site-packages/torch)
endif()
if(NOT _torch_root)
  execute_process(COMMAND ${_torch_python} -c
    "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE _torch_root ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
if(_torch_root)
  list(GET _torch_root 0 _torch_root)
endif()
if(NOT EXISTS "${_torch_root}/include/ATen/ATen.h")
  string(CONCAT RRFP_MISSING "libtorch not found in '${_torch_root}': run scripts/setup or pip install "
    "torch==2.11.0, or give -DRRFP_TORCH_ROOT=DIR, a folder with include/ and lib/")
  return()
endif()
# The version header: first since torch 2.9, second before.
set(_torch_text "")
foreach(_header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
  if(EXISTS "${_torch_root}/include/${_header}")
    file(READ "${_torch_root}/include/${_header}" _torch_header)
    string(APPEND _torch_text "${_torch_header}")
  endif()
endforeach()
set(RRFP_TORCH_VERSION "")
foreach(_part MAJOR MINOR PATCH)
  if(NOT _torch_text MATCHES "#define TORCH_VERSION_${_part} ([0-9]+)")
    string(CONCAT RRFP_MISSING "libtorch in '${_torch_root}': expected its version in "
      "include/torch/headeronly/version.h, found no TORCH_VERSION_${_part}")
    return()
  endif()
  list(APPEND RRFP_TORCH_VERSION ${CMAKE_MATCH_1})
endforeach()
list(JOIN RRFP_TORCH_VERSION "." RRFP_TORCH_VERSION)
if(RRFP_TORCH_EXPECTED AND NOT RRFP_TORCH_VERSION VERSION_EQUAL RRFP_TORCH_EXPECTED)
  string(CONCAT RRFP_MISSING "libtorch in '${_torch_root}': expected version ${RRFP_TORCH_EXPECTED}, "
    "with which rrfp was built, got ${RRFP_TORCH_VERSION}: give -DRRFP_TORCH_ROOT=DIR")
  return()
endif()
set(RRFP_TORCH_FOUND_ROOT ${_torch_root})
message(STATUS "libtorch ${RRFP_TORCH_VERSION}: ${_torch_root}")

# An imported target: an installed package must use the libtorch of its machine, not this path.
add_library(rrfp::torch INTERFACE IMPORTED GLOBAL)
target_include_directories(rrfp::torch SYSTEM INTERFACE
  ${_torch_root}/include ${_torch_root}/include/torch/csrc/api/include)
find_package(Threads REQUIRED)
target_link_libraries(rrfp::torch INTERFACE
  ${_torch_root}/lib/libtorch_cpu.so ${_torch_root}/lib/libc10.so Threads::Threads)
# libtorch_cpu.so refers to CUDA libraries of its sister wheels. It finds them at run time through its
# run path; the linker does not need them.
target_link_options(rrfp::torch INTERFACE -Wl,--allow-shlib-undefined)
