//! Relative links in Markdown lead to something.

use std::path::Path;

use super::{File, Findings};

pub(super) fn check(root: &Path, files: &[File], findings: &mut Findings) {
    for file in files.iter().filter(|file| file.is_markdown()) {
        let folder = root.join(&file.path);
        let folder = folder.parent().unwrap_or(root);
        for target in relative_targets(&file.text) {
            if !folder.join(target).exists() {
                let error = format!("{}: the link to `{target}` leads nowhere", file.path);
                findings.errors.push(error);
            }
        }
    }
}

/// Targets of `[text](target)` and of `[label]: target`, without anchors, outside code.
fn relative_targets(text: &str) -> Vec<&str> {
    let mut targets = Vec::new();
    let mut in_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
            continue;
        }
        if in_code {
            continue;
        }
        let inline = line
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next());
        let reference = line
            .strip_prefix('[')
            .and_then(|rest| rest.split_once("]: "))
            .map(|(_, target)| target);
        targets.extend(inline.chain(reference).filter_map(relative));
    }
    targets
}

fn relative(target: &str) -> Option<&str> {
    let path = target.split_whitespace().next()?;
    let path = path.split('#').next()?;
    let external = path.contains("://") || path.starts_with("mailto:");
    (!external && !path.is_empty()).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_links_are_found_and_others_are_not() {
        let text = "See [a](docs/a.md#part) and [b](../b.md \"title\"), [c](https://c.org), [d](#d).\n\
                    ```\n[e](e.md)\n```\n[f]: f.md\n";
        assert_eq!(relative_targets(text), ["docs/a.md", "../b.md", "f.md"]);
    }

    #[test]
    fn a_broken_link_is_an_error() {
        let root = crate::place::root();
        let text = "[a](Cargo.toml) [b](no-such-file.md)";
        let files = [super::super::tests::file("README.md", text)];
        let mut findings = Findings::default();
        check(&root, &files, &mut findings);
        assert_eq!(findings.errors.len(), 1, "{findings:?}");
    }
}
