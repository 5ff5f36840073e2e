# Builds the libraries whose sources a source archive carries (scripts/source-archive), as static libraries, for a system that
# lacks some of Debian's packages. It takes a C compiler, make and perl beside what pip brings, and minutes.
set(_from ${PROJECT_SOURCE_DIR}/third_party)
set(_to ${PROJECT_BINARY_DIR}/third_party)
include(ProcessorCount)
ProcessorCount(_jobs)
foreach(_tool cc make perl)
  find_program(_found ${_tool} NO_CACHE)
  if(NOT _found)
    message(FATAL_ERROR "expected ${_tool}, found none (Debian: build-essential)")
  endif()
  unset(_found)
endforeach()

# _build(NAME COMMAND... [AND COMMAND...]...)   runs the commands in a folder of the library, once
function(_build name)
  set(stamp ${_to}/${name}.built)
  if(EXISTS ${stamp})
    return()
  endif()
  message(STATUS "Building ${name}")
  set(folder ${_to}/build/${name})
  file(REMOVE_RECURSE ${folder})
  file(MAKE_DIRECTORY ${folder})
  set(one "")
  foreach(word IN LISTS ARGN ITEMS AND)
    if(word STREQUAL AND)
      execute_process(COMMAND ${one} WORKING_DIRECTORY ${folder} RESULT_VARIABLE failed OUTPUT_VARIABLE output
        ERROR_VARIABLE output)
      if(failed)
        string(LENGTH "${output}" length)
        math(EXPR begin "${length} - 3000")
        if(begin GREATER 0)
          string(SUBSTRING "${output}" ${begin} -1 output)
        endif()
        message(FATAL_ERROR "${output}\nbuilding ${name} failed: ${one}")
      endif()
      set(one "")
    else()
      list(APPEND one ${word})
    endif()
  endforeach()
  file(REMOVE_RECURSE ${folder})
  file(TOUCH ${stamp})
endfunction()

# _build_by_cmake(NAME FOLDER OPTION...)
function(_build_by_cmake name folder)
  # The newest CMake, which pip brings, wants policies that are newer than these libraries.
  _build(${name} ${CMAKE_COMMAND} -G ${CMAKE_GENERATOR} -DCMAKE_MAKE_PROGRAM=${CMAKE_MAKE_PROGRAM} -S ${_from}/${folder} -B .
    -DCMAKE_POLICY_VERSION_MINIMUM=3.5 -DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON
    -DBUILD_SHARED_LIBS=OFF -DCMAKE_PREFIX_PATH=${_to} -DCMAKE_INSTALL_PREFIX=${_to} -DCMAKE_INSTALL_LIBDIR=lib ${ARGN}
    AND ${CMAKE_COMMAND} --build . --parallel ${_jobs}
    AND ${CMAKE_COMMAND} --install .)
endfunction()

_build(zlib ${CMAKE_COMMAND} -E env "CFLAGS=-O3 -fPIC" ${_from}/zlib/configure --static --prefix=${_to}
  AND make -j ${_jobs} install)
_build_by_cmake(libpng libpng1.6 -DPNG_SHARED=OFF -DPNG_TESTS=OFF)
# Its own build leaves what chooses the instructions at run time out of the static library.
set(_xxhash xxhash.o)
set(_xxhash_headers xxhash.h)
if(CMAKE_SYSTEM_PROCESSOR STREQUAL x86_64)
  list(APPEND _xxhash xxh_x86dispatch.o)
  list(APPEND _xxhash_headers xxh_x86dispatch.h)
endif()
_build(xxhash ${CMAKE_COMMAND} -E copy_directory ${_from}/xxhash .
  AND make MOREFLAGS=-fPIC PREFIX=${_to} ${_xxhash} libxxhash.pc
  AND ar rcs ${_to}/lib/libxxhash.a ${_xxhash}
  AND ${CMAKE_COMMAND} -E copy ${_xxhash_headers} ${_to}/include
  AND ${CMAKE_COMMAND} -E copy libxxhash.pc ${_to}/lib/pkgconfig)
_build_by_cmake(civetweb civetweb -DCIVETWEB_BUILD_TESTING=OFF -DCIVETWEB_ENABLE_ASAN=OFF -DCIVETWEB_ENABLE_CXX=ON
  -DCIVETWEB_ENABLE_SERVER_EXECUTABLE=OFF -DCIVETWEB_ENABLE_SSL=OFF)
# CAF expects this of the headers of GCC 12 and before.
string(APPEND CMAKE_CXX_FLAGS " -include cstdint")
_build_by_cmake(caf actor-framework "-DCMAKE_CXX_FLAGS=${CMAKE_CXX_FLAGS}" -DCMAKE_CXX_STANDARD=17
  -DCAF_BUILD_STATIC_ONLY=yes -DCAF_NO_IO=yes -DCAF_NO_OPENCL=yes -DCAF_NO_OPENSSL=yes -DCAF_NO_PYTHON=yes
  -DCAF_NO_TOOLS=yes -DCAF_NO_EXAMPLES=yes -DCAF_NO_UNIT_TESTS=yes)
_build(openssl ${_from}/openssl/config no-shared no-tests no-engine no-module --prefix=${_to} --libdir=lib
  AND make -j ${_jobs} build_libs
  AND make install_dev)
# With --with-pic it would take itself for a shared library.
_build(ucx ${_from}/ucx/configure "CFLAGS=-O3 -fPIC -Wno-error" --prefix=${_to} --disable-shared --enable-static --disable-logging
  --disable-debug --disable-assertions --disable-params-check --disable-numa --disable-doxygen-doc --without-bfd --without-cuda
  --without-go --without-java --without-knem --without-rdmacm --without-rocm --without-verbs --without-xpmem
  AND make -j ${_jobs} -C src/ucm install
  AND make -j ${_jobs} -C src/ucs install
  AND make -j ${_jobs} -C src/uct install
  AND make -j ${_jobs} -C src/ucp install)

list(PREPEND CMAKE_PREFIX_PATH ${_to})
set(ENV{PKG_CONFIG_PATH} "${_to}/lib/pkgconfig:$ENV{PKG_CONFIG_PATH}")
set(OPENSSL_ROOT_DIR ${_to})
set(OPENSSL_USE_STATIC_LIBS TRUE)
set(CAF_INCLUDE_DIR ${_to}/include)
set(CAF_core_LIBRARY ${_to}/lib/libcaf_core_static.a)
set(DLPACK_INCLUDE_DIR ${_from}/include)
set(RRFP_LICENSES ${_from}/licenses)

# Its transports register themselves: nothing names the objects that they are in.
add_library(rrfp::ucx INTERFACE IMPORTED GLOBAL)
target_include_directories(rrfp::ucx INTERFACE ${_to}/include)
target_link_libraries(rrfp::ucx INTERFACE
  "$<LINK_LIBRARY:WHOLE_ARCHIVE,${_to}/lib/libucp.a,${_to}/lib/libuct.a,${_to}/lib/ucx/libuct_cma.a,${_to}/lib/libucs.a,${_to}/lib/libucm.a>"
  ${CMAKE_DL_LIBS} m rt)

# Libraries that are headers alone: find_package() reads these files first.
foreach(_each cli11=CLI11::CLI11 fmt=fmt::fmt-header-only nlohmann_json=nlohmann_json::nlohmann_json
    tomlplusplus=tomlplusplus::tomlplusplus)
  string(REPLACE "=" ";" _each ${_each})
  list(GET _each 0 _package)
  list(GET _each 1 _target)
  file(WRITE ${CMAKE_FIND_PACKAGE_REDIRECTS_DIR}/${_package}-config.cmake
    "if(NOT TARGET ${_target})\n  add_library(${_target} INTERFACE IMPORTED)\n"
    "  target_include_directories(${_target} INTERFACE ${_from}/include)\n"
    "  target_compile_definitions(${_target} INTERFACE FMT_HEADER_ONLY=1)\nendif()\n")
endforeach()
