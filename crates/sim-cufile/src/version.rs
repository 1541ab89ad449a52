//! Which version is simulated. It is part of the file: `xtask::simulator` makes a copy for each
//! version, in which the loader does not find what came later.

/// The digits are replaced in the file of another version.
#[used]
static MARK: [u8; 26] = *b"SIMULATED-LIBCUFILE=1200;\0";

const DIGITS: std::ops::Range<usize> = 20..24;

/// 1150 for 1.15.
pub(crate) fn number() -> i32 {
    // Read from the file, and not known to the compiler.
    let mark = std::hint::black_box(&MARK);
    let digits = mark[DIGITS].iter();
    digits.fold(0, |number, digit| {
        10 * number + i32::from(digit.wrapping_sub(b'0') % 10)
    })
}
