//! Failure looked for: a machine without a driver, or with a broken one, that ends in a panic, in a
//! crash, or in an error that does not say what is wrong.
//!
//! Mechanism: what is loaded is chosen by the machine, not by us.
//!
//! Method: names under which there is nothing, something that is no library, and libraries that are
//! not the driver.
//!
//! Unsafe, because it names what is to be loaded.
#![allow(unsafe_code, reason = "naming what is to be loaded is unsafe")]

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::thread;

use nvidia_dl::cuda::{Driver, REQUIRED_SYMBOLS};
use nvidia_dl::cufile;
use nvidia_dl::{Attempt, LoadError, Search};

fn load(names: &[&str]) -> LoadError {
    // SAFETY: there is nothing under these names, or the C library's parts, whose constructors have
    // run already, and which have none of the driver's symbols.
    let search = unsafe { Search::named(names.iter().copied()) };
    Driver::load(&search).expect_err("nothing under these names is a driver")
}

fn tried(error: &LoadError) -> &[Attempt] {
    match error {
        LoadError::NotFound { tried, .. } => tried,
        other => panic!("expected that nothing opens: {other}"),
    }
}

#[test]
fn an_absent_library_is_an_error_that_tells_every_name_and_why() {
    let error = load(&["libnothing-of-the-kind.so.1", "libnor-this.so"]);
    let tried = tried(&error);
    assert_eq!(tried.len(), 2);
    assert_eq!(tried[0].name, OsString::from("libnothing-of-the-kind.so.1"));
    assert_eq!(tried[1].name, OsString::from("libnor-this.so"));
    for attempt in tried {
        assert!(
            attempt.reason.contains("No such file") || attempt.reason.contains("not found"),
            "{attempt}"
        );
        let named_once = attempt.to_string();
        let name = attempt.name.to_string_lossy();
        assert_eq!(named_once.matches(name.as_ref()).count(), 1, "{attempt}");
    }
    let text = error.to_string();
    assert!(text.contains("libnothing-of-the-kind.so.1"), "{text}");
    assert!(text.contains("libnor-this.so"), "{text}");
}

#[test]
fn a_library_without_the_drivers_symbols_names_the_first_that_it_lacks() {
    for name in ["libc.so.6", "libm.so.6"] {
        match load(&[name]) {
            LoadError::MissingSymbol {
                library, symbol, ..
            } => {
                assert_eq!(symbol, REQUIRED_SYMBOLS[0]);
                assert!(library.ends_with(name), "{}", library.display());
            }
            other => panic!("{name}: {other}"),
        }
    }
    let text = load(&["libm.so.6"]).to_string();
    assert!(text.contains("libm.so.6 has no symbol cuInit"), "{text}");
}

#[test]
fn names_are_tried_in_order_until_one_opens() {
    let error = load(&["libnothing-of-the-kind.so.1", "libm.so.6", "libc.so.6"]);
    match error {
        LoadError::MissingSymbol { library, .. } => assert!(library.ends_with("libm.so.6")),
        other => panic!("{other}"),
    }
}

#[test]
fn a_path_that_does_not_exist_is_said_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("libcuda.so.1");
    let error = load(&[path.to_str().unwrap()]);
    let [attempt] = tried(&error) else {
        panic!("{error}");
    };
    assert_eq!(Path::new(&attempt.name), path);
}

#[test]
fn a_text_file_is_no_library() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("libcuda.so.1");
    fs::write(&path, "INPUT ( libcuda.so.999 )\n".repeat(100)).unwrap();
    let error = load(&[path.to_str().unwrap()]);
    let reason = &tried(&error)[0].reason;
    // glibc says "invalid ELF header", musl "Exec format error".
    assert!(
        reason.contains("ELF") || reason.contains("format"),
        "{reason}"
    );
}

#[test]
fn an_empty_file_is_no_library() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = load(&[file.path().to_str().unwrap()]);
    assert_eq!(tried(&error).len(), 1);
}

#[test]
fn a_name_with_a_zero_byte_is_an_error() {
    let error = load(&["libcuda\0.so"]);
    assert_eq!(tried(&error).len(), 1, "{error}");
}

#[test]
fn a_search_without_names_says_so() {
    let error = load(&[]);
    assert!(tried(&error).is_empty());
    assert!(error.to_string().contains("empty"), "{error}");
}

#[test]
fn the_default_search_is_for_the_installed_driver() {
    let search = Search::default();
    let names: Vec<_> = search.names().collect();
    assert_eq!(names, ["libcuda.so.1", "libcuda.so"]);
}

/// With a driver: one table for all threads. Without: one error, from every thread.
#[test]
fn many_threads_that_load_at_once_get_the_same() {
    let outcomes: Vec<_> = thread::scope(|scope| {
        let load =
            || Driver::load(&Search::libcuda()).map(|driver| std::ptr::from_ref(driver).addr());
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(load)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    for outcome in &outcomes {
        assert_eq!(outcome, &outcomes[0]);
    }
}

#[test]
fn libcufile_is_looked_for_where_packages_put_it_and_settings_come_first() {
    let search = Search::libcufile();
    let names: Vec<_> = search.names().collect();
    let installed = [
        "libcufile.so.0",
        "libcufile.so",
        "libcufile.so.1",
        "/usr/local/cuda/lib64/libcufile.so.0",
        "/usr/local/cuda/lib64/libcufile.so",
    ];
    assert_eq!(names, installed);
    // SAFETY: nothing is opened.
    let search = unsafe { search.before(["/a/libcufile.so.0", "/b/libcufile.so.0"]) };
    // SAFETY: as above.
    let search = unsafe { search.after(["/wheel/nvidia/cu13/lib/libcufile.so.0"]) };
    let names: Vec<_> = search.names().collect();
    assert_eq!(names[..2], ["/a/libcufile.so.0", "/b/libcufile.so.0"]);
    assert_eq!(names[2..7], installed);
    assert_eq!(names[7..], ["/wheel/nvidia/cu13/lib/libcufile.so.0"]);
}

#[test]
fn a_library_without_cufiles_symbols_names_the_first_that_it_lacks() {
    // SAFETY: the C library's math part, whose constructors have run already, and which has none of
    // these symbols.
    let search = unsafe { Search::named(["libm.so.6"]) };
    match cufile::Library::load(&search) {
        Err(LoadError::MissingSymbol {
            library, symbol, ..
        }) => {
            assert_eq!(symbol, cufile::REQUIRED_SYMBOLS[0]);
            assert!(library.ends_with("libm.so.6"), "{}", library.display());
        }
        other => panic!("{other:?}"),
    }
}
