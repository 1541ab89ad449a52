//! DURATION: a time span as people type it.

use std::time::Duration;

/// Takes `500ms`, `2s`, `1m`, `1h`. A number without a unit is refused: it reads as seconds to
/// some and as milliseconds to others.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|char: char| char.is_ascii_alphabetic());
    let unit_ms = match &text[digits.len()..] {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err("use a whole number of ms, s, m or h, such as 500ms".into()),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("use a whole number of ms, s, m or h, such as 500ms".into());
    }
    digits
        .parse::<u64>()
        .ok()
        .and_then(|count| count.checked_mul(unit_ms))
        .map(Duration::from_millis)
        .ok_or_else(|| "too long".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_whole_numbers_with_a_unit() {
        assert_eq!(parse("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse("2s"), Ok(Duration::from_secs(2)));
        assert_eq!(parse("1m"), Ok(Duration::from_secs(60)));
        assert_eq!(parse("1h"), Ok(Duration::from_secs(3600)));
        assert_eq!(parse("0s"), Ok(Duration::ZERO));
    }

    #[test]
    fn refuses_everything_else() {
        for text in [
            "",
            "5",
            "ms",
            "1.5s",
            "-1s",
            "1 s",
            "1S",
            "1d",
            "5m30s",
            "99999999999999999h",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }
}
