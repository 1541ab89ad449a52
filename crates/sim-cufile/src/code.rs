//! Results of calls, with the numbers of libcufile's interface.

/// What most calls return: the library's code and, beside one of them, CUDA's.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status {
    err: i32,
    cu_err: i32,
}

/// Why something was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fail {
    /// A code of the library.
    Code(i32),
    /// A code of CUDA.
    Cuda(i32),
    /// A number of the operating system.
    Errno(i32),
}

pub(crate) type Result<T = (), E = Fail> = std::result::Result<T, E>;

pub(crate) const DRIVER_NOT_INITIALIZED: i32 = 5001;
pub(crate) const CUDA_DRIVER_ERROR: i32 = 5011;
pub(crate) const CUDA_POINTER_INVALID: i32 = 5012;
pub(crate) const INVALID_MAPPING_SIZE: i32 = 5016;
pub(crate) const INVALID_FILE_TYPE: i32 = 5018;
pub(crate) const INVALID_FILE_OPEN_FLAG: i32 = 5019;
pub(crate) const INVALID_VALUE: i32 = 5022;
pub(crate) const MEMORY_ALREADY_REGISTERED: i32 = 5023;
pub(crate) const MEMORY_NOT_REGISTERED: i32 = 5024;
pub(crate) const DRIVER_ALREADY_OPEN: i32 = 5026;
pub(crate) const HANDLE_NOT_REGISTERED: i32 = 5027;
pub(crate) const HANDLE_ALREADY_REGISTERED: i32 = 5028;
pub(crate) const INTERNAL_ERROR: i32 = 5030;
pub(crate) const GETNEWFD_FAILED: i32 = 5031;
pub(crate) const NVFS_SETUP_ERROR: i32 = 5033;
pub(crate) const GPU_MEMORY_PINNING_FAILED: i32 = 5036;
pub(crate) const BATCH_FULL: i32 = 5037;

impl Status {
    pub(crate) fn of(result: Result) -> Self {
        let (err, cu_err) = match result {
            // Seen beside success in the field: it must be ignored.
            Ok(()) => (0, 201),
            Err(Fail::Cuda(code)) => (CUDA_DRIVER_ERROR, code),
            Err(Fail::Code(code) | Fail::Errno(code)) => (code, 0),
        };
        Self { err, cu_err }
    }
}

impl Fail {
    pub(crate) fn number(self) -> i32 {
        match self {
            Self::Code(code) | Self::Errno(code) => code,
            Self::Cuda(_) => CUDA_DRIVER_ERROR,
        }
    }

    /// As it is told where only a count has room.
    pub(crate) fn negated(self) -> isize {
        -isize::try_from(self.number()).unwrap_or(1)
    }
}
