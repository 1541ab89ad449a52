//! The entry points, as the fault scripts and the counts name them.

macro_rules! entries {
    ($($name:ident),* $(,)?) => {
        /// One function of the C interface.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(non_camel_case_types, reason = "the names are those of the C interface")]
        pub(crate) enum Entry { $($name),* }

        impl Entry {
            pub(crate) const ALL: &[Self] = &[$(Self::$name),*];

            pub(crate) fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),* }
            }
        }
    };
}

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
    cuPointerGetAttributes, cuMemGetAddressRange_v2, cuMemRetainAllocationHandle, cuMemRelease,
    cuMemsetD8_v2, cuMemsetD8Async,
    cuMemcpyHtoD_v2, cuMemcpyDtoH_v2,
    cuMemcpyHtoDAsync_v2, cuMemcpyDtoHAsync_v2, cuMemcpyDtoDAsync_v2,
    cuMemHostAlloc, cuMemFreeHost, cuMemHostRegister_v2, cuMemHostUnregister,
    cuMemHostGetDevicePointer_v2,
}

impl Entry {
    /// Its place in tables of counts.
    pub(crate) fn index(self) -> usize {
        // An enum without values of its own counts up from 0.
        self as usize
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|entry| entry.name() == name)
    }
}
