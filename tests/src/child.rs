//! Tests that need a process of their own: with other limits, another user, or traced.
//!
//! Such a test starts its own program again, with itself as the only test and a variable that
//! tells it to do the real work.
#![allow(
    clippy::disallowed_methods,
    reason = "a variable tells a child apart from its parent"
)]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs, thread};

const VARIABLE: &str = "TOKIO_CUFILE_TEST_CHILD";

/// In a child: the directory it was given to work in.
#[must_use]
pub fn directory() -> Option<PathBuf> {
    env::var_os(VARIABLE).map(PathBuf::from)
}

/// How to start a child.
#[derive(Debug)]
pub struct Child {
    command: Command,
}

impl Child {
    /// The calling test's program, through `prefix` (`["strace", "-f"]`), in `directory`.
    ///
    /// # Panics
    ///
    /// When the program cannot be found, or the test's name is not known.
    pub fn new<S: AsRef<OsStr>>(prefix: &[S], directory: &Path) -> Self {
        let program = env::current_exe().expect("the test's own program");
        Self::of(prefix, directory, &program)
    }

    /// As an ordinary user, who can read neither the build folder nor root's home perhaps: the
    /// program is copied into `directory`, which is opened to everybody.
    ///
    /// # Panics
    ///
    /// As [`new`](Self::new), and when the program cannot be copied.
    pub fn as_nobody(directory: &Path) -> Self {
        let program = directory.join("test-program");
        fs::copy(
            env::current_exe().expect("the test's own program"),
            &program,
        )
        .expect("the program can be copied");
        allow_all(directory);
        allow_all(&program);
        let prefix = [
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
        ];
        Self::of(&prefix, directory, &program)
    }

    fn of<S: AsRef<OsStr>>(prefix: &[S], directory: &Path, program: &Path) -> Self {
        let thread = thread::current();
        let test = thread.name().expect("a test runs in a thread of its name");
        assert_ne!(
            test, "main",
            "run with more than one test thread, or with nextest"
        );
        let mut command = match prefix.split_first() {
            Some((tool, arguments)) => {
                let mut command = Command::new(tool);
                command.args(arguments).arg(program);
                command
            }
            None => Command::new(program),
        };
        command.args([test, "--exact", "--nocapture"]);
        command.env(VARIABLE, directory).env_remove("NEXTEST");
        Self { command }
    }

    /// With another value of a variable.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Without a variable.
    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    /// In that current folder.
    #[must_use]
    pub fn within(mut self, folder: &Path) -> Self {
        self.command.current_dir(folder);
        self
    }

    /// Waits for the child.
    ///
    /// # Panics
    ///
    /// When it fails, with what it said; also when it ran no test.
    pub fn run(mut self) -> String {
        let output = self.command.output().expect("the child can be started");
        let said = text(&output);
        assert!(output.status.success(), "{:?}: {said}", self.command);
        assert!(said.contains("1 passed"), "{:?}: {said}", self.command);
        said
    }
}

fn text(output: &Output) -> String {
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    text
}

fn allow_all(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("our own file");
}
