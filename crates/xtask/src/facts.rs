//! What this machine has.
//!
//! The test helpers find out for themselves whether they can run. The facts are established
//! here a second time on purpose: a test must not be able to excuse itself.

use std::fs::{self, OpenOptions};
use std::path::Path;

use crate::{place, process};

/// Capability number of `CAP_SYS_ADMIN`, without which mounting is refused.
const CAP_SYS_ADMIN: u32 = 21;

/// Whether a fact holds here; `None` for a fact that is not known.
pub(crate) fn holds(fact: &str) -> Option<bool> {
    if let Some(name) = fact.strip_prefix("tool:") {
        return Some(place::has_tool(name));
    }
    let answer = match fact {
        "root" => status_field("Uid").is_some_and(|ids| ids.split_whitespace().nth(1) == Some("0")),
        "mount" => can_mount(),
        "fuse" => opens("/dev/fuse"),
        "loop-device" => opens("/dev/loop-control"),
        "io-uring" => io_uring_permitted(),
        "seccomp-notify" => has_seccomp_notify(),
        "gpu" => Path::new("/dev/nvidiactl").exists(),
        "libcufile" => has_libcufile(),
        "miri" => has_miri(),
        "tsan" => has_sources(),
        _ => return None,
    };
    Some(answer)
}

/// rustup's proxy for miri can be there without miri, so it is asked.
pub(crate) fn has_miri() -> bool {
    process::ask("rustup", &["run", "nightly", "cargo", "miri", "--version"]).is_some()
}

/// As the loader's cache and the toolkit's folder have it.
fn has_libcufile() -> bool {
    let cached = process::ask("ldconfig", &["-p"]).unwrap_or_default();
    cached.contains("libcufile.so") || Path::new("/usr/local/cuda/lib64/libcufile.so.0").exists()
}

/// What the thread sanitizer needs: a nightly toolchain, the sources of its standard library, and
/// what these use.
pub(crate) fn has_sources() -> bool {
    let ask = |args: &[&str]| process::ask("rustup", &[&["run", "nightly"], args].concat());
    let Some(root) = ask(&["rustc", "--print", "sysroot"]) else {
        return false;
    };
    let manifest = Path::new(root.trim()).join("lib/rustlib/src/rust/library/Cargo.toml");
    let fetch = "cargo fetch --locked --target x86_64-unknown-linux-gnu --manifest-path";
    let manifest = manifest.display().to_string();
    let fetch: Vec<&str> = fetch.split(' ').chain([manifest.as_str()]).collect();
    ask(&fetch).is_some()
}

fn opens(path: &str) -> bool {
    OpenOptions::new().read(true).write(true).open(path).is_ok()
}

fn can_mount() -> bool {
    status_field("CapEff")
        .and_then(|bits| u64::from_str_radix(&bits, 16).ok())
        .is_some_and(|bits| bits & (1 << CAP_SYS_ADMIN) != 0)
}

/// Containers refuse io_uring by a seccomp filter, hosts by a setting.
fn io_uring_permitted() -> bool {
    let setting = fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    let allowed = setting.map_or(true, |value| value.trim() == "0");
    allowed && status_field("Seccomp").as_deref() == Some("0")
}

/// Known to the kernel, and no other filter in the way: of those that listen there can be one.
fn has_seccomp_notify() -> bool {
    let actions = fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail");
    let known = actions.is_ok_and(|actions| actions.split_whitespace().any(|a| a == "user_notif"));
    known && status_field("Seccomp").as_deref() == Some("0")
}

fn status_field(name: &str) -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let prefix = format!("{name}:");
    let line = status.lines().find_map(|line| line.strip_prefix(&prefix))?;
    Some(line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fact_has_an_answer_and_others_have_none() {
        for fact in [
            "root",
            "mount",
            "fuse",
            "loop-device",
            "io-uring",
            "seccomp-notify",
            "gpu",
            "libcufile",
        ] {
            assert!(holds(fact).is_some(), "{fact}");
        }
        assert_eq!(holds("rot"), None);
    }

    #[test]
    fn a_tool_is_found_by_name() {
        assert_eq!(holds("tool:sh"), Some(true));
        assert_eq!(holds("tool:no-such-tool-anywhere"), Some(false));
    }
}
