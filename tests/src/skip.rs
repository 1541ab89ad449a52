//! Tests that cannot run on this machine say so, and are counted.
//!
//! ```no_run
//! use tokio_cufile_tests::need;
//!
//! fn a_full_disk_is_an_error() {
//!     if !(need::loop_device() && need::tool("mkfs.xfs")) {
//!         return;
//!     }
//!     // ...
//! }
//! ```
//!
//! `cargo xtask test` collects the skips and fails for each that `ci/expected-skips.toml` does
//! not expect on this machine.
#![allow(
    clippy::disallowed_methods,
    reason = "xtask tells the tests by a variable where to note their skips"
)]

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::panic::Location;
use std::path::Path;
use std::{env, thread};

/// The variable that names the file where skips are noted.
pub const LOG_VARIABLE: &str = "TOKIO_CUFILE_SKIP_LOG";

/// Notes that the calling test does not run, and why. The test returns next.
///
/// `id` is one of `ci/expected-skips.toml`; `reason` is for a person.
///
/// # Panics
///
/// When the file named by [`LOG_VARIABLE`] cannot be written: a skip that is not noted would
/// count as a test that passed.
#[track_caller]
pub fn skip(id: &str, reason: &str) {
    let test = test_name(Location::caller());
    match env::var_os(LOG_VARIABLE) {
        Some(path) => note(Path::new(&path), &test, id, reason)
            .unwrap_or_else(|error| panic!("cannot note a skip in {}: {error}", path.display())),
        // Not `eprintln!`: libtest would hide it, since the test is about to pass.
        None => writeln!(io::stderr(), "SKIPPED: {test} ({id}): {reason}")
            .unwrap_or_else(|error| panic!("cannot tell of a skip: {error}")),
    }
}

/// The file with the test and the name of its thread, which libtest names after the test.
fn test_name(caller: &Location<'_>) -> String {
    let thread = thread::current();
    match thread.name() {
        Some(name) if name != "main" => format!("{}::{name}", caller.file()),
        _ => format!("{}:{}", caller.file(), caller.line()),
    }
}

/// Many test processes append to the same file, so a line is one write.
fn note(path: &Path, test: &str, id: &str, reason: &str) -> io::Result<()> {
    let reason = reason.replace('\n', " ");
    let line = format!("{test}\t{id}\t{reason}\n");
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    file.write_all(line.as_bytes())
}

/// What a test may need of its machine. Each notes a skip where the answer is `false`.
pub mod need {
    use std::env;
    use std::fs::OpenOptions;

    use rustix::process::geteuid;
    use rustix::thread::{CapabilitySet, capabilities};

    use super::skip;

    /// The user is root.
    #[must_use = "a test that needs root returns when it is not"]
    #[track_caller]
    pub fn root() -> bool {
        or_skip(geteuid().is_root(), "needs-root", "the user is not root")
    }

    /// File systems can be mounted.
    #[must_use = "a test that mounts returns when it cannot"]
    #[track_caller]
    pub fn mount() -> bool {
        let may =
            capabilities(None).is_ok_and(|has| has.effective.contains(CapabilitySet::SYS_ADMIN));
        or_skip(may, "needs-mount", "CAP_SYS_ADMIN is not held")
    }

    /// FUSE file systems can be served.
    #[must_use = "a test that needs FUSE returns when it is not there"]
    #[track_caller]
    pub fn fuse() -> bool {
        or_skip(
            opens("/dev/fuse"),
            "needs-fuse",
            "/dev/fuse cannot be opened",
        )
    }

    /// Loop devices can be made.
    #[must_use = "a test that needs a loop device returns when there is none"]
    #[track_caller]
    pub fn loop_device() -> bool {
        let path = "/dev/loop-control";
        or_skip(
            opens(path),
            "needs-loop-device",
            "/dev/loop-control cannot be opened",
        )
    }

    /// The program `name` is installed.
    #[must_use = "a test that needs a tool returns when it is not there"]
    #[track_caller]
    pub fn tool(name: &str) -> bool {
        // An ordinary user's path leaves out sbin, where mkfs and losetup lie.
        let path = env::var_os("PATH").unwrap_or_default();
        let found = env::split_paths(&path)
            .chain(["/usr/sbin".into(), "/sbin".into()])
            .any(|folder| folder.join(name).is_file());
        or_skip(
            found,
            &format!("needs-tool:{name}"),
            &format!("{name} is not installed"),
        )
    }

    fn opens(path: &str) -> bool {
        OpenOptions::new().read(true).write(true).open(path).is_ok()
    }

    #[track_caller]
    fn or_skip(holds: bool, id: &str, reason: &str) -> bool {
        if !holds {
            skip(id, reason);
        }
        holds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_is_one_line_of_three_fields() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("skips.log");
        note(&path, "a.rs::b", "needs-root", "two\nlines").unwrap();
        note(&path, "a.rs::c", "needs-fuse", "no device").unwrap();
        let log = std::fs::read_to_string(&path).unwrap();
        assert_eq!(
            log,
            "a.rs::b\tneeds-root\ttwo lines\na.rs::c\tneeds-fuse\tno device\n"
        );
    }

    #[test]
    fn a_skip_is_named_after_its_test() {
        let name = test_name(Location::caller());
        assert!(name.contains("skip.rs"), "{name}");
        // A runner that uses one thread runs tests on the main thread: the line has to do.
        let main = thread::current().name() == Some("main");
        assert!(
            main || name.ends_with("a_skip_is_named_after_its_test"),
            "{name}"
        );
    }

    #[test]
    fn a_tool_that_is_there_is_no_skip() {
        assert!(need::tool("sh"));
    }
}
