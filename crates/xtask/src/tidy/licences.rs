//! Dependencies are under licences of `deny.toml` and from the public registry.
//!
//! cargo-deny does this more thoroughly, but it is not there on every machine.

use toml::{Table, Value};

use super::{File, Findings};
use crate::{Result, process};

pub(super) fn check(files: &[File], findings: &mut Findings) -> Result<()> {
    let text_of = |path: &str| {
        let file = files.iter().find(|file| file.path == path);
        file.map(|file| file.text.as_str())
            .ok_or_else(|| format!("{path} is missing"))
    };
    let allowed = allowed(text_of("deny.toml")?)?;
    for lock in files.iter().filter(|file| file.is_lock()) {
        check_sources(lock, findings);
    }
    for (package, licence) in packages()? {
        if !is_allowed(&licence, &allowed) {
            let error = format!("{package}: licence `{licence}` is not allowed by deny.toml");
            findings.errors.push(error);
        }
    }
    Ok(())
}

fn allowed(deny: &str) -> Result<Vec<String>> {
    let table: Table = deny
        .parse()
        .map_err(|error| format!("deny.toml: {error}"))?;
    let list = table.get("licenses").and_then(|part| part.get("allow"));
    let list = list
        .and_then(Value::as_array)
        .ok_or("deny.toml lacks licenses.allow")?;
    let names = list.iter().filter_map(Value::as_str);
    Ok(names.map(str::to_owned).collect())
}

fn check_sources(lock: &File, findings: &mut Findings) {
    let sources = lock
        .text
        .lines()
        .filter(|line| line.starts_with("source = "));
    for line in sources.filter(|line| !line.starts_with("source = \"registry+")) {
        let error = format!("{}: not from the registry: {line}", lock.path);
        findings.errors.push(error);
    }
}

/// Every package of the workspace's tree, on every platform, with its licence.
fn packages() -> Result<Vec<(String, String)>> {
    let args =
        "tree --locked --workspace --all-features --target all --prefix none --format {p}\t{l}";
    let args: Vec<&str> = args.split(' ').collect();
    let output = process::cargo(&args)
        .output()
        .map_err(|error| format!("cargo tree: {error}"))?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo tree: {}", message.trim()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let mut packages: Vec<(String, String)> = text
        .lines()
        // A package already listed is repeated with this mark.
        .filter(|line| !line.ends_with("(*)"))
        .filter_map(|line| line.split_once('\t'))
        .map(|(package, licence)| (package.to_owned(), licence.to_owned()))
        .collect();
    packages.sort();
    packages.dedup();
    Ok(packages)
}

/// Whether an SPDX expression can be met: `AND` binds stronger than `OR`.
fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    let plain = expression.replace('/', " OR ");
    if let Some(inner) = outer_parts(&plain, " OR ") {
        return inner.iter().any(|part| is_allowed(part, allowed));
    }
    if let Some(inner) = outer_parts(&plain, " AND ") {
        return inner.iter().all(|part| is_allowed(part, allowed));
    }
    let name = plain.trim();
    match name
        .strip_prefix('(')
        .and_then(|name| name.strip_suffix(')'))
    {
        Some(inner) => is_allowed(inner, allowed),
        None => allowed.iter().any(|licence| licence == name),
    }
}

/// The parts between separators outside parentheses; `None` if there is no such separator.
fn outer_parts<'a>(text: &'a str, separator: &str) -> Option<Vec<&'a str>> {
    let mut depth = 0usize;
    let mut parts = Vec::new();
    let mut start = 0;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ if depth == 0 && at >= start && text[at..].starts_with(separator) => {
                parts.push(&text[start..at]);
                start = at + separator.len();
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    (parts.len() > 1).then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licence_expressions_are_judged() {
        let allowed = ["MIT".to_owned(), "Unicode-3.0".to_owned()];
        for (expression, expected) in [
            ("MIT", true),
            ("Apache-2.0 OR MIT", true),
            ("Apache-2.0/MIT", true),
            ("GPL-3.0-only", false),
            ("MIT AND GPL-3.0-only", false),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("(GPL-2.0 OR Apache-2.0) AND Unicode-3.0", false),
            ("", false),
        ] {
            assert_eq!(is_allowed(expression, &allowed), expected, "{expression}");
        }
    }

    #[test]
    fn sources_other_than_the_registry_are_found() {
        let mut findings = Findings::default();
        let lock = "source = \"registry+https://a\"\nsource = \"git+https://b\"\n";
        check_sources(
            &super::super::tests::file("Cargo.lock", lock),
            &mut findings,
        );
        assert_eq!(findings.errors.len(), 1, "{findings:?}");
    }
}
