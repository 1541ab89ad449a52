//! The entry points, as the fault scripts and the counts name them.

use sim_common::entries;

entries! {
    cuGetErrorName, cuGetErrorString,
    cuInit, cuDriverGetVersion, cuDeviceGetCount, cuDeviceGet, cuDeviceGetName,
    cuDeviceTotalMem_v2, cuDeviceGetAttribute, cuDeviceGetPCIBusId,
    cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxGetState,
    cuCtxGetCurrent, cuCtxSetCurrent, cuCtxGetDevice, cuCtxSynchronize,
    cuStreamCreate, cuStreamSynchronize, cuStreamQuery, cuStreamWaitEvent, cuStreamGetCtx,
    cuStreamDestroy_v2,
    cuEventCreate, cuEventRecord, cuEventQuery, cuEventSynchronize, cuEventDestroy_v2,
    cuMemAlloc_v2, cuMemFree_v2, cuMemAllocAsync, cuMemFreeAsync, cuMemGetInfo_v2,
    cuMemAllocManaged,
    cuPointerGetAttributes, cuMemGetAddressRange_v2, cuMemRetainAllocationHandle, cuMemRelease,
    cuMemsetD8_v2, cuMemsetD8Async,
    cuMemcpyHtoD_v2, cuMemcpyDtoH_v2,
    cuMemcpyHtoDAsync_v2, cuMemcpyDtoHAsync_v2, cuMemcpyDtoDAsync_v2,
    cuMemHostAlloc, cuMemFreeHost, cuMemHostRegister_v2, cuMemHostUnregister,
    cuMemHostGetDevicePointer_v2,
}
