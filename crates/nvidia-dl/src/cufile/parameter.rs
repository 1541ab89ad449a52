//! Parameters: what the library would otherwise take from its file and the environment.
//!
//! Unsafe, because the calls answer through pointers.
#![allow(unsafe_code, reason = "foreign calls that answer through pointers")]

use std::ffi::{CString, c_char, c_int};

use super::error::{CufileError, Misuse};
use super::library::{Library, check, present};

macro_rules! parameters {
    ($($(#[$doc:meta])* $kind:ident { $($(#[$value_doc:meta])* $value:ident = $number:literal, $key:literal;)* })*) => { $(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $kind(pub u32);

        impl $kind {
            $($(#[$value_doc])* pub const $value: Self = Self($number);)*

            /// All that this crate knows, in the library's order. An older library knows fewer.
            pub const ALL: &[Self] = &[$(Self($number)),*];

            /// The key that stands for it in `cufile.json`, with the section in front; none for one
            /// that this crate does not know.
            #[must_use]
            pub const fn key(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some($key),)*
                    _ => None,
                }
            }
        }
    )* };
}

parameters! {
    /// A parameter that is a number.
    SizeParameter {
        /// The level of the [statistics](super::StatsLevel).
        PROFILE_STATS = 0, "profile.cufile_stats";
        /// Requests that may be under way.
        MAX_IO_QUEUE_DEPTH = 1, "execution.max_io_queue_depth";
        /// Threads that the library splits requests over.
        MAX_IO_THREADS = 2, "execution.max_io_threads";
        /// KiB from which on a request is split.
        MIN_IO_THRESHOLD_KB = 3, "execution.min_io_threshold_size_kb";
        /// Pieces of one request at once.
        MAX_REQUEST_PARALLELISM = 4, "execution.max_request_parallelism";
        /// KiB of the largest piece of a request.
        MAX_DIRECT_IO_SIZE_KB = 5, "properties.max_direct_io_size_kb";
        /// KiB of GPU memory for bounce buffers.
        MAX_DEVICE_CACHE_SIZE_KB = 6, "properties.max_device_cache_size_kb";
        /// KiB of each bounce buffer.
        PER_BUFFER_CACHE_SIZE_KB = 7, "properties.per_buffer_cache_size_kb";
        /// KiB of GPU memory that may be registered.
        MAX_DEVICE_PINNED_MEM_SIZE_KB = 8, "properties.max_device_pinned_mem_size_kb";
        /// Requests of a batch.
        IO_BATCHSIZE = 9, "properties.io_batchsize";
        /// KiB up to which completion is polled for.
        POLL_THRESHOLD_SIZE_KB = 10, "properties.poll_mode_max_size_kb";
        /// Milliseconds that a batch may take.
        BATCH_IO_TIMEOUT_MS = 11, "properties.max_batch_io_timeout_msecs";
    }
    /// A parameter that is on or off.
    BoolParameter {
        /// Completion is polled for.
        USE_POLL_MODE = 0, "properties.use_poll_mode";
        /// Reads and writes go through the host where GPUDirect Storage is not possible.
        ALLOW_COMPAT_MODE = 1, "properties.allow_compat_mode";
        /// They always do.
        FORCE_COMPAT_MODE = 2, "properties.force_compat_mode";
        /// Arguments are checked more.
        API_CHECK_AGGRESSIVE = 3, "miscellaneous.api_check_aggressive";
        /// A request may be split over threads.
        PARALLEL_IO = 4, "execution.parallel_io";
        /// Marks for NVIDIA's profilers; means nothing any more.
        NVTX = 5, "profile.nvtx";
        /// Host memory may be used too.
        ALLOW_SYSTEM_MEMORY = 6, "properties.allow_system_memory";
        /// The kernel's P2PDMA is used.
        USE_PCIP2PDMA = 7, "properties.use_pci_p2pdma";
        /// io_uring is used for what goes through the host.
        PREFER_IO_URING = 8, "properties.prefer_iouring";
        /// Files are always read past the page cache.
        FORCE_ODIRECT_MODE = 9, "properties.force_odirect_mode";
        /// The bus is not looked at.
        SKIP_TOPOLOGY_DETECTION = 10, "miscellaneous.skip_topology_detection";
        /// Memory operations of streams are not used.
        STREAM_MEMOPS_BYPASS = 11, "miscellaneous.stream_memops_bypass";
        /// Plain POSIX I/O (1.19 and later).
        POSIX_IO_MODE = 12, "properties.vanilla_posix_io_mode";
        /// What cannot go the direct way is read another way (1.19 and later).
        GDS_FALLBACK_IO = 13, "properties.gds_fallback_io";
    }
    /// A parameter that is a text.
    StringParameter {
        /// How much is logged: `ERROR`, `WARN`, `INFO`, `DEBUG`, `TRACE`.
        LOGGING_LEVEL = 0, "logging.level";
        /// The file of the log. By default one is made in the current folder.
        LOG_FILE_PATH = 1, "logging.path";
        /// The folder of the log.
        LOG_DIR = 2, "logging.dir";
        /// How RDMA is spoken (1.19 and later).
        RDMA_TRANSPORT = 3, "properties.rdma_transport";
    }
}

/// Room for a text of the library's.
const TEXT_BYTES_MAX: u16 = 4096;

/// Parameters: 1.14 and later. They win over environment and file, and are set only before the
/// library is open.
///
/// What is in force is told once it is open. Before that, most of what was not set is told as 0, off or
/// an error, whatever environment and file say; what was set is told as it was set, also where it is
/// out of its [range](Self::size_parameter_range), and gives way to the default in silence when the
/// library opens (measured with 1.15 and 1.20).
impl Library {
    /// `cuFileGetParameterSizeT`.
    ///
    /// # Errors
    ///
    /// [`CufileError::Unsupported`] before 1.14; what the library says.
    pub fn size_parameter(&self, parameter: SizeParameter) -> Result<usize, CufileError> {
        const CALL: &str = "cuFileGetParameterSizeT";
        let get = present(self.symbols.get_parameter_size, CALL)?;
        let mut value = 0_usize;
        // SAFETY: writes one size to a place that lives.
        let status = unsafe { get(parameter.0, &raw mut value) };
        check(CALL, status)?;
        Ok(value)
    }

    /// `cuFileGetParameterBool`.
    ///
    /// # Errors
    ///
    /// [`CufileError::Unsupported`] before 1.14; what the library says.
    pub fn bool_parameter(&self, parameter: BoolParameter) -> Result<bool, CufileError> {
        const CALL: &str = "cuFileGetParameterBool";
        let get = present(self.symbols.get_parameter_bool, CALL)?;
        let mut value = 0_u8;
        // SAFETY: writes one byte to a place that lives.
        let status = unsafe { get(parameter.0, &raw mut value) };
        check(CALL, status)?;
        Ok(value != 0)
    }

    /// `cuFileGetParameterString`, cut at 4095 bytes.
    ///
    /// # Errors
    ///
    /// [`CufileError::Unsupported`] before 1.14; what the library says.
    pub fn string_parameter(&self, parameter: StringParameter) -> Result<String, CufileError> {
        const CALL: &str = "cuFileGetParameterString";
        let get = present(self.symbols.get_parameter_string, CALL)?;
        let mut text = vec![0_u8; TEXT_BYTES_MAX.into()];
        // The last byte stays 0, whatever the library takes its length for.
        let room = c_int::from(TEXT_BYTES_MAX - 1);
        // SAFETY: writes at most `room` bytes, and there is one more.
        let status = unsafe { get(parameter.0, text.as_mut_ptr().cast::<c_char>(), room) };
        check(CALL, status)?;
        let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    /// `cuFileSetParameterSizeT`.
    ///
    /// # Errors
    ///
    /// [`DRIVER_ALREADY_OPEN`](super::Code::DRIVER_ALREADY_OPEN) once the library is open;
    /// [`CufileError::Unsupported`] before 1.14; what the library says.
    pub fn set_size_parameter(
        &self,
        parameter: SizeParameter,
        value: usize,
    ) -> Result<(), CufileError> {
        const CALL: &str = "cuFileSetParameterSizeT";
        let set = present(self.symbols.set_parameter_size, CALL)?;
        // SAFETY: takes numbers only.
        let status = unsafe { set(parameter.0, value) };
        check(CALL, status)
    }

    /// `cuFileSetParameterBool`.
    ///
    /// # Errors
    ///
    /// As for [`set_size_parameter`](Self::set_size_parameter).
    pub fn set_bool_parameter(
        &self,
        parameter: BoolParameter,
        value: bool,
    ) -> Result<(), CufileError> {
        const CALL: &str = "cuFileSetParameterBool";
        let set = present(self.symbols.set_parameter_bool, CALL)?;
        // SAFETY: takes numbers only.
        let status = unsafe { set(parameter.0, value) };
        check(CALL, status)
    }

    /// `cuFileSetParameterString`.
    ///
    /// # Errors
    ///
    /// As for [`set_size_parameter`](Self::set_size_parameter); [`Misuse::ZeroByte`].
    pub fn set_string_parameter(
        &self,
        parameter: StringParameter,
        value: &str,
    ) -> Result<(), CufileError> {
        const CALL: &str = "cuFileSetParameterString";
        let set = present(self.symbols.set_parameter_string, CALL)?;
        let value =
            CString::new(value).map_err(|_| CufileError::refused(CALL, Misuse::ZeroByte))?;
        // SAFETY: the text ends in 0 and lives while the call runs; the library copies it.
        let status = unsafe { set(parameter.0, value.as_ptr()) };
        check(CALL, status)
    }

    /// `cuFileGetParameterMinMaxValue`: the least and the greatest value that is taken.
    ///
    /// 1.15 readies the library for that: it looks for libcuda, and prints where there is none. So it
    /// wants what [`driver_open`](Self::driver_open) wants.
    ///
    /// # Errors
    ///
    /// [`CufileError::Unsupported`] before 1.15; what the library says.
    pub fn size_parameter_range(
        &self,
        parameter: SizeParameter,
    ) -> Result<(usize, usize), CufileError> {
        const CALL: &str = "cuFileGetParameterMinMaxValue";
        let get = present(self.symbols.get_parameter_min_max, CALL)?;
        let (mut min, mut max) = (0_usize, 0_usize);
        // SAFETY: writes two sizes to places that live.
        let status = unsafe { get(parameter.0, &raw mut min, &raw mut max) };
        check(CALL, status)?;
        Ok((min, max))
    }

    /// `cuFileGetParameterPosixPoolSlabArray`: sizes in KiB and counts of the first `slabs` pools of
    /// host memory that compatibility mode stages through.
    ///
    /// # Errors
    ///
    /// [`CufileError::Unsupported`] before 1.15; what the library says; [`Misuse::Count`].
    pub fn posix_pool(&self, slabs: usize) -> Result<(Vec<usize>, Vec<usize>), CufileError> {
        const CALL: &str = "cuFileGetParameterPosixPoolSlabArray";
        get_slabs(CALL, present(self.symbols.get_posix_pool, CALL)?, slabs)
    }

    /// `cuFileSetParameterPosixPoolSlabArray`.
    ///
    /// # Errors
    ///
    /// As for [`set_size_parameter`](Self::set_size_parameter), from 1.15 on; [`Misuse::Lengths`].
    pub fn set_posix_pool(&self, sizes_kb: &[usize], counts: &[usize]) -> Result<(), CufileError> {
        const CALL: &str = "cuFileSetParameterPosixPoolSlabArray";
        set_slabs(
            CALL,
            present(self.symbols.set_posix_pool, CALL)?,
            (sizes_kb, counts),
        )
    }

    /// `cuFileGetParameterGpuBounceBufferSlabArray`: the same of GPU memory.
    ///
    /// # Errors
    ///
    /// [`CufileError::Unsupported`] before 1.17; what the library says; [`Misuse::Count`].
    pub fn bounce_buffers(&self, slabs: usize) -> Result<(Vec<usize>, Vec<usize>), CufileError> {
        const CALL: &str = "cuFileGetParameterGpuBounceBufferSlabArray";
        get_slabs(CALL, present(self.symbols.get_bounce_buffers, CALL)?, slabs)
    }

    /// `cuFileSetParameterGpuBounceBufferSlabArray`.
    ///
    /// # Errors
    ///
    /// As for [`set_size_parameter`](Self::set_size_parameter), from 1.17 on; [`Misuse::Lengths`].
    pub fn set_bounce_buffers(
        &self,
        sizes_kb: &[usize],
        counts: &[usize],
    ) -> Result<(), CufileError> {
        const CALL: &str = "cuFileSetParameterGpuBounceBufferSlabArray";
        set_slabs(
            CALL,
            present(self.symbols.set_bounce_buffers, CALL)?,
            (sizes_kb, counts),
        )
    }

    /// `cuFileExportPCIeTopology`: writes what the library found on the bus into a file, as JSON.
    ///
    /// # Errors
    ///
    /// [`CufileError::Unsupported`] before 1.17; what the library says; [`Misuse::ZeroByte`].
    pub fn export_pcie_topology(&self, file: &str) -> Result<(), CufileError> {
        const CALL: &str = "cuFileExportPCIeTopology";
        let export = present(self.symbols.export_pcie_topology, CALL)?;
        let file = CString::new(file).map_err(|_| CufileError::refused(CALL, Misuse::ZeroByte))?;
        // SAFETY: the text ends in 0 and lives while the call runs.
        let status = unsafe { export(file.as_ptr()) };
        check(CALL, status)
    }
}

type GetSlabs = unsafe extern "C" fn(*mut usize, *mut usize, c_int) -> super::Status;
type SetSlabs = unsafe extern "C" fn(*const usize, *const usize, c_int) -> super::Status;

fn get_slabs(
    call: &'static str,
    get: GetSlabs,
    slabs: usize,
) -> Result<(Vec<usize>, Vec<usize>), CufileError> {
    let len = c_int::try_from(slabs).map_err(|_| CufileError::refused(call, Misuse::Count))?;
    let (mut sizes, mut counts) = (vec![0; slabs], vec![0; slabs]);
    // SAFETY: writes at most `len` numbers to each list, which have as many.
    let status = unsafe { get(sizes.as_mut_ptr(), counts.as_mut_ptr(), len) };
    check(call, status)?;
    Ok((sizes, counts))
}

fn set_slabs(
    call: &'static str,
    set: SetSlabs,
    (sizes, counts): (&[usize], &[usize]),
) -> Result<(), CufileError> {
    let refused = |misuse| CufileError::refused(call, misuse);
    if sizes.len() != counts.len() {
        return Err(refused(Misuse::Lengths));
    }
    let len = c_int::try_from(sizes.len()).map_err(|_| refused(Misuse::Count))?;
    // SAFETY: reads `len` numbers of each list, which have as many.
    let status = unsafe { set(sizes.as_ptr(), counts.as_ptr(), len) };
    check(call, status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_have_the_numbers_of_the_header() {
        assert_eq!(SizeParameter::PROFILE_STATS, SizeParameter(0));
        assert_eq!(SizeParameter::BATCH_IO_TIMEOUT_MS, SizeParameter(11));
        assert_eq!(BoolParameter::ALLOW_COMPAT_MODE, BoolParameter(1));
        assert_eq!(BoolParameter::FORCE_COMPAT_MODE, BoolParameter(2));
        assert_eq!(BoolParameter::FORCE_ODIRECT_MODE, BoolParameter(9));
        assert_eq!(BoolParameter::GDS_FALLBACK_IO, BoolParameter(13));
        assert_eq!(StringParameter::LOG_FILE_PATH, StringParameter(1));
        assert_eq!(StringParameter::RDMA_TRANSPORT, StringParameter(3));
    }

    /// The library counts up from 0, so a gap would be a parameter with another's number.
    #[test]
    fn parameters_are_numbered_without_a_gap_and_have_keys() {
        let keys = |numbers: Vec<u32>, key: &dyn Fn(u32) -> Option<&'static str>| {
            for (place, number) in numbers.iter().enumerate() {
                assert_eq!(u32::try_from(place), Ok(*number));
                assert!(key(*number).is_some_and(|key| key.contains('.')));
            }
            let beyond = u32::try_from(numbers.len()).unwrap();
            assert_eq!(key(beyond), None);
        };
        let numbers = SizeParameter::ALL.iter().map(|one| one.0).collect();
        keys(numbers, &|number| SizeParameter(number).key());
        let numbers = BoolParameter::ALL.iter().map(|one| one.0).collect();
        keys(numbers, &|number| BoolParameter(number).key());
        let numbers = StringParameter::ALL.iter().map(|one| one.0).collect();
        keys(numbers, &|number| StringParameter(number).key());
    }
}
