//! What reaches the library, what never does, and whose errno it is.
//!
//! Unsafe, because the wrappers are; the functions behind them touch nothing but what is given to
//! them here.
#![allow(unsafe_code, reason = "the wrappers under test are unsafe")]

use super::*;

/// The library would take the negative numbers that these become.
#[test]
fn what_would_be_a_negative_offset_never_reaches_the_library() {
    let library = Library::of(Symbols::telling_their_places());
    let wrong = [
        (
            Misuse::BufferOffset,
            Transfer {
                buf_offset: usize::MAX,
                ..transfer()
            },
        ),
        (
            Misuse::FileOffset,
            Transfer {
                file_offset: 1 << 63,
                ..transfer()
            },
        ),
        (
            Misuse::Length,
            Transfer {
                len: usize::MAX,
                ..transfer()
            },
        ),
        (
            Misuse::Range,
            Transfer {
                base: ptr::without_provenance_mut(usize::MAX),
                ..transfer()
            },
        ),
        (
            Misuse::Range,
            Transfer {
                base: ptr::without_provenance_mut(usize::MAX / 2 + 2),
                buf_offset: usize::MAX / 2,
                ..transfer()
            },
        ),
    ];
    for (misuse, what) in wrong {
        // SAFETY: no function of this table touches anything.
        let read = unsafe { library.read(FileHandle::NULL, &what) };
        let expected = CufileError::refused("cuFileRead", misuse);
        assert_eq!(read, Err(expected), "{what:?}");
        // SAFETY: as above.
        let write = unsafe { library.write(FileHandle::NULL, &what) };
        assert!(
            matches!(write, Err(CufileError::Refused { .. })),
            "{what:?}"
        );
        let request = IoParams::new(Opcode::READ, FileHandle::NULL, &what, 0);
        assert_eq!(request.unwrap_err(), misuse);
        assert_eq!(CALLED.take(), None);
    }
    assert_eq!(
        Cells::new(1, 0, usize::MAX).unwrap_err(),
        Misuse::BufferOffset
    );
    assert_eq!(Cells::new(1, u64::MAX, 0).unwrap_err(), Misuse::FileOffset);
    assert_eq!(Cells::new(usize::MAX, 0, 0).unwrap_err(), Misuse::Length);
}

#[test]
fn lengths_texts_and_lists_that_cannot_be_are_refused() {
    let library = Library::of(Symbols::telling_their_places());
    // SAFETY: no function of this table touches anything.
    let register = unsafe { library.buf_register(ptr::null_mut(), usize::MAX, BufferFlags::NONE) };
    let misuse = |result: Result<(), CufileError>| match result {
        Err(CufileError::Refused { misuse, .. }) => misuse,
        other => panic!("{other:?}"),
    };
    assert_eq!(misuse(register), Misuse::Length);
    let text = library.set_string_parameter(StringParameter::LOG_DIR, "a\0b");
    assert_eq!(misuse(text), Misuse::ZeroByte);
    assert_eq!(
        misuse(library.set_posix_pool(&[1, 2], &[1])),
        Misuse::Lengths
    );
    let half = IoVec {
        base: ptr::null_mut(),
        len: usize::MAX / 2 + 1,
    };
    // SAFETY: no function of this table touches anything.
    let vector = unsafe { library.readv(FileHandle::NULL, &[half, half], 0) };
    assert_eq!(misuse(vector.map(drop)), Misuse::Length);
    assert_eq!(CALLED.take(), None);
}

/// Four numbers in a row: a swapped pair would compile.
#[test]
fn a_transfer_arrives_as_it_was_given() {
    thread_local! {
        static GIVEN: Cell<(usize, usize, usize, i64, i64)> = const { Cell::new((0, 0, 0, 0, 0)) };
    }
    extern "C" fn read(
        file: FileHandle,
        base: *mut c_void,
        len: usize,
        at: i64,
        within: i64,
    ) -> isize {
        GIVEN.set((file.as_raw().addr(), base.addr(), len, at, within));
        3
    }
    extern "C" fn write(
        file: FileHandle,
        base: *const c_void,
        len: usize,
        at: i64,
        within: i64,
    ) -> isize {
        GIVEN.set((file.as_raw().addr(), base.addr(), len, at, within));
        4
    }
    let mut symbols = Symbols::telling_their_places();
    symbols.read = read;
    symbols.write = write;
    let library = Library::of(symbols);
    let file = FileHandle::from_raw(ptr::without_provenance_mut(1));
    let what = Transfer {
        base: ptr::without_provenance_mut(2),
        buf_offset: 5,
        file_offset: 4,
        len: 30,
    };
    // SAFETY: the functions of this table touch nothing.
    assert_eq!(unsafe { library.read(file, &what) }, Ok(3));
    assert_eq!(GIVEN.take(), (1, 2, 30, 4, 5));
    // SAFETY: as above.
    assert_eq!(unsafe { library.write(file, &what) }, Ok(4));
    assert_eq!(GIVEN.take(), (1, 2, 30, 4, 5));
}

/// A read that fails by errno, and before it one of another call that is none of its business.
#[test]
fn an_errno_is_that_of_the_call() {
    extern "C" fn sets_none(_: FileHandle, _: *mut c_void, _: usize, _: i64, _: i64) -> isize {
        -1
    }
    extern "C" fn sets_a_code(_: FileHandle, _: *mut c_void, _: usize, _: i64, _: i64) -> isize {
        // SAFETY: only tells where this thread's number is.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: the place is this thread's.
        unsafe { errno.write(5027) };
        -1
    }
    let mut symbols = Symbols::telling_their_places();
    symbols.read = sets_none;
    let library = Library::of(symbols);
    // SAFETY: a file of a name that is not there; sets errno.
    assert_eq!(unsafe { libc::access(c"/nowhere".as_ptr(), 0) }, -1);
    // SAFETY: no function of this table touches anything.
    let error = unsafe { library.read(FileHandle::NULL, &transfer()) }.unwrap_err();
    assert_eq!(error.failure(), Some(Failure::Unexplained));
    let mut symbols = Symbols::telling_their_places();
    symbols.read = sets_a_code;
    let library = Library::of(symbols);
    // SAFETY: as above.
    let error = unsafe { library.read(FileHandle::NULL, &transfer()) }.unwrap_err();
    assert_eq!(error.failure(), Some(Failure::Code(Code(5027))));
    assert!(
        error
            .to_string()
            .starts_with("cuFileRead failed: CU_FILE_HANDLE_NOT_REGISTERED (5027)")
    );
}

#[test]
fn the_cells_of_an_operation_lie_one_after_another_and_are_read_late() {
    thread_local! {
        static TAKEN: Cell<[usize; 4]> = const { Cell::new([0; 4]) };
    }
    extern "C" fn take(
        _: FileHandle,
        _: *mut c_void,
        len: *mut usize,
        file: *mut i64,
        buf: *mut i64,
        done: *mut isize,
        _: Stream,
    ) -> Status {
        TAKEN.set([len.addr(), file.addr(), buf.addr(), done.addr()]);
        // SAFETY: the caller gives a place for one number.
        unsafe { done.write(42) };
        SUCCESS
    }
    let mut symbols = Symbols::telling_their_places();
    symbols.read_async = Some(take);
    let library = Library::of(symbols);
    let mut cells = Cells::new(100, 8, 16).unwrap();
    let cells = &raw mut cells;
    // SAFETY: the cells live.
    assert_eq!(unsafe { Cells::done(cells) }, Cells::NOT_DONE);
    // SAFETY: the function of this table writes one cell only.
    let submitted =
        unsafe { library.read_async(FileHandle::NULL, ptr::null_mut(), cells, Stream::NULL) };
    assert_eq!(submitted, Ok(()));
    let base = cells.addr();
    assert_eq!(TAKEN.get(), [base, base + 8, base + 16, base + 24]);
    // SAFETY: the cells live.
    assert_eq!(unsafe { Cells::done(cells) }, 42);
}
