//! What was typed on the command line.

use crate::Result;

pub(crate) const USAGE: &str = "\
Usage: cargo xtask COMMAND

Commands:
  test [--no-models | --only GROUP]...   run the tests
       GROUP: tests   unit and integration tests of the workspace
              doc     examples in the documentation
              loom    models of `completion`, every interleaving within bounds
              shuttle `completion` as a whole, random schedules
              miri    tests of `completion` under miri, where a nightly has it
       --no-models    tests and doc only
       --only         only this group; may be repeated
  tidy     check the tree: sizes, unsafe inventory, links, licences
  ci       what CI runs: format, lints, documentation, tidy, tests
  help     this text";

/// A group of tests that can be chosen with `--only`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    Tests,
    Doc,
    Loom,
    Shuttle,
    Miri,
}

impl Group {
    pub(crate) const ALL: [Self; 5] = [
        Self::Tests,
        Self::Doc,
        Self::Loom,
        Self::Shuttle,
        Self::Miri,
    ];

    fn parse(name: &str) -> Result<Self> {
        match name {
            "tests" => Ok(Self::Tests),
            "doc" => Ok(Self::Doc),
            "loom" => Ok(Self::Loom),
            "shuttle" => Ok(Self::Shuttle),
            "miri" => Ok(Self::Miri),
            other => Err(format!("no test group is called `{other}`")),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Test(Vec<Group>),
    Tidy,
    Ci,
    Help,
}

pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> Result<Command> {
    let Some(name) = args.next() else {
        return Err("a command is needed".into());
    };
    let command = match name.as_str() {
        "test" => return parse_test(args).map(Command::Test),
        "tidy" => Command::Tidy,
        "ci" => Command::Ci,
        "help" | "--help" | "-h" => Command::Help,
        other => return Err(format!("no command is called `{other}`")),
    };
    match args.next() {
        Some(extra) => Err(format!("`{name}` takes no argument, got `{extra}`")),
        None => Ok(command),
    }
}

fn parse_test(mut args: impl Iterator<Item = String>) -> Result<Vec<Group>> {
    let mut chosen = Vec::new();
    let mut no_models = false;
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--no-models" => no_models = true,
            "--only" => {
                let name = args.next().ok_or("--only needs the name of a group")?;
                chosen.push(Group::parse(&name)?);
            }
            other => return Err(format!("`test` does not know `{other}`")),
        }
    }
    match (no_models, chosen.is_empty()) {
        (true, false) => Err("--no-models and --only exclude each other".into()),
        (true, true) => Ok(vec![Group::Tests, Group::Doc]),
        (false, true) => Ok(Group::ALL.to_vec()),
        (false, false) => Ok(chosen),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn test_runs_every_group_unless_told_otherwise() {
        assert_eq!(parsed("test"), Ok(Command::Test(Group::ALL.to_vec())));
        assert_eq!(
            parsed("test --no-models"),
            Ok(Command::Test(vec![Group::Tests, Group::Doc]))
        );
        assert_eq!(
            parsed("test --only loom --only miri"),
            Ok(Command::Test(vec![Group::Loom, Group::Miri]))
        );
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for line in [
            "",
            "tset",
            "test --only",
            "test --only lom",
            "test --no-models --only loom",
            "test quickly",
            "tidy now",
        ] {
            assert!(parsed(line).is_err(), "`{line}` was accepted");
        }
    }
}
