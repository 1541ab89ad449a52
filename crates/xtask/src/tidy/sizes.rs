//! Files stay short. The length of functions is clippy's business.

use super::{File, Findings};

const LINES_WARN: usize = 500;
const LINES_MAX: usize = 800;

pub(super) fn check(files: &[File], findings: &mut Findings) {
    for file in files.iter().filter(|file| file.is_rust()) {
        let lines = file.text.lines().count();
        let finding = format!("{} has {lines} lines", file.path);
        if lines > LINES_MAX {
            let error = format!("{finding}, at most {LINES_MAX} are allowed");
            findings.errors.push(error);
        } else if lines > LINES_WARN {
            findings
                .warnings
                .push(format!("{finding}, aim for {LINES_WARN}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::file;
    use super::*;

    #[test]
    fn long_files_warn_and_longer_ones_fail() {
        let of = |lines: usize| {
            let mut findings = Findings::default();
            check(&[file("a.rs", &"\n".repeat(lines))], &mut findings);
            (findings.errors.len(), findings.warnings.len())
        };
        assert_eq!(of(500), (0, 0));
        assert_eq!(of(501), (0, 1));
        assert_eq!(of(800), (0, 1));
        assert_eq!(of(801), (1, 0));
    }
}
