//! The standard descriptors: libcufile closes or uses whatever has their numbers.

use std::os::fd::{AsRawFd, IntoRawFd};
use std::path::Path;
use std::{fs, io};

use rustix::fs::{Mode, OFlags};

use super::Absent;

/// Those of this process, by number.
const DESCRIPTORS: &str = "/proc/self/fd";
const NOWHERE: &str = "/dev/null";

/// Before the library opens.
///
/// # Errors
///
/// Which of them is closed.
pub(super) fn are_open() -> Result<(), Absent> {
    match closed(Path::new(DESCRIPTORS)) {
        Some(number) => Err(format!(
            "descriptor {number} is closed, and libcufile closes or uses whatever has its number"
        )
        .into()),
        None => Ok(()),
    }
}

/// Opens those that the library's opening has closed, as it has been reported to, onto `/dev/null`, and
/// tells of it: the next file that anybody opens would have such a number, and get what is printed.
/// They were open before.
pub(super) fn restore() -> Vec<String> {
    let mut notes = Vec::new();
    while let Some(number) = closed(Path::new(DESCRIPTORS)) {
        let note = format!("opening libcufile closed descriptor {number}");
        // It has the lowest number that is free. Children have it too, as they had what was there.
        let null = rustix::fs::open(NOWHERE, OFlags::RDWR, Mode::empty());
        let Some(null) = null.ok().filter(|null| null.as_raw_fd() == number) else {
            // Somebody else has it by now, or nobody can.
            notes.push(note);
            break;
        };
        // From now on it is whoever's that prints.
        let _ = null.into_raw_fd();
        notes.push(format!("{note}, which leads to {NOWHERE} now"));
    }
    notes
}

/// The first that is closed. `None` where `descriptors`, the process's, cannot be looked at.
fn closed(descriptors: &Path) -> Option<i32> {
    // Not what it leads to: that may be gone.
    let is_closed = |number: &i32| {
        let found = fs::symlink_metadata(descriptors.join(number.to_string()));
        found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    };
    (0..=2).find(is_closed).filter(|_| descriptors.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_is_closed_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let descriptors = folder.path().join("fd");
        assert_eq!(closed(&descriptors), None);
        fs::create_dir(&descriptors).unwrap();
        for number in 0..=2 {
            assert_eq!(closed(&descriptors), Some(number));
            // To what is gone, as that of a deleted file.
            let place = descriptors.join(number.to_string());
            std::os::unix::fs::symlink("/nothing (deleted)", place).unwrap();
        }
        assert_eq!(closed(&descriptors), None);
    }
}
