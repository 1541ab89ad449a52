//! File systems made for one test, and gone with it.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::need;

/// A mounted file system. Dropping it unmounts.
#[derive(Debug)]
pub struct Mount {
    at: PathBuf,
    /// Holds the mount point, and for some the image behind it.
    _home: TempDir,
}

impl Mount {
    /// tmpfs of `size` bytes; `None`, with a note, where nothing can be mounted.
    #[must_use]
    #[track_caller]
    pub fn tmpfs(size: u64) -> Option<Self> {
        let options = format!("size={size}");
        need::mount().then(|| Self::simple(&["-t", "tmpfs", "-o", &options, "none"]))
    }

    /// ramfs, which takes no direct I/O.
    #[must_use]
    #[track_caller]
    pub fn ramfs() -> Option<Self> {
        need::mount().then(|| Self::simple(&["-t", "ramfs", "none"]))
    }

    /// overlayfs, on a disk.
    ///
    /// # Panics
    ///
    /// When it cannot be mounted.
    #[must_use]
    #[track_caller]
    pub fn overlay() -> Option<Self> {
        if !need::mount() {
            return None;
        }
        // An overlay cannot be the upper layer of another one: where the build folder is one,
        // tmpfs is below.
        let mounted = [crate::bench::disk(), PathBuf::from("/dev/shm")]
            .iter()
            .find_map(|parent| {
                let home = tempfile::tempdir_in(parent).ok()?;
                let layer = |name: &str| {
                    let path = home.path().join(name);
                    std::fs::create_dir(&path).expect("our own directory");
                    path.display().to_string()
                };
                let (lower, upper, work) = (layer("lower"), layer("upper"), layer("work"));
                let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
                Self::try_mount(home, &["-t", "overlay", "-o", &options, "none"]).ok()
            });
        Some(mounted.expect("overlayfs can be mounted"))
    }

    /// `kind` (`ext4`, `xfs`) on a loop device of `size` bytes with sectors of `sector` bytes.
    ///
    /// # Panics
    ///
    /// When one of the tools fails.
    #[must_use]
    #[track_caller]
    pub fn on_loop(kind: &str, size: u64, sector: u32) -> Option<Self> {
        let tools = need::mount() && need::loop_device() && need::tool("losetup");
        if !(tools && need::tool(&format!("mkfs.{kind}"))) {
            return None;
        }
        let home = tempfile::tempdir().expect("a directory");
        let image = home.path().join("image");
        let file = File::create(&image).expect("our own file");
        file.set_len(size).expect("a sparse file");
        let sector = format!("--sector-size={sector}");
        let device = LoopDevice::new(&[&sector], &image);
        Some(Self::on_device(kind, &device, home))
    }

    /// `kind` on a loop device over `image`, which it reads and writes directly; and the device's
    /// name. Whoever calls has made sure that the tools are there.
    ///
    /// # Panics
    ///
    /// When one of the tools fails.
    #[must_use]
    pub fn on_image(kind: &str, image: &Path) -> (Self, String) {
        let home = tempfile::tempdir().expect("a directory");
        let device = LoopDevice::new(&["--direct-io=on"], image);
        let name = device.0.trim_start_matches("/dev/").to_owned();
        (Self::on_device(kind, &device, home), name)
    }

    fn on_device(kind: &str, device: &LoopDevice, home: TempDir) -> Self {
        // Each says "quiet" and "even if something is there" its own way.
        output(
            &format!("mkfs.{kind}"),
            ["-q", if kind == "xfs" { "-f" } else { "-F" }, &device.0],
        )
        .expect("a new file system");
        // When `device` goes, the kernel keeps it until the file system is unmounted.
        Self::try_mount(home, &["-t", kind, &device.0]).expect("it can be mounted")
    }

    fn simple(arguments: &[&str]) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        Self::try_mount(home, arguments).expect("it can be mounted")
    }

    fn try_mount(home: TempDir, arguments: &[&str]) -> Result<Self, String> {
        let at = home.path().join("mounted");
        std::fs::create_dir(&at).expect("our own directory");
        let arguments = arguments.iter().map(OsStr::new);
        output("mount", arguments.chain([at.as_os_str()]))?;
        Ok(Self { at, _home: home })
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.at
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let unmounted = output("umount", [&self.at]);
        if let Err(reason) = unmounted {
            eprintln!("{reason}");
            // A test that failed may still have files open.
            drop(output(
                "umount",
                [OsStr::new("--lazy"), self.at.as_os_str()],
            ));
        }
    }
}

struct LoopDevice(String);

impl LoopDevice {
    fn new(options: &[&str], image: &Path) -> Self {
        let options = options.iter().map(OsStr::new);
        let rest = ["--find".as_ref(), "--show".as_ref(), image.as_os_str()];
        let device = output("losetup", options.chain(rest));
        Self(device.expect("a loop device").trim().to_owned())
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Err(reason) = output("losetup", ["--detach", &self.0]) {
            eprintln!("{reason}");
        }
    }
}

/// Runs a tool, also one for administrators, and gives what it printed.
///
/// # Errors
///
/// What it said, when it failed.
pub fn output<S: AsRef<OsStr>>(
    tool: &str,
    arguments: impl IntoIterator<Item = S>,
) -> Result<String, String> {
    // An ordinary user's path leaves out sbin.
    let script = r#"PATH=$PATH:/usr/sbin:/sbin; exec "$0" "$@""#;
    let run = Command::new("sh")
        .args(["-c", script, tool])
        .args(arguments)
        .output();
    let run = run.map_err(|error| format!("{tool}: {error}"))?;
    if run.status.success() {
        Ok(String::from_utf8_lossy(&run.stdout).into_owned())
    } else {
        Err(format!("{tool}: {}", String::from_utf8_lossy(&run.stderr)))
    }
}
