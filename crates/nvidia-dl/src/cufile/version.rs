//! Versions of libcufile, and what came with which.

use std::fmt;

/// A version of libcufile, as it tells it: 1000 × major + 10 × minor. 1.15 is 1150.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version(pub i32);

impl Version {
    /// 1 in 1.15.
    #[must_use]
    pub const fn major(self) -> i32 {
        self.0 / 1000
    }

    /// 15 in 1.15.
    #[must_use]
    pub const fn minor(self) -> i32 {
        self.0 % 1000 / 10
    }

    /// The version from which on a function is there; none for one that is in every version that
    /// this crate knows, or that it does not know.
    #[must_use]
    pub fn since(symbol: &str) -> Option<Self> {
        let brought = |row: &&(Self, &[&str])| row.1.contains(&symbol);
        NEW_SYMBOLS.iter().find(brought).map(|row| row.0)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major(), self.minor())
    }
}

/// From the differences of the export tables of 1.11 to 1.20; the rows before 1.14 from other
/// projects' notes.
const NEW_SYMBOLS: &[(Version, &[&str])] = &[
    (
        Version(1060),
        &[
            "cuFileBatchIOSetUp",
            "cuFileBatchIOSubmit",
            "cuFileBatchIOGetStatus",
            "cuFileBatchIOCancel",
            "cuFileBatchIODestroy",
        ],
    ),
    (
        Version(1070),
        &[
            "cuFileReadAsync",
            "cuFileWriteAsync",
            "cuFileStreamRegister",
            "cuFileStreamDeregister",
        ],
    ),
    (Version(1080), &["cuFileGetVersion"]),
    (
        Version(1140),
        &[
            "cuFileGetParameterSizeT",
            "cuFileGetParameterBool",
            "cuFileGetParameterString",
            "cuFileSetParameterSizeT",
            "cuFileSetParameterBool",
            "cuFileSetParameterString",
        ],
    ),
    (
        Version(1150),
        &[
            "cuFileSetStatsLevel",
            "cuFileGetStatsLevel",
            "cuFileStatsStart",
            "cuFileStatsStop",
            "cuFileStatsReset",
            "cuFileGetStatsL1",
            "cuFileGetStatsL2",
            "cuFileGetStatsL3",
            "cuFileGetBARSizeInKB",
            "cuFileGetParameterMinMaxValue",
            "cuFileGetParameterPosixPoolSlabArray",
            "cuFileSetParameterPosixPoolSlabArray",
        ],
    ),
    (
        Version(1160),
        &["cuFileDriverGetP2PFlags", "cuFileDriverSetP2PFlags"],
    ),
    (
        Version(1170),
        &[
            "cuFileExportPCIeTopology",
            "cuFileGetParameterGpuBounceBufferSlabArray",
            "cuFileSetParameterGpuBounceBufferSlabArray",
        ],
    ),
    (Version(1190), &["cuFileReadv", "cuFileWritev"]),
];
