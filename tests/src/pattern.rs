//! File contents in which every shift, swap and repetition shows.

/// `len` bytes that differ from those of another seed, and at whatever distance from themselves.
#[must_use]
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let words = (0..).flat_map(|index| mix(seed ^ (index << 8)).to_le_bytes());
    words.take(len).collect()
}

/// The mixing step of SplitMix64.
const fn mix(seed: u64) -> u64 {
    let mut word = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Fails at the first byte that differs, instead of printing both sides.
///
/// # Panics
///
/// When the bytes differ.
#[track_caller]
pub fn assert_same(found: &[u8], expected: &[u8]) {
    let first = found.iter().zip(expected).position(|(one, two)| one != two);
    if let Some(at) = first {
        let differing = found.iter().zip(expected).filter(|(one, two)| one != two);
        let (one, two, count) = (found[at], expected[at], differing.count());
        panic!("byte {at} is {one:#04x} and should be {two:#04x}; {count} bytes differ");
    }
    assert_eq!(found.len(), expected.len(), "bytes in all");
}

/// Fails at the first byte that is neither the old nor the new one: of bytes that somebody was
/// changing, and may not have changed.
///
/// # Panics
///
/// When there is such a byte.
#[track_caller]
pub fn assert_either(found: &[u8], old: &[u8], new: &[u8]) {
    assert_eq!(
        (old.len(), new.len()),
        (found.len(), found.len()),
        "bytes in all"
    );
    let known = found.iter().zip(old.iter().zip(new));
    let stranger = known
        .into_iter()
        .position(|(is, (old, new))| is != old && is != new);
    if let Some(at) = stranger {
        let [is, old, new] = [found, old, new].map(|bytes| bytes[at]);
        panic!("byte {at} is {is:#04x}, and was {old:#04x} or is to be {new:#04x}");
    }
}
