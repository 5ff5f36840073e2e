# Finds what librrfp_cuda.so needs: the CUDA parts of the torch wheel and its sister wheels. The build
# needs no nvcc, no driver and no device. Programs do not link the library; they load it for jobs with
# device.kind = "cuda".
#
#   RRFP_CUDA            option; OFF: do not build it
#   RRFP_HAS_CUDA        whether it is built
#   RRFP_C10_CUDA        libtorch's CUDA streams and allocator
#   rrfp::cuda_libraries libtorch with CUDA, the CUDA runtime and NCCL, with their headers
option(RRFP_CUDA "Build librrfp_cuda.so if the wheels' CUDA headers are there" ON)
set(RRFP_HAS_CUDA OFF)
if(NOT RRFP_CUDA)
  message(STATUS "CUDA: off")
  return()
endif()
get_filename_component(_wheels ${_torch_root}/.. ABSOLUTE)
file(GLOB _cuda_root ${_wheels}/nvidia/cu1[0-9])
set(_nccl_root ${_wheels}/nvidia/nccl)
file(GLOB _cudart ${_cuda_root}/lib/libcudart.so.*)
file(GLOB _nccl ${_nccl_root}/lib/libnccl.so.*)
foreach(_needed ${_cuda_root}/include/cuda_runtime_api.h ${_cuda_root}/include/crt/host_defines.h
    ${_cuda_root}/include/nv/target
    ${_nccl_root}/include/nccl.h ${_torch_root}/lib/libtorch_cuda.so "${_cudart}" "${_nccl}")
  if(NOT EXISTS "${_needed}")
    message(STATUS "CUDA: off (no '${_needed}')")
    return()
  endif()
endforeach()
message(STATUS "CUDA: ${_cuda_root}")
set(RRFP_HAS_CUDA ON)
set(RRFP_C10_CUDA ${_torch_root}/lib/libc10_cuda.so)
add_library(rrfp_cuda_libraries INTERFACE)
add_library(rrfp::cuda_libraries ALIAS rrfp_cuda_libraries)
target_include_directories(rrfp_cuda_libraries SYSTEM INTERFACE
  ${_cuda_root}/include ${_nccl_root}/include)
target_link_libraries(rrfp_cuda_libraries INTERFACE rrfp::torch
  ${_torch_root}/lib/libtorch_cuda.so ${RRFP_C10_CUDA} ${_cudart} ${_nccl})
