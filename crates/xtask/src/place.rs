//! Where things are. The one file of xtask that reads the environment.
#![allow(
    clippy::disallowed_methods,
    reason = "a program's environment is part of its input; it is read here only"
)]

use std::env;
use std::path::{Path, PathBuf};

/// The root of the workspace.
pub fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest
        .ancestors()
        .nth(2)
        .expect("xtask lies two folders below the root")
        .to_path_buf()
}

/// The folder of build products.
pub fn target() -> PathBuf {
    // Relative paths count from the root, since that is where xtask runs cargo.
    root().join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// The cargo that runs this program, so that both are of one toolchain.
pub fn cargo() -> PathBuf {
    env::var_os("CARGO").map_or_else(|| "cargo".into(), PathBuf::from)
}

/// A variable the caller may set to steer a run, or its default.
pub fn setting(name: &str, default: &str) -> String {
    env::var(name).unwrap_or_else(|_| default.to_owned())
}

/// Whether a program of this name is on the search path.
pub fn has_tool(name: &str) -> bool {
    // An ordinary user's path leaves out sbin, where mkfs and losetup lie.
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|folder| folder.join(name).is_file())
}
