//! Puts the simulated libraries where a loader finds them under their real names: `target/sim`.
//!
//! Cargo's own folders are on the loader's path while it runs anything, so no file there may be
//! called like a real driver. The libraries are built in a folder of their own, so that a build of
//! something else neither waits nor replaces a file while it is copied.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use rustix::fs::{FlockOperation, flock};

use crate::place;

/// A library that stands in for a real one.
struct Simulator {
    package: &'static str,
    /// The name of the real one.
    library: &'static str,
    folder: &'static str,
}

const CUDA: Simulator = Simulator {
    package: "sim_cuda",
    library: "libcuda.so.1",
    folder: "crates/sim-cuda",
};

const CUFILE: Simulator = Simulator {
    package: "sim_cufile",
    library: "libcufile.so.0",
    folder: "crates/sim-cufile",
};

/// What both are made of.
const SHARED: &str = "crates/sim-common";

/// The folder with a `libcuda.so.1` that is as new as its sources. It is built if need be; who comes
/// meanwhile waits. A process that has the old file loaded keeps it.
///
/// # Errors
///
/// The text for a person says what could not be built or written.
pub fn cuda() -> Result<PathBuf, String> {
    CUDA.place()
}

/// The same folder, with a `libcufile.so.0` of the latest version that is simulated.
///
/// # Errors
///
/// As [`cuda`].
pub fn cufile() -> Result<PathBuf, String> {
    CUFILE.place()
}

/// The same, in another folder, of a driver that lacks the function `symbol`.
///
/// # Errors
///
/// As [`cuda`]; also when the driver has no such function to begin with.
pub fn cuda_without(symbol: &str) -> Result<PathBuf, String> {
    let change = |bytes: &mut [u8]| hide(bytes, symbol);
    CUDA.changed(&format!("without-{symbol}"), symbol, change)
}

/// A folder with a `libcufile.so.0` of a version, such as `1.15`: without what came later, and
/// without the function `lacking`, if there is one.
///
/// # Errors
///
/// As [`cuda`]; also for a version that is not simulated, and a function that it has not.
pub fn cufile_of(version: &str, lacking: Option<&str>) -> Result<PathBuf, String> {
    let number = version_number(version)?;
    let name = match lacking {
        None => format!("cufile-{version}"),
        Some(symbol) => format!("cufile-{version}-without-{symbol}"),
    };
    let change = |bytes: &mut [u8]| {
        let later = NEW_SYMBOLS.iter().filter(|(since, _)| *since > number);
        for symbol in later.flat_map(|(_, symbols)| *symbols) {
            hide(bytes, symbol)?;
        }
        if let Some(symbol) = lacking {
            hide(bytes, symbol)?;
        }
        mark(bytes, number)
    };
    CUFILE.changed(&name, lacking.unwrap_or("of a later version"), change)
}

/// The versions of libcufile that can be simulated, oldest first.
pub const CUFILE_VERSIONS: [&str; 9] = [
    "1.11", "1.13", "1.14", "1.15", "1.16", "1.17", "1.18", "1.19", "1.20",
];

/// What came after the oldest of them; the head of `nvidia-dl` has the same from another hand.
const NEW_SYMBOLS: &[(u32, &[&str])] = &[
    (
        1140,
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
        1150,
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
        1160,
        &["cuFileDriverGetP2PFlags", "cuFileDriverSetP2PFlags"],
    ),
    (
        1170,
        &[
            "cuFileExportPCIeTopology",
            "cuFileGetParameterGpuBounceBufferSlabArray",
            "cuFileSetParameterGpuBounceBufferSlabArray",
        ],
    ),
    (1190, &["cuFileReadv", "cuFileWritev"]),
];

fn version_number(version: &str) -> Result<u32, String> {
    let unknown = || {
        let known = CUFILE_VERSIONS.join(", ");
        format!("cuFile {version} is not simulated, only {known}")
    };
    if !CUFILE_VERSIONS.contains(&version) {
        return Err(unknown());
    }
    let (major, minor) = version.split_once('.').ok_or_else(unknown)?;
    let number = |text: &str| text.parse::<u32>().map_err(|_| unknown());
    Ok(1000 * number(major)? + 10 * number(minor)?)
}

impl Simulator {
    fn place(&self) -> Result<PathBuf, String> {
        let folder = place::target().join("sim");
        let _lock = lock(&folder)?;
        let library = folder.join(self.library);
        let started = SystemTime::now();
        if !self.is_current(&library) {
            let built = self.build(&folder)?;
            let bytes = fs::read(&built).map_err(about(&built))?;
            put(&library, &bytes, started)?;
        }
        Ok(folder)
    }

    /// A copy in a folder of that name, changed; `what` is said of a change that cannot be made.
    fn changed(
        &self,
        name: &str,
        what: &str,
        change: impl FnOnce(&mut [u8]) -> Option<()>,
    ) -> Result<PathBuf, String> {
        let whole = self.place()?;
        let library = whole.join(self.library);
        let mut bytes = fs::read(&library).map_err(about(&library))?;
        let library = self.library;
        change(&mut bytes).ok_or_else(|| format!("{library} has no symbol {what}"))?;
        let folder = whole.join(name);
        let _lock = lock(&folder)?;
        put(&folder.join(library), &bytes, SystemTime::now())?;
        Ok(folder)
    }

    fn is_current(&self, library: &Path) -> bool {
        let modified = |path: &Path| fs::metadata(path).and_then(|about| about.modified()).ok();
        let Some(placed) = modified(library) else {
            return false;
        };
        let root = place::root();
        let mut folders = vec![root.join(self.folder), root.join(SHARED)];
        while let Some(folder) = folders.pop() {
            let Ok(entries) = fs::read_dir(&folder) else {
                return false;
            };
            for path in entries.flatten().map(|entry| entry.path()) {
                if path.is_dir() {
                    folders.push(path);
                } else if modified(&path).is_none_or(|time| time >= placed) {
                    return false;
                }
            }
        }
        modified(&root.join("Cargo.lock")).is_some_and(|time| time < placed)
    }

    /// Builds in a folder of its own, and gives the library's path.
    fn build(&self, folder: &Path) -> Result<PathBuf, String> {
        let target = folder.join("build");
        let package = self.package;
        let output = Command::new(place::cargo())
            .args(["build", "--locked", "--quiet", "--package", package])
            .arg("--target-dir")
            .arg(&target)
            .current_dir(place::root())
            // Whoever asked for another machine's code, or for a sanitizer that the program has and
            // the library would look for in vain, still runs the library here.
            .env_remove("CARGO_BUILD_TARGET")
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("cannot run cargo: {error}"))?;
        if output.status.success() {
            return Ok(target.join(format!("debug/lib{package}.so")));
        }
        let text = String::from_utf8_lossy(&output.stderr);
        Err(format!("cannot build {package}: {}\n{text}", output.status))
    }
}

/// Held until it is dropped, against other processes and threads.
fn lock(folder: &Path) -> Result<File, String> {
    fs::create_dir_all(folder).map_err(about(folder))?;
    let path = folder.join(".lock");
    let file = File::create(&path).map_err(about(&path))?;
    flock(&file, FlockOperation::LockExclusive).map_err(|error| about(&path)(error.into()))?;
    Ok(file)
}

/// Replaces a file as a whole: whoever opens it finds the old or the new.
fn put(path: &Path, bytes: &[u8], modified: SystemTime) -> Result<(), String> {
    if fs::read(path).is_ok_and(|old| old == bytes) {
        let file = File::options().append(true).open(path);
        return file
            .and_then(|file| file.set_modified(modified))
            .map_err(about(path));
    }
    let new = path.with_extension(format!("new-{}", std::process::id()));
    fs::write(&new, bytes).map_err(about(&new))?;
    let file = File::options()
        .append(true)
        .open(&new)
        .map_err(about(&new))?;
    file.set_modified(modified).map_err(about(&new))?;
    fs::rename(&new, path).map_err(about(path))
}

/// Spoils the name of a dynamic symbol. The loader compares whole names after hashing, so it finds
/// no such symbol, and everything else as before. `None` if there is none.
fn hide(library: &mut [u8], symbol: &str) -> Option<()> {
    const SHT_DYNSYM: u64 = 11;
    let field = |at: usize, len: usize| -> Option<u64> {
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(library.get(at..at + len)?);
        Some(u64::from_le_bytes(bytes))
    };
    let place = |at, len| usize::try_from(field(at, len)?).ok();
    let (sections, size, count) = (place(0x28, 8)?, place(0x3A, 2)?, place(0x3C, 2)?);
    let header = |index: usize| sections + index * size;
    let symbols = (0..count).find(|index| field(header(*index) + 4, 4) == Some(SHT_DYNSYM))?;
    // The section of symbols names that of their texts.
    let texts = header(place(header(symbols) + 0x28, 4)?);
    let (start, len) = (place(texts + 0x18, 8)?, place(texts + 0x20, 8)?);
    let name = format!("\0{symbol}\0");
    let text = library.get_mut(start..start + len)?;
    let mut found = text.windows(name.len()).enumerate();
    let at = found.find(|(_, text)| *text == name.as_bytes())?.0;
    text[at + 1] = b'_';
    Some(())
}

/// Writes the version into the library.
fn mark(library: &mut [u8], version: u32) -> Option<()> {
    const MARK: &[u8] = b"SIMULATED-LIBCUFILE=";
    let digits = version.to_string();
    let found = library.windows(MARK.len()).position(|bytes| bytes == MARK);
    let at = found? + MARK.len();
    let place = library.get_mut(at..at + digits.len())?;
    place.copy_from_slice(digits.as_bytes());
    Some(())
}

fn about(path: &Path) -> impl Fn(io::Error) -> String {
    move |error| format!("{}: {error}", path.display())
}
