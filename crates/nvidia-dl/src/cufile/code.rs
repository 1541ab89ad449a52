//! The library's codes: integers with names.

use std::fmt;

/// A code of libcufile, `CUfileOpError`.
///
/// An integer, so that a code of a later version is still a value: it is kept, compared and
/// printed. At least one code ([5039](Self::INTERNAL_BATCH_SETUP_ERROR)) has meant something
/// else in earlier versions.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Code(pub i32);

impl Code {
    /// Errors are numbered from here.
    pub const BASE: i32 = 5000;

    /// The library's name of the code, or none for one that is not in the table of this crate.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        self.entry().map(|entry| entry.name)
    }

    /// What the code means, in a few words.
    #[must_use]
    pub fn meaning(self) -> Option<&'static str> {
        self.entry().map(|entry| entry.meaning)
    }

    /// Whether the code is [`SUCCESS`](Self::SUCCESS).
    #[must_use]
    pub fn is_success(self) -> bool {
        self == Self::SUCCESS
    }

    fn entry(self) -> Option<&'static Entry> {
        let place = CODES.binary_search_by_key(&self.0, |entry| entry.code);
        place.ok().and_then(|index| CODES.get(index))
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.entry() {
            Some(entry) => write!(f, "{} ({}): {}", entry.name, self.0, entry.meaning),
            None => write!(f, "unknown cuFile code {}", self.0),
        }
    }
}

struct Entry {
    code: i32,
    name: &'static str,
    meaning: &'static str,
}

macro_rules! codes {
    ($($short:ident = $code:literal, $meaning:literal;)*) => {
        impl Code {
            $(
                #[doc = concat!($meaning, ".")]
                pub const $short: Self = Self($code);
            )*
        }

        /// In the order of the codes.
        const CODES: &[Entry] = &[$(Entry {
            code: $code,
            name: concat!("CU_FILE_", stringify!($short)),
            meaning: $meaning,
        }),*];
    };
}

codes! {
    SUCCESS = 0, "the call did what it says";
    DRIVER_NOT_INITIALIZED = 5001, "the library is not open, or nvidia-fs is absent and compatibility mode is not allowed";
    DRIVER_INVALID_PROPS = 5002, "a property is not valid";
    DRIVER_UNSUPPORTED_LIMIT = 5003, "a property's value is out of range";
    DRIVER_VERSION_MISMATCH = 5004, "nvidia-fs and the library are of different versions";
    DRIVER_VERSION_READ_ERROR = 5005, "the version of nvidia-fs could not be read";
    DRIVER_CLOSING = 5006, "the library is closing";
    PLATFORM_NOT_SUPPORTED = 5007, "GPUDirect Storage does not support this platform";
    IO_NOT_SUPPORTED = 5008, "GPUDirect Storage does not support this file";
    DEVICE_NOT_SUPPORTED = 5009, "GPUDirect Storage does not support this GPU";
    NVFS_DRIVER_ERROR = 5010, "a request to nvidia-fs failed";
    CUDA_DRIVER_ERROR = 5011, "a call of the CUDA driver failed";
    CUDA_POINTER_INVALID = 5012, "the device pointer is not valid";
    CUDA_MEMORY_TYPE_INVALID = 5013, "memory of this type is not supported";
    CUDA_POINTER_RANGE_ERROR = 5014, "the range reaches beyond its allocation";
    CUDA_CONTEXT_MISMATCH = 5015, "the current context is not the memory's";
    INVALID_MAPPING_SIZE = 5016, "the memory is larger than may be pinned";
    INVALID_MAPPING_RANGE = 5017, "the range reaches beyond what is mapped";
    INVALID_FILE_TYPE = 5018, "this type of file is not supported";
    INVALID_FILE_OPEN_FLAG = 5019, "the file was opened in a way that does not allow this";
    DIO_NOT_SET = 5020, "the file was not opened with O_DIRECT";
    INVALID_VALUE = 5022, "an argument is not valid";
    MEMORY_ALREADY_REGISTERED = 5023, "the memory is registered already";
    MEMORY_NOT_REGISTERED = 5024, "the memory is not registered";
    PERMISSION_DENIED = 5025, "not permitted";
    DRIVER_ALREADY_OPEN = 5026, "the library is open already, so that this comes too late";
    HANDLE_NOT_REGISTERED = 5027, "the file is not registered, or its file system was not recognised: without a udev database (/run/udev, usual in containers) none is";
    HANDLE_ALREADY_REGISTERED = 5028, "the descriptor is registered already";
    DEVICE_NOT_FOUND = 5029, "there is no such GPU";
    INTERNAL_ERROR = 5030, "an error inside of the library, such as a file system that it cannot place";
    GETNEWFD_FAILED = 5031, "no other descriptor could be had";
    NVFS_SETUP_ERROR = 5033, "nvidia-fs could not be set up, or there is no libcuda";
    IO_DISABLED = 5034, "the configuration forbids GPUDirect Storage for this file";
    BATCH_SUBMIT_FAILED = 5035, "the batch could not be submitted";
    GPU_MEMORY_PINNING_FAILED = 5036, "the GPU's memory could not be pinned: its window to the bus may be used up";
    BATCH_FULL = 5037, "the batch is full";
    ASYNC_NOT_SUPPORTED = 5038, "operations in streams are not supported";
    INTERNAL_BATCH_SETUP_ERROR = 5039, "the batch could not be set up (before CUDA 13: no code at all)";
    INTERNAL_BATCH_SUBMIT_ERROR = 5040, "an error inside of the library when a batch was submitted";
    INTERNAL_BATCH_GETSTATUS_ERROR = 5041, "an error inside of the library when a batch was asked for";
    INTERNAL_BATCH_CANCEL_ERROR = 5042, "an error inside of the library when a batch was cancelled";
    NOMEM_ERROR = 5043, "out of memory";
    IO_ERROR = 5044, "reading or writing failed";
    INTERNAL_BUF_REGISTER_ERROR = 5045, "the memory could not be registered";
    HASH_OPR_ERROR = 5046, "an error of a table inside of the library";
    INVALID_CONTEXT_ERROR = 5047, "the CUDA context is not valid";
    NVFS_INTERNAL_DRIVER_ERROR = 5048, "an error inside of nvidia-fs";
    BATCH_NOCOMPAT_ERROR = 5049, "batches need compatibility mode, which is not allowed";
}
