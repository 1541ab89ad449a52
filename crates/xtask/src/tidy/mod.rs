//! `cargo xtask tidy`: checks of the tree that no lint makes.

mod code;
mod licences;
mod links;
mod manifests;
mod sizes;
mod unsafe_list;
mod words;

use std::fs;
use std::path::Path;

use crate::{Result, place, process};

/// One text file of the tree.
#[derive(Debug)]
struct File {
    /// Relative to the root, with `/`.
    path: String,
    text: String,
}

impl File {
    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// A list of versions that cargo writes.
    fn is_lock(&self) -> bool {
        self.path.rsplit('/').next() == Some("Cargo.lock")
    }

    fn is_markdown(&self) -> bool {
        self.path.ends_with(".md")
    }
}

/// What is wrong, and what only ought to be better.
#[derive(Debug, Default)]
struct Findings {
    errors: Vec<String>,
    warnings: Vec<String>,
}

/// Prints all findings and says whether there was no error.
pub(crate) fn print_findings() -> Result<bool> {
    let findings = find()?;
    for warning in &findings.warnings {
        println!("tidy: warning: {warning}");
    }
    for error in &findings.errors {
        println!("tidy: error: {error}");
    }
    let (errors, warnings) = (findings.errors.len(), findings.warnings.len());
    println!("tidy: {errors} errors, {warnings} warnings");
    Ok(findings.errors.is_empty())
}

/// The same as a step of CI.
pub(crate) fn check() -> Result<()> {
    if print_findings()? {
        Ok(())
    } else {
        Err("the tree is not tidy".into())
    }
}

fn find() -> Result<Findings> {
    let root = place::root();
    let files = read_tree(&root)?;
    let mut findings = Findings::default();
    sizes::check(&files, &mut findings);
    words::check(&files, &mut findings);
    unsafe_list::check(&files, &mut findings);
    links::check(&root, &files, &mut findings);
    manifests::check(&files, &mut findings);
    licences::check(&files, &mut findings)?;
    required_files(&files, &mut findings);
    Ok(findings)
}

/// Tracked files, and new ones that git would not ignore. Files that are no text are left out.
fn read_tree(root: &Path) -> Result<Vec<File>> {
    let args = "ls-files -z --cached --others --exclude-standard";
    let args: Vec<&str> = args.split(' ').collect();
    let listing = process::ask("git", &args).ok_or("`git ls-files` failed")?;
    let mut files = Vec::new();
    for path in listing.split('\0').filter(|path| !path.is_empty()) {
        // A file deleted but not yet committed is still listed.
        let Ok(bytes) = fs::read(root.join(path)) else {
            continue;
        };
        if let Ok(text) = String::from_utf8(bytes) {
            let path = path.to_owned();
            files.push(File { path, text });
        }
    }
    if files.is_empty() {
        return Err("git lists no file".into());
    }
    Ok(files)
}

fn required_files(files: &[File], findings: &mut Findings) {
    let required = [
        ("README.md", "tokio-cufile"),
        ("CHANGELOG.md", "## [Unreleased]"),
        ("CONTRIBUTING.md", "cargo xtask test"),
        ("LICENSE-MIT", "MIT License"),
        ("LICENSE-APACHE", "Apache License"),
    ];
    for (path, content) in required {
        match files.iter().find(|file| file.path == path) {
            None => findings.errors.push(format!("{path} is missing")),
            Some(file) if !file.text.contains(content) => {
                findings.errors.push(format!("{path} lacks `{content}`"));
            }
            Some(_) => {}
        }
    }
    // The lines of the README are compiled because a crate takes them in as its documentation.
    let included = files
        .iter()
        .any(|file| file.is_rust() && file.text.contains("include_str!(\"../../../README.md\")"));
    if !included {
        let error = "no crate includes README.md as documentation, so its code is not tested";
        findings.errors.push(error.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn file(path: &str, text: &str) -> File {
        File {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn a_missing_file_and_an_untested_readme_are_found() {
        let mut findings = Findings::default();
        required_files(
            &[file("README.md", "tokio-cufile"), file("CHANGELOG.md", "")],
            &mut findings,
        );
        let errors = findings.errors.join("\n");
        assert!(errors.contains("LICENSE-MIT is missing"), "{errors}");
        assert!(errors.contains("CHANGELOG.md lacks"), "{errors}");
        assert!(errors.contains("no crate includes README.md"), "{errors}");
        assert!(!errors.contains("README.md is missing"), "{errors}");
    }
}
