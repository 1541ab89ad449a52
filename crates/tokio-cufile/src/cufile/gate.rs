//! What is looked at before libcufile is called: there are versions that never return from their
//! first call, that abort the process, or that crash without descriptors 0 to 2.

use std::fs;
use std::path::Path;

use nvidia_dl::cufile::Version;

use super::{Absent, descriptors};

/// From this version on the library reads the list of kernel modules, and without one it loops for
/// ever where it finds no GPU (measured).
const READS_MODULES: Version = Version(1160);

/// Whether anything speaks for GPUDirect Storage, without a call to the library.
///
/// # Errors
///
/// What does not.
pub(super) fn expects_direct(
    proc_dir: &Path,
    asks_for_p2pdma: impl FnOnce() -> bool,
) -> Result<(), Absent> {
    let module = proc_dir.join("driver/nvidia-fs");
    if module.exists() || asks_for_p2pdma() {
        return Ok(());
    }
    let shown = module.display();
    Err(format!(
        "GPUDirect Storage is not to be expected: there is no nvidia-fs ({shown}), P2PDMA is not asked \
         for, and to cuFile's own compatibility mode the compat backend is preferred"
    )
    .into())
}

/// Whether the library may be opened.
///
/// # Errors
///
/// Why it may not.
pub(super) fn check(version: Option<Version>, proc_dir: &Path) -> Result<(), Absent> {
    kernel_is_known(&rustix::system::uname().release().to_string_lossy())?;
    let modules = proc_dir.join("modules");
    let reads_modules = version.is_some_and(|version| version >= READS_MODULES);
    if let (true, Err(error)) = (reads_modules, fs::File::open(&modules)) {
        let shown = modules.display();
        return Err(format!(
            "without {shown} this libcufile may never return from its first call: {error}"
        )
        .into());
    }
    descriptors::are_open()
}

/// The library asserts what udev says of a disk, which in WSL it does not
/// (<https://github.com/rapidsai/kvikio/issues/11>).
fn kernel_is_known(release: &str) -> Result<(), Absent> {
    let release = release.to_ascii_lowercase();
    if release.contains("microsoft") || release.contains("wsl") {
        return Err("in WSL libcufile may abort the process".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_nvidia_fs_the_library_is_not_even_loaded() {
        let proc_dir = tempfile::tempdir().unwrap();
        let reason = expects_direct(proc_dir.path(), || false).unwrap_err();
        assert!(reason.contains("no nvidia-fs"), "{reason}");
        fs::create_dir_all(proc_dir.path().join("driver/nvidia-fs")).unwrap();
        assert_eq!(expects_direct(proc_dir.path(), || false), Ok(()));
    }

    #[test]
    fn a_version_that_reads_the_modules_is_not_opened_where_there_are_none() {
        let proc_dir = tempfile::tempdir().unwrap();
        let refused = |version| check(version, proc_dir.path()).err();
        assert_eq!((refused(None), refused(Some(Version(1150)))), (None, None));
        let reason = refused(Some(Version(1160))).unwrap();
        assert!(reason.contains("modules"), "{reason}");
        fs::write(proc_dir.path().join("modules"), "").unwrap();
        assert_eq!(refused(Some(Version(1200))), None);
    }

    #[test]
    fn in_wsl_the_library_is_not_opened() {
        for release in [
            "5.15.167.4-microsoft-standard-WSL2",
            "4.4.0-19041-Microsoft",
        ] {
            let reason = kernel_is_known(release).unwrap_err();
            assert!(reason.contains("WSL"), "{reason}");
        }
        assert_eq!(kernel_is_known("6.8.0-1015-nvidia"), Ok(()));
    }
}
