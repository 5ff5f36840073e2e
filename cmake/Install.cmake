# The rules of `cmake --install`, and the Debian packages that CPack makes:
#
#   runtime       the programs; the libtorch that they link (lib/rrfp) without its CUDA libraries, which
#                 take gigabytes (librrfp_cuda.so finds them if they are installed into lib/rrfp/cuda);
#                 pages, jobs and deploy/
#   development   public headers, static libraries and the CMake package
include(CMakePackageConfigHelpers)

set(_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/rrfp)
get_property(_components GLOBAL PROPERTY RRFP_COMPONENTS)
list(JOIN _components " " _components)
configure_package_config_file(cmake/rrfpConfig.cmake.in ${PROJECT_BINARY_DIR}/rrfpConfig.cmake
  INSTALL_DESTINATION ${_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/rrfpConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES cmake/FindCAF.cmake cmake/Fmt.cmake cmake/Torch.cmake cmake/Ucx.cmake cmake/rrfpDependencies.cmake
    ${PROJECT_BINARY_DIR}/rrfpConfig.cmake
    ${PROJECT_BINARY_DIR}/rrfpConfigVersion.cmake
  DESTINATION ${_package_dir} COMPONENT development)
# The public headers, with all that they include; test/layers checks the list. Another one is rrfp/version.hpp.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS cmake/public-headers.txt)
file(STRINGS cmake/public-headers.txt _headers)
foreach(header IN LISTS _headers)
  get_filename_component(_room ${header} DIRECTORY)
  foreach(library IN ITEMS libpipeline libtp_coord policies libactors)
    if(EXISTS ${PROJECT_SOURCE_DIR}/${library}/${header})
      install(FILES ${library}/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${_room} COMPONENT development)
    endif()
  endforeach()
endforeach()
install(EXPORT rrfp FILE rrfpTargets.cmake NAMESPACE rrfp:: DESTINATION ${_package_dir}
  COMPONENT development)

# The wheel's libraries keep the wheel's layout, through which they find each other.
set(_torch_libraries libtorch_cpu.so libc10.so)
foreach(library IN LISTS _torch_libraries)
  install(PROGRAMS ${RRFP_TORCH_FOUND_ROOT}/lib/${library}
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/rrfp/torch/lib COMPONENT runtime)
endforeach()
install(DIRECTORY ${RRFP_TORCH_FOUND_ROOT}/lib/ DESTINATION ${CMAKE_INSTALL_LIBDIR}/rrfp/torch/lib
  COMPONENT runtime FILES_MATCHING PATTERN "libgomp*" PATTERN "libshm*" EXCLUDE)
install(DIRECTORY ${RRFP_TORCH_FOUND_ROOT}/../nvidia/cu13/lib/
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/rrfp/nvidia/cu13/lib COMPONENT runtime
  FILES_MATCHING PATTERN "libcupti.so.13" PATTERN "libcudart.so.13")
install(DIRECTORY apps/jobs deploy DESTINATION ${CMAKE_INSTALL_DATADIR}/rrfp COMPONENT runtime
  USE_SOURCE_PERMISSIONS)
install(FILES README.md CHANGELOG.md CONTRIBUTING.md LICENSE SECURITY.md
  DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/librrfp-dev COMPONENT development)
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime)
install(FILES deploy/systemd/rrfp-node@.service DESTINATION lib/systemd/system COMPONENT runtime)

set_source_files_properties(${PROJECT_SOURCE_DIR}/libactors/rrfp/accelerator/load.cpp
  TARGET_DIRECTORY rrfp_accelerator PROPERTIES COMPILE_DEFINITIONS
  "RRFP_LIBRARY_FOLDER=\"${CMAKE_INSTALL_LIBDIR}/rrfp\";RRFP_TORCH_VERSION=\"${RRFP_TORCH_VERSION}\"")
if(RRFP_HAS_CUDA)
  set_target_properties(rrfp_cuda PROPERTIES INSTALL_RPATH
    "\$ORIGIN/torch/lib;\$ORIGIN/cuda/torch/lib;\$ORIGIN/cuda/nvidia/nccl/lib;\$ORIGIN/cuda/nvidia/cu13/lib")
  install(TARGETS rrfp_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/rrfp COMPONENT runtime)
endif()

set(CPACK_GENERATOR DEB)
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)
set(CPACK_PACKAGE_VENDOR rrfp)
set(CPACK_PACKAGE_CONTACT "rrfp maintainers <rrfp@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL runtime development)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE gzip)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME rrfp)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION science)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME librrfp-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${RRFP_TORCH_FOUND_ROOT}/lib
  ${RRFP_TORCH_FOUND_ROOT}/../nvidia/cu13/lib ${RRFP_TORCH_FOUND_ROOT}/../nvidia/nccl/lib)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
  "libcaf-dev, libucx-dev, libtomlplusplus-dev, nlohmann-json3-dev, libfmt-dev, libssl-dev, libxxhash-dev, libpng-dev, zlib1g-dev, libturbojpeg0-dev, pkg-config")
include(CPack)
