//! Rust source without comments and texts, so that words can be searched in code alone.

/// Replaces comments, string and character literals by spaces. Lines are kept.
pub(super) fn code_only(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    let mut before = ' ';
    while let Some(first) = rest.chars().next() {
        let blank = blank_len(rest, before);
        let (taken, tail) = rest.split_at(blank.unwrap_or_else(|| first.len_utf8()));
        if blank.is_some() {
            code.extend(taken.chars().map(|c| if c == '\n' { c } else { ' ' }));
        } else {
            code.push_str(taken);
        }
        before = first;
        rest = tail;
    }
    code
}

/// The length of the comment or literal that `text` starts with.
fn blank_len(text: &str, before: char) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if text.starts_with("/*") {
        return Some(block_comment_len(text));
    }
    if text.starts_with('"') {
        return Some(string_len(text));
    }
    if text.starts_with('\'') {
        return char_len(text);
    }
    // An `r` inside a word starts no raw string, but the one of `br"..."` does.
    let in_word = (before.is_alphanumeric() || before == '_') && before != 'b';
    if in_word { None } else { raw_string_len(text) }
}

fn block_comment_len(text: &str) -> usize {
    let mut depth = 0u32;
    let mut at = 0;
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

fn string_len(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// `None` for a lifetime, which looks like the start of a character.
fn char_len(text: &str) -> Option<usize> {
    let mut chars = text.char_indices().skip(1);
    let (_, first) = chars.next()?;
    if first == '\\' {
        chars.next()?;
        return chars.find(|&(_, c)| c == '\'').map(|(at, _)| at + 1);
    }
    chars
        .next()
        .filter(|&(_, c)| c == '\'')
        .map(|(at, _)| at + 1)
}

fn raw_string_len(text: &str) -> Option<usize> {
    let after = text.strip_prefix('r')?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    let body = after[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    let start = text.len() - body.len();
    let end = body
        .find(&close)
        .map_or(text.len(), |at| start + at + close.len());
    Some(end)
}

/// Whether `word` stands in `code` as a word of its own.
pub(super) fn has_word(code: &str, word: &str) -> bool {
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        !before.is_some_and(in_word) && !after.is_some_and(in_word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_in_comments_and_texts_do_not_count() {
        for source in [
            "// unsafe\nfn a() {}",
            "/* /* unsafe */ unsafe */ fn a() {}",
            "const A: &str = \"unsafe \\\" unsafe\";",
            "const A: &str = r#\"unsafe \" unsafe\"#;",
            "const A: &[u8] = br\"unsafe\";",
            "#![allow(unsafe_code)]",
            "const A: char = '\"'; // unsafe \"",
        ] {
            assert!(!has_word(&code_only(source), "unsafe"), "{source}");
        }
    }

    #[test]
    fn words_in_code_count() {
        for source in [
            "const A: char = '\"'; unsafe { b() } // \"",
            "fn a<'a>(b: &'a str) { unsafe { c(b) } }",
            "const A: char = '\\''; unsafe impl Send for B {}",
            "let a = b'\"'; unsafe { c() }",
            "const A: &str = r\"\\\"; unsafe { c() }",
            "/* a */ unsafe fn d() {}",
        ] {
            assert!(has_word(&code_only(source), "unsafe"), "{source}");
        }
    }

    #[test]
    fn lines_stay_where_they_are() {
        let source = "a\n/* b\nc */\n\"d\ne\"\nf";
        assert_eq!(code_only(source).lines().count(), source.lines().count());
    }
}
