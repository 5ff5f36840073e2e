# Imported target for libtorch as the PyPI wheel lays it out.
#
# The wheel's own CMake package enables the CUDA language and stops without nvcc, although nothing
# here is compiled by nvcc; so the target is made from the wheel's include/ and lib/.
#
#   RRFP_TORCH_ROOT   a folder with include/ and lib/ (default: torch in .venv of this checkout)
#   rrfp::torch       headers and CPU libraries
set(RRFP_TORCH_ROOT "" CACHE PATH "libtorch: a folder with include/ and lib/")
set(_torch_root "${RRFP_TORCH_ROOT}")
if(NOT _torch_root)
  file(GLOB _torch_candidates ${PROJECT_SOURCE_DIR}/.venv/lib/python3.*/site-packages/torch)
  list(GET _torch_candidates 0 _torch_root)
endif()
if(NOT EXISTS "${_torch_root}/include/ATen/ATen.h")
  message(FATAL_ERROR "libtorch not found in '${_torch_root}': run scripts/setup, "
    "or give -DRRFP_TORCH_ROOT=DIR, a folder with include/ and lib/")
endif()
file(READ ${_torch_root}/include/torch/headeronly/version.h _torch_version)
string(REGEX MATCH "TORCH_VERSION \"([0-9.]+)" _ "${_torch_version}")
message(STATUS "libtorch ${CMAKE_MATCH_1}: ${_torch_root}")

add_library(rrfp_torch INTERFACE)
add_library(rrfp::torch ALIAS rrfp_torch)
target_include_directories(rrfp_torch SYSTEM INTERFACE
  ${_torch_root}/include ${_torch_root}/include/torch/csrc/api/include)
find_package(Threads REQUIRED)
target_link_libraries(rrfp_torch INTERFACE
  ${_torch_root}/lib/libtorch_cpu.so ${_torch_root}/lib/libc10.so Threads::Threads)
# libtorch_cpu.so refers to CUDA libraries of its sister wheels; it finds them at run time by its own
# run path, and the linker need not.
target_link_options(rrfp_torch INTERFACE -Wl,--allow-shlib-undefined)
# The wheel also carries headers of fmt, of another version than the system's library: sources that see
# both must take fmt as headers alone.
find_package(fmt REQUIRED)
add_library(rrfp_fmt INTERFACE)
add_library(rrfp::fmt ALIAS rrfp_fmt)
target_link_libraries(rrfp_fmt INTERFACE fmt::fmt-header-only)
