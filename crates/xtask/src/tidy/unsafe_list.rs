//! `docs/UNSAFE.md` and the sources agree on where unsafe code is.

use std::collections::BTreeSet;

use super::code::{code_only, has_word};
use super::{File, Findings};

const INVENTORY: &str = "docs/UNSAFE.md";
/// File, what, why, how it is tested.
const COLUMNS: usize = 4;

pub(super) fn check(files: &[File], findings: &mut Findings) {
    let Some(inventory) = files.iter().find(|file| file.path == INVENTORY) else {
        findings.errors.push(format!("{INVENTORY} is missing"));
        return;
    };
    let listed = listed_files(&inventory.text, findings);
    let found: BTreeSet<&str> = files
        .iter()
        .filter(|file| file.is_rust() && has_word(&code_only(&file.text), "unsafe"))
        .map(|file| file.path.as_str())
        .collect();
    for path in &found {
        if !listed.contains(path) {
            let error = format!("{path} has unsafe code, but {INVENTORY} does not list it");
            findings.errors.push(error);
        }
    }
    for path in listed {
        if !found.contains(path) {
            let error = format!("{INVENTORY} lists {path}, which has no unsafe code");
            findings.errors.push(error);
        }
    }
}

/// The files of the table: rows whose first cell is a path in backticks.
fn listed_files<'a>(text: &'a str, findings: &mut Findings) -> BTreeSet<&'a str> {
    let mut listed = BTreeSet::new();
    for line in text.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim().trim_matches('|').split('|').collect();
        if cells.len() != COLUMNS || cells.iter().any(|cell| cell.trim().is_empty()) {
            let error = format!("{INVENTORY}: {COLUMNS} filled cells are needed: {line}");
            findings.errors.push(error);
        }
        let path = cells[0].trim().trim_matches('`');
        if !listed.insert(path) {
            let error = format!("{INVENTORY} lists {path} twice");
            findings.errors.push(error);
        }
    }
    listed
}

#[cfg(test)]
mod tests {
    use super::super::tests::file;
    use super::*;

    fn errors(rows: &str, source: &str) -> Vec<String> {
        let table = format!("| file | what | why | tested by |\n|---|---|---|---|\n{rows}");
        let files = [file(INVENTORY, &table), file("crates/a/src/b.rs", source)];
        let mut findings = Findings::default();
        check(&files, &mut findings);
        findings.errors
    }

    const ROW: &str = "| `crates/a/src/b.rs` | mmap | no kept crate wraps it | miri |\n";

    #[test]
    fn the_list_and_the_sources_agree() {
        assert_eq!(errors(ROW, "unsafe { c() }"), Vec::<String>::new());
        assert_eq!(errors("", "fn c() {} // unsafe"), Vec::<String>::new());
    }

    #[test]
    fn unlisted_unsafe_code_is_found() {
        assert!(errors("", "unsafe { c() }")[0].contains("does not list it"));
    }

    #[test]
    fn a_listed_file_without_unsafe_code_is_found() {
        assert!(errors(ROW, "fn c() {}")[0].contains("no unsafe code"));
    }

    #[test]
    fn incomplete_and_repeated_rows_are_found() {
        let unsafe_code = "unsafe { c() }";
        let empty = "| `crates/a/src/b.rs` | mmap | | miri |\n";
        assert!(errors(empty, unsafe_code)[0].contains("filled cells"));
        assert!(errors(&ROW.repeat(2), unsafe_code)[0].contains("twice"));
    }
}
