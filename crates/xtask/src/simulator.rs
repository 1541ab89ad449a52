//! Puts the simulated driver where a loader finds it under its real name: `target/sim`.
//!
//! Cargo's own folders are on the loader's path while it runs anything, so no file there may be
//! called like a real driver. The library is built in a folder of its own, so that a build of
//! something else neither waits nor replaces the file while it is copied.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use rustix::fs::{FlockOperation, flock};

use crate::place;

const LIBRARY: &str = "libcuda.so.1";

/// The folder with a `libcuda.so.1` that is as new as its sources. It is built if need be; who comes
/// meanwhile waits. A process that has the old file loaded keeps it.
///
/// # Errors
///
/// The text for a person says what could not be built or written.
pub fn cuda() -> Result<PathBuf, String> {
    let folder = place::target().join("sim");
    let _lock = lock(&folder)?;
    let library = folder.join(LIBRARY);
    let started = SystemTime::now();
    if !is_current(&library) {
        let built = build(&folder)?;
        let bytes = fs::read(&built).map_err(about(&built))?;
        put(&library, &bytes, started)?;
    }
    Ok(folder)
}

/// The same, in another folder, of a driver that lacks the function `symbol`.
///
/// # Errors
///
/// As [`cuda`]; also when the driver has no such function to begin with.
pub fn cuda_without(symbol: &str) -> Result<PathBuf, String> {
    let whole = cuda()?;
    let library = whole.join(LIBRARY);
    let mut bytes = fs::read(&library).map_err(about(&library))?;
    hide(&mut bytes, symbol).ok_or_else(|| format!("{LIBRARY} has no symbol {symbol}"))?;
    let folder = whole.join(format!("without-{symbol}"));
    let _lock = lock(&folder)?;
    put(&folder.join(LIBRARY), &bytes, SystemTime::now())?;
    Ok(folder)
}

/// Held until it is dropped, against other processes and threads.
fn lock(folder: &Path) -> Result<File, String> {
    fs::create_dir_all(folder).map_err(about(folder))?;
    let path = folder.join(".lock");
    let file = File::create(&path).map_err(about(&path))?;
    flock(&file, FlockOperation::LockExclusive).map_err(|error| about(&path)(error.into()))?;
    Ok(file)
}

fn is_current(library: &Path) -> bool {
    let modified = |path: &Path| fs::metadata(path).and_then(|about| about.modified()).ok();
    let Some(placed) = modified(library) else {
        return false;
    };
    let root = place::root();
    let mut folders = vec![root.join("crates/sim-cuda"), root.join("crates/sim-common")];
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
fn build(folder: &Path) -> Result<PathBuf, String> {
    let target = folder.join("build");
    let output = Command::new(place::cargo())
        .args(["build", "--locked", "--quiet", "--package", "sim_cuda"])
        .arg("--target-dir")
        .arg(&target)
        .current_dir(place::root())
        // Whoever asked for another machine's code still runs the library here.
        .env_remove("CARGO_BUILD_TARGET")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if output.status.success() {
        return Ok(target.join("debug/libsim_cuda.so"));
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(format!("cannot build sim_cuda: {}\n{text}", output.status))
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

fn about(path: &Path) -> impl Fn(io::Error) -> String {
    move |error| format!("{}: {error}", path.display())
}
