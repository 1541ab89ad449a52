//! Every package takes part in the workspace's lints, if it is one of the workspace's.

use toml::{Table, Value};

use super::{File, Findings};

pub(super) fn check(files: &[File], findings: &mut Findings) {
    let manifests = files
        .iter()
        .filter(|file| file.path.rsplit('/').next() == Some("Cargo.toml"));
    for file in manifests {
        match file.text.parse::<Table>() {
            Err(error) => findings.errors.push(format!("{}: {error}", file.path)),
            // What is a workspace of its own inherits nothing.
            Ok(manifest)
                if manifest.contains_key("package")
                    && !manifest.contains_key("workspace")
                    && !has_lints(&manifest) =>
            {
                let error = format!("{} lacks `lints.workspace = true`", file.path);
                findings.errors.push(error);
            }
            Ok(_) => {}
        }
    }
}

fn has_lints(manifest: &Table) -> bool {
    let lints = manifest
        .get("lints")
        .and_then(|lints| lints.get("workspace"));
    lints.and_then(Value::as_bool) == Some(true)
}

#[cfg(test)]
mod tests {
    use super::super::tests::file;
    use super::*;

    #[test]
    fn a_package_without_the_lints_is_found() {
        let files = [
            file("Cargo.toml", "[workspace]"),
            file(
                "crates/a/Cargo.toml",
                "[package]\n[lints]\nworkspace = true",
            ),
            file("crates/b/Cargo.toml", "[package]\n"),
            file("tests/c/Cargo.toml", "[package]\n[workspace]\n"),
        ];
        let mut findings = Findings::default();
        check(&files, &mut findings);
        assert_eq!(
            findings.errors,
            ["crates/b/Cargo.toml lacks `lints.workspace = true`"]
        );
    }
}
