//! Failure looked for: an open that waits, leaks, truncates or takes what is no file; a descriptor
//! that is not the file it stands for; a silent detour around direct I/O.
//! Method: real files, in the system's temporary directory and in the build's, since the two are
//! often on different file systems; what a file system cannot do must come with a reason.

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags};
use tempfile::TempDir;

use super::file::FileIdentity;
use super::*;
use crate::error::{Error, ErrorKind, Operation};
use crate::plan::Kind;
use crate::plan::route::DirectFacts;

const READ: OpenHow = OpenHow {
    read: true,
    write: false,
    create: false,
    create_new: false,
    truncate: false,
    mode: 0o644,
    want_direct: true,
};
const CREATE: OpenHow = OpenHow {
    read: true,
    write: true,
    create: true,
    ..READ
};

fn directories() -> [TempDir; 2] {
    let build = std::env::current_exe().expect("the test binary lies in the build's directory");
    let build = build.parent().expect("a file has a directory");
    [
        tempfile::tempdir().expect("a temporary directory"),
        tempfile::tempdir_in(build).expect("a directory in the build's"),
    ]
}

fn open(path: impl Into<PathBuf>, how: OpenHow) -> Result<FileHandle, Error> {
    let file = FileHandle::open(&Arc::from(path.into()), how)?;
    if how.truncates() {
        file.truncate()?;
    }
    Ok(file)
}

fn open_error(path: impl Into<PathBuf>, how: OpenHow) -> Error {
    let path = path.into();
    let error = open(&path, how).expect_err("it cannot be opened");
    assert_eq!(error.operation(), Some(Operation::Open));
    assert_eq!(error.path(), Some(&*path));
    error
}

fn flags(fd: impl AsFd) -> OFlags {
    rustix::fs::fcntl_getfl(fd).expect("an open descriptor")
}

#[test]
fn an_opened_file_has_two_descriptors_of_one_file_or_a_reason() {
    for directory in directories() {
        let path = directory.path().join("file");
        let file = open(&path, CREATE).expect("created");
        assert!(!flags(file.buffered_fd()).intersects(OFlags::DIRECT | OFlags::NONBLOCK));
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7711, 0o600, "what the umask leaves of 644");
        let o_direct = i32::try_from(OFlags::DIRECT.bits()).unwrap();
        let by_path = File::options()
            .read(true)
            .custom_flags(o_direct)
            .open(&path);
        match (file.direct_facts(), file.direct_fd()) {
            (DirectFacts::Open { alignment, .. }, Some(fd)) => {
                assert!(flags(fd).contains(OFlags::DIRECT));
                assert!(!flags(fd).contains(OFlags::NONBLOCK));
                assert_eq!(FileIdentity::of(fd), FileIdentity::of(file.buffered_fd()));
                assert_eq!(file.direct_alignment(), Some(alignment));
                assert!(alignment.memory >= 512 && alignment.offset >= 512);
            }
            (DirectFacts::Unavailable(reason), None) => {
                let known = reason.contains("statx") || reason.contains("page cache");
                assert!(by_path.is_err() || known, "{reason}");
            }
            mixed => panic!("facts and descriptor disagree: {mixed:?}"),
        }
    }
}

#[test]
fn an_aligned_direct_read_returns_what_was_written() {
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    for directory in directories() {
        let path = directory.path().join("file");
        fs::write(&path, [7; 5000]).unwrap();
        let file = open(&path, READ).expect("opened");
        let Some(fd) = file.direct_fd() else {
            assert!(matches!(file.direct_facts(), DirectFacts::Unavailable(_)));
            continue;
        };
        let mut page = Page([0; 4096]);
        let count = read_page(fd, &mut page.0, 4096);
        assert_eq!(count, Ok(5000 - 4096), "clipped at the end of the file");
        assert!(page.0[..904].iter().all(|&byte| byte == 7));
    }
}

fn read_page(
    fd: std::os::fd::BorrowedFd<'_>,
    page: &mut [u8],
    offset: u64,
) -> Result<usize, rustix::io::Errno> {
    rustix::io::pread(fd, page, offset)
}

#[test]
fn what_is_no_regular_file_is_refused_by_name_and_without_waiting() {
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        FileType::Fifo,
        Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let socket = directory.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let write = OpenHow {
        read: false,
        write: true,
        ..READ
    };
    for (path, name) in [
        (directory.path(), "directory"),
        (&fifo, "FIFO"),
        (&socket, "socket"),
        (Path::new("/dev/null"), "character device"),
    ] {
        for how in [
            READ,
            write,
            CREATE,
            OpenHow {
                truncate: true,
                ..CREATE
            },
        ] {
            let error = open_error(path, how);
            assert_eq!(error.kind(), ErrorKind::NotRegularFile, "{error}");
            assert!(error.reason().contains(name), "{error}");
        }
    }
    assert!(fs::metadata(&fifo).unwrap().file_type().is_fifo());
}

#[test]
fn what_is_not_there_or_there_already_has_its_own_kind() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing");
    let dangling = directory.path().join("dangling");
    symlink(&missing, &dangling).unwrap();
    assert_eq!(open_error(&missing, READ).kind(), ErrorKind::NotFound);
    assert_eq!(open_error(&dangling, READ).kind(), ErrorKind::NotFound);
    assert_eq!(open_error("", READ).kind(), ErrorKind::NotFound);
    assert_eq!(
        open_error("nul\0byte", READ).kind(),
        ErrorKind::InvalidInput
    );
    let new = OpenHow {
        create_new: true,
        ..CREATE
    };
    let present = directory.path().join("present");
    open(&present, new).expect("created");
    assert_eq!(open_error(&present, new).kind(), ErrorKind::AlreadyExists);
}

#[test]
fn senseless_options_are_invalid_input_and_touch_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let none = OpenHow {
        read: false,
        ..READ
    };
    let create = OpenHow {
        create: true,
        ..READ
    };
    let truncate = OpenHow {
        truncate: true,
        ..READ
    };
    for how in [none, create, truncate] {
        assert_eq!(open_error(&path, how).kind(), ErrorKind::InvalidInput);
    }
    assert!(!path.exists());
}

#[test]
fn only_truncate_cuts_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    fs::write(&path, "content").unwrap();
    assert_eq!(open(&path, CREATE).and_then(|file| file.len()).unwrap(), 7);
    let truncate = OpenHow {
        truncate: true,
        ..CREATE
    };
    assert_eq!(
        open(&path, truncate).and_then(|file| file.len()).unwrap(),
        0
    );
}

#[test]
fn access_is_checked_with_one_kind_of_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let writer = open(
        &path,
        OpenHow {
            read: false,
            ..CREATE
        },
    )
    .unwrap();
    let reader = open(&path, READ).unwrap();
    assert!(writer.check_access(Kind::Write).is_ok());
    assert!(reader.check_access(Kind::Read).is_ok());
    let kind = |checked: Result<(), Error>| checked.expect_err("no access").kind();
    assert_eq!(
        kind(writer.check_access(Kind::Read)),
        ErrorKind::NotReadable
    );
    assert_eq!(
        kind(reader.check_access(Kind::Write)),
        ErrorKind::NotWritable
    );
    assert_eq!(kind(reader.set_len(1)), ErrorKind::NotWritable);
    assert_eq!(kind(writer.set_len(u64::MAX)), ErrorKind::InvalidInput);
}

#[test]
fn a_file_can_be_resized_synced_dropped_from_the_cache_and_closed() {
    for directory in directories() {
        let file = open(directory.path().join("file"), CREATE).unwrap();
        file.set_len(5 << 30).unwrap();
        assert_eq!(file.len().unwrap(), 5 << 30);
        file.set_len(10).unwrap();
        file.sync_data().unwrap();
        file.sync_all().unwrap();
        file.drop_cache(0, None).unwrap();
        file.drop_cache(4096, std::num::NonZeroU64::new(4096))
            .unwrap();
        file.close().unwrap();
    }
}

#[test]
fn a_refused_aligned_request_is_remembered_with_its_reason() {
    let [directory, _] = directories();
    let file = open(directory.path().join("file"), CREATE).unwrap();
    let had = file.direct_fd().is_some();
    file.refuse_direct();
    assert_eq!(file.direct_alignment(), None);
    assert!(matches!(file.direct_facts(), DirectFacts::Unavailable(_)));
    assert_eq!(
        file.direct_fd().is_some(),
        had,
        "parts planned before still need it"
    );
}

#[test]
fn without_a_wish_for_direct_io_there_is_one_descriptor() {
    let directory = tempfile::tempdir().unwrap();
    let how = OpenHow {
        want_direct: false,
        ..CREATE
    };
    let file = open(directory.path().join("file"), how).unwrap();
    assert!(file.direct_fd().is_none());
}

#[test]
fn a_deleted_or_renamed_std_file_is_opened_a_second_time_through_its_descriptor() {
    for directory in directories() {
        let path = directory.path().join("file");
        open(&path, CREATE).unwrap().close().unwrap();
        let by_path = open(&path, READ).unwrap().direct_fd().is_some();
        let std_file = File::open(&path).unwrap();
        assert_eq!(path_of(&std_file), fs::canonicalize(&path).unwrap());
        fs::remove_file(&path).unwrap();
        fs::write(&path, "a stranger").unwrap();
        let file = FileHandle::from_std(std_file, true).unwrap();
        assert_eq!(file.direct_fd().is_some(), by_path);
        assert_eq!(file.len().unwrap(), 0);
        assert!(file.readable() && !file.writable());
    }
}

#[test]
fn a_std_file_that_cannot_be_used_by_offset_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let kind = |file: File| {
        FileHandle::from_std(file, true)
            .map(|_| ())
            .unwrap_err()
            .kind()
    };
    let append = File::options()
        .append(true)
        .create(true)
        .open(&path)
        .unwrap();
    assert_eq!(kind(append), ErrorKind::InvalidInput);
    let o_path = i32::try_from(OFlags::PATH.bits()).unwrap();
    let path_only = File::options()
        .read(true)
        .custom_flags(o_path)
        .open(&path)
        .unwrap();
    assert_eq!(kind(path_only), ErrorKind::InvalidInput);
    assert_eq!(
        kind(File::open(directory.path()).unwrap()),
        ErrorKind::NotRegularFile
    );
}

#[test]
fn a_direct_std_file_gets_a_buffered_descriptor_beside_it() {
    for directory in directories() {
        let path = directory.path().join("file");
        let o_direct = i32::try_from(OFlags::DIRECT.bits()).unwrap();
        fs::write(&path, "content").unwrap();
        let opened = File::options()
            .read(true)
            .write(true)
            .custom_flags(o_direct)
            .open(&path);
        // A file system without direct I/O has nothing to adopt.
        let Ok(std_file) = opened else { continue };
        let file = FileHandle::from_std(std_file, true).unwrap();
        assert!(!flags(file.buffered_fd()).contains(OFlags::DIRECT));
        let by_path = open(&path, READ).unwrap();
        assert_eq!(file.direct_fd().is_some(), by_path.direct_fd().is_some());
    }
}

#[test]
fn no_descriptor_is_leaked_and_all_are_closed_on_exec() {
    let directory = tempfile::tempdir().unwrap();
    let file = open(directory.path().join("file"), CREATE).unwrap();
    for fd in [Some(file.buffered_fd()), file.direct_fd()]
        .into_iter()
        .flatten()
    {
        assert!(fd.as_raw_fd() > 2);
        assert!(
            rustix::io::fcntl_getfd(fd)
                .unwrap()
                .contains(rustix::io::FdFlags::CLOEXEC)
        );
    }
    let open_here = |directory: &Path| {
        let descriptors = fs::read_dir("/proc/self/fd").unwrap();
        let targets = descriptors.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        targets
            .filter(|target| target.starts_with(directory))
            .count()
    };
    let canonical = fs::canonicalize(directory.path()).unwrap();
    assert_eq!(
        open_here(&canonical),
        1 + usize::from(file.direct_fd().is_some())
    );
    file.close().unwrap();
    let _ = open_error(directory.path(), READ);
    assert_eq!(open_here(&canonical), 0);
}
