//! SIZE: bytes as people type them.

/// Powers of 1024 only: `KB` means 1000 to some and 1024 to others, and a size that is off by a
/// few per cent is worse than a refusal.
const UNITS: [(&str, u32); 6] = [
    ("KiB", 10),
    ("MiB", 20),
    ("GiB", 30),
    ("TiB", 40),
    ("PiB", 50),
    ("B", 0),
];

/// Takes `4096`, `4096B`, `64KiB`, `1GiB`.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let (digits, shift) = UNITS
        .iter()
        .find_map(|&(unit, shift)| Some((text.strip_suffix(unit)?, shift)))
        .unwrap_or((text, 0));
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(
            "use a whole number of bytes, or of KiB, MiB, GiB, TiB, PiB (powers of 1024)".into(),
        );
    }
    digits
        .parse::<u64>()
        .ok()
        .and_then(|count| count.checked_mul(1 << shift))
        .ok_or_else(|| "more than 2^64 - 1 bytes".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_bytes_and_binary_units() {
        assert_eq!(parse("0"), Ok(0));
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("4096B"), Ok(4096));
        assert_eq!(parse("64KiB"), Ok(64 << 10));
        assert_eq!(parse("3MiB"), Ok(3 << 20));
        assert_eq!(parse("1GiB"), Ok(1 << 30));
        assert_eq!(parse("2TiB"), Ok(2 << 40));
        assert_eq!(parse("18446744073709551615"), Ok(u64::MAX));
    }

    #[test]
    fn refuses_what_has_two_meanings() {
        for text in [
            "", "B", "KiB", "1KB", "1K", "1k", "1.5GiB", "-1", "+1", " 1", "1 KiB", "1_000",
            "0x10", "1KiBB",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn refuses_more_than_64_bits() {
        assert!(parse("18446744073709551616").is_err());
        assert!(parse("16384PiB").is_err());
        assert_eq!(parse("16383PiB"), Ok(16383 << 50));
    }
}
