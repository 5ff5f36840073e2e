# Helpers, so that the CMakeLists of the layers are little more than file lists.
include_guard()
include(GNUInstallDirs)

add_library(rrfp_options INTERFACE)
target_compile_features(rrfp_options INTERFACE cxx_std_20)
target_compile_options(rrfp_options INTERFACE -Wall -Wextra -Wpedantic -Wconversion
  -Wno-sign-conversion -Wnon-virtual-dtor $<$<BOOL:${RRFP_WERROR}>:-Werror>)
if(CMAKE_UNITY_BUILD)
  # In one translation unit, a local may share its name with a function that is private to another file,
  # and a class may have a member of a type that is.
  target_compile_options(rrfp_options INTERFACE -Wshadow=local -Wno-subobject-linkage)
else()
  target_compile_options(rrfp_options INTERFACE -Wshadow)
endif()
if(RRFP_SANITIZE)
  add_compile_options(-fsanitize=${RRFP_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${RRFP_SANITIZE})
  if(RRFP_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
endif()

# rrfp_add_library(NAME [NO_INSTALL] SOURCES file... [DEPENDS lib...] [PRIVATE_DEPENDS lib...])
# A room: sources and headers beside its CMakeLists, alias rrfp::NAME, installed as rrfp::NAME. Its headers are included
# by their path below the folder that holds rrfp/, and those of a room without one by their names.
function(rrfp_add_library name)
  get_filename_component(tree ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/.. ABSOLUTE)
  file(RELATIVE_PATH folder ${tree} ${CMAKE_CURRENT_SOURCE_DIR})
  string(REGEX REPLACE "/rrfp/.*" "" folder ${folder})
  cmake_parse_arguments(arg "NO_INSTALL" "" "SOURCES;DEPENDS;PRIVATE_DEPENDS" ${ARGN})
  add_library(rrfp_${name} STATIC ${arg_SOURCES})
  add_library(rrfp::${name} ALIAS rrfp_${name})
  target_include_directories(rrfp_${name}
    PUBLIC $<BUILD_INTERFACE:${tree}/${folder}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(rrfp_${name} PUBLIC ${arg_DEPENDS} PRIVATE $<BUILD_INTERFACE:rrfp_options>
    ${arg_PRIVATE_DEPENDS})
  target_compile_features(rrfp_${name} PUBLIC cxx_std_20)
  if(arg_NO_INSTALL)
    return()
  endif()
  set_target_properties(rrfp_${name} PROPERTIES EXPORT_NAME ${name})
  set_property(GLOBAL APPEND PROPERTY RRFP_COMPONENTS ${name})
  install(TARGETS rrfp_${name} EXPORT rrfp
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
endfunction()

# rrfp_embed(OUT NAMESPACE namespace FILES file...)   generates a source with the files as text; OUT is its
# path. style.css becomes `extern const char* const style_css`, which the caller declares.
function(rrfp_embed out)
  cmake_parse_arguments(arg "" "NAMESPACE" "FILES" ${ARGN})
  set(text "namespace ${arg_NAMESPACE} {\n")
  foreach(file IN LISTS arg_FILES)
    file(READ ${file} content)
    get_filename_component(name ${file} NAME)
    string(MAKE_C_IDENTIFIER ${name} name)
    string(APPEND text "extern const char* const ${name};\n"
      "const char* const ${name} = R\"asset(${content})asset\";\n")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  endforeach()
  string(APPEND text "}\n")
  file(CONFIGURE OUTPUT assets.cpp CONTENT "@text@" @ONLY)
  set(${out} ${CMAKE_CURRENT_BINARY_DIR}/assets.cpp PARENT_SCOPE)
endfunction()

# rrfp_add_program(NAME [INSTALL] SOURCES file... DEPENDS lib...)   a program in build/PRESET/bin
function(rrfp_add_program name)
  cmake_parse_arguments(arg "INSTALL" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE rrfp_options ${arg_DEPENDS})
  target_compile_definitions(${name} PRIVATE RRFP_VERSION="${PROJECT_VERSION}")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin
    INSTALL_RPATH "\$ORIGIN/../${CMAKE_INSTALL_LIBDIR}/rrfp/torch/lib")
  if(arg_INSTALL)
    install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
  endif()
endfunction()

# The runtime of the sanitizers, which must be the first library that is preloaded into a program; else empty.
set(RRFP_PRELOADED_FIRST "")
if(RRFP_SANITIZE MATCHES "^(address|thread)")
  string(SUBSTRING ${RRFP_SANITIZE} 0 1 initial)
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=lib${initial}san.so
    OUTPUT_VARIABLE RRFP_PRELOADED_FIRST OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  string(APPEND RRFP_PRELOADED_FIRST ":")
endif()

# rrfp_set_test(NAME LABELS label... TIMEOUT seconds [ENVIRONMENT name=value...] [SUPPRESSIONS file])
# Properties of a test, with what the sanitizers need. The presets asan and tsan run all tests but those with the
# label soak, gpu or no_sanitizer. SUPPRESSIONS: of the thread sanitizer, in place of cmake/tsan.supp.
function(rrfp_set_test name)
  cmake_parse_arguments(arg "" "TIMEOUT;SUPPRESSIONS" "LABELS;ENVIRONMENT" ${ARGN})
  if(NOT arg_SUPPRESSIONS)
    set(arg_SUPPRESSIONS ${PROJECT_SOURCE_DIR}/cmake/tsan.supp)
  endif()
  # A code that no program of rrfp ends with, so that no test takes a report for a failure that it expects; and an
  # allocation that is too large fails, as it does without sanitizers.
  set(common exitcode=99:allocator_may_return_null=1)
  if(RRFP_SANITIZE)
    math(EXPR arg_TIMEOUT "${arg_TIMEOUT} * 4")  # as slowdown in test/support/slowdown.hpp
    list(APPEND arg_ENVIRONMENT "ASAN_OPTIONS=${common}"
      "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/cmake/lsan.supp:print_suppressions=0"
      "UBSAN_OPTIONS=exitcode=99:print_stacktrace=1"
      "TSAN_OPTIONS=${common}:halt_on_error=1:suppressions=${arg_SUPPRESSIONS}"
      # UCX hooks madvise(), which the end of a thread calls when the thread sanitizer has forgotten the thread.
      UCX_MEM_MMAP_HOOK_MODE=none
      # The thread sanitizer does not see how OpenMP's threads, which serve libtorch alone, wait for each other.
      OMP_NUM_THREADS=1)
  endif()
  if(CMAKE_CROSSCOMPILING)
    math(EXPR arg_TIMEOUT "${arg_TIMEOUT} * 10")  # an emulator runs them
  endif()
  # Python compiles torch's modules once for all tests, and writes nothing beside the sources.
  list(APPEND arg_ENVIRONMENT PYTHONDONTWRITEBYTECODE= "PYTHONPYCACHEPREFIX=${PROJECT_BINARY_DIR}/pycache")
  # Tests with a long limit start first, so that none is left alone at the end of a parallel run.
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT} COST ${arg_TIMEOUT}
    ENVIRONMENT "${arg_ENVIRONMENT}")
endfunction()

# rrfp_add_test(NAME [TENSORS] SOURCES file... DEPENDS lib... [LABELS label...] [TIMEOUT seconds] [ARGS arg...])
# One Catch2 program is one ctest entry.
# TENSORS: most sources need tensors, and get them precompiled with Catch2.
function(rrfp_add_test name)
  cmake_parse_arguments(arg "TENSORS" "TIMEOUT" "SOURCES;DEPENDS;LABELS;ARGS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE rrfp_options rrfp_catch_main ${arg_DEPENDS})
  # A precompiled header serves targets whose code is made in the same way.
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${name} PRIVATE -fPIC)
  if(arg_TENSORS)
    target_precompile_headers(${name} REUSE_FROM rrfp_catch_tensors)
  else()
    target_precompile_headers(${name} REUSE_FROM rrfp_catch_plain)
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin/test)
  add_test(NAME ${name} COMMAND ${name} ${arg_ARGS})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  rrfp_set_test(${name} LABELS ${arg_LABELS} TIMEOUT ${arg_TIMEOUT})
endfunction()
