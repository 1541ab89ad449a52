//! Words that do not belong in the tree.

use super::{File, Findings};

/// Pieces are joined at compile time, so that this file does not find itself.
const ANYWHERE: [(&str, &str); 4] = [
    (concat!("/wo", "rk/"), "a path of one machine"),
    (concat!("/ro", "ot/"), "a path of one machine"),
    (
        concat!("iss", "ue #"),
        "say what is meant, numbers mean nothing to a reader",
    ),
    (concat!("FIX", "ME"), "finish it or describe it as a limit"),
];

/// Clippy denies these in what it compiles; cfgs and examples in comments escape it.
const IN_RUST: [(&str, &str); 2] = [
    (concat!("to", "do!("), "finish it"),
    (concat!("unimple", "mented!("), "finish it"),
];

pub(super) fn check(files: &[File], findings: &mut Findings) {
    for file in files {
        // Generated; its package names are not ours to choose.
        if file.is_lock() {
            continue;
        }
        let rust = IN_RUST.iter().filter(|_| file.is_rust());
        let words: Vec<_> = ANYWHERE.iter().chain(rust).collect();
        for (index, line) in file.text.lines().enumerate() {
            for (word, why) in &words {
                if contains_ignoring_case(line, word) {
                    let (path, number) = (&file.path, index + 1);
                    let error = format!("{path}:{number}: `{word}`: {why}");
                    findings.errors.push(error);
                }
            }
        }
    }
}

fn contains_ignoring_case(line: &str, word: &str) -> bool {
    line.as_bytes()
        .windows(word.len())
        .any(|window| window.eq_ignore_ascii_case(word.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::super::tests::file;
    use super::*;

    #[test]
    fn forbidden_words_are_found_with_their_line() {
        let mut findings = Findings::default();
        let text = format!("fine\nsee {}12\n", ANYWHERE[2].0.to_uppercase());
        check(&[file("docs/a.md", &text)], &mut findings);
        assert_eq!(findings.errors.len(), 1);
        assert!(findings.errors[0].starts_with("docs/a.md:2:"));
    }

    #[test]
    fn unfinished_rust_is_found() {
        let text = format!("fn a() {{ {}) }}", IN_RUST[0].0);
        let mut findings = Findings::default();
        check(&[file("a.rs", &text), file("a.md", &text)], &mut findings);
        assert_eq!(findings.errors.len(), 1, "{findings:?}");
    }
}
