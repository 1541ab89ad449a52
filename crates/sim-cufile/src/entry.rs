//! The entry points, as the fault scripts and the counts name them.

use sim_common::entries;

entries! {
    cuFileDriverOpen, cuFileDriverClose_v2, cuFileUseCount, cuFileGetVersion,
    cuFileDriverGetProperties, cuFileDriverSetPollMode, cuFileDriverSetMaxDirectIOSize,
    cuFileDriverSetMaxCacheSize, cuFileDriverSetMaxPinnedMemSize,
    cuFileHandleRegister, cuFileHandleDeregister, cuFileBufRegister, cuFileBufDeregister,
    cuFileRead, cuFileWrite, cuFileReadv, cuFileWritev,
    cuFileReadAsync, cuFileWriteAsync, cuFileStreamRegister, cuFileStreamDeregister,
    cuFileBatchIOSetUp, cuFileBatchIOSubmit, cuFileBatchIOGetStatus, cuFileBatchIOCancel,
    cuFileBatchIODestroy,
    cuFileGetParameterSizeT, cuFileGetParameterBool, cuFileGetParameterString,
    cuFileSetParameterSizeT, cuFileSetParameterBool, cuFileSetParameterString,
    cuFileGetParameterMinMaxValue,
    cuFileGetParameterPosixPoolSlabArray, cuFileSetParameterPosixPoolSlabArray,
    cuFileGetParameterGpuBounceBufferSlabArray, cuFileSetParameterGpuBounceBufferSlabArray,
    cuFileSetStatsLevel, cuFileGetStatsLevel, cuFileStatsStart, cuFileStatsStop, cuFileStatsReset,
    cuFileGetStatsL1, cuFileGetStatsL2, cuFileGetStatsL3, cuFileGetBARSizeInKB,
    cuFileDriverGetP2PFlags, cuFileDriverSetP2PFlags, cuFileExportPCIeTopology,
}
