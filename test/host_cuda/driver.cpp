/// A fake of the CUDA driver functions that libtorch's libcaffe2_nvrtc.so is linked to; this
/// library is named libcuda.so.1. Only the functions that report contexts are ever called.
#include "streams.hpp"

#define RRFP_NOT_CALLED(name) \
  extern "C" int name() { rrfp::host_cuda::fault(#name " is not implemented"); }

extern "C" std::uint32_t rrfp_host_cuda_contexts();

extern "C" int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  *flags = 0;
  *active = static_cast<int>(rrfp_host_cuda_contexts() >> static_cast<unsigned>(device) & 1U);
  return 0;
}

RRFP_NOT_CALLED(cuCtxGetCurrent)
RRFP_NOT_CALLED(cuCtxSetCurrent)
RRFP_NOT_CALLED(cuDeviceGet)
RRFP_NOT_CALLED(cuDeviceGetAttribute)
RRFP_NOT_CALLED(cuDevicePrimaryCtxRetain)
RRFP_NOT_CALLED(cuFuncGetAttribute)
RRFP_NOT_CALLED(cuFuncSetAttribute)
RRFP_NOT_CALLED(cuFuncSetCacheConfig)
RRFP_NOT_CALLED(cuGetErrorString)
RRFP_NOT_CALLED(cuLaunchCooperativeKernel)
RRFP_NOT_CALLED(cuLaunchKernel)
RRFP_NOT_CALLED(cuLinkAddData_v2)
RRFP_NOT_CALLED(cuLinkComplete)
RRFP_NOT_CALLED(cuLinkCreate_v2)
RRFP_NOT_CALLED(cuModuleGetFunction)
RRFP_NOT_CALLED(cuModuleLoad)
RRFP_NOT_CALLED(cuModuleLoadData)
RRFP_NOT_CALLED(cuModuleLoadDataEx)
RRFP_NOT_CALLED(cuModuleUnload)
RRFP_NOT_CALLED(cuOccupancyMaxActiveBlocksPerMultiprocessor)
RRFP_NOT_CALLED(cuPointerGetAttribute)
RRFP_NOT_CALLED(cuTensorMapEncodeTiled)
