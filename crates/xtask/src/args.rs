//! What was typed on the command line.

use crate::Result;
use crate::sanitize::Sanitizer;

pub(crate) const USAGE: &str = "\
Usage: cargo xtask COMMAND

Commands:
  test [--no-models | --only GROUP]...   run the tests
       GROUP: tests   unit and integration tests of the workspace
              sim     those that use devices, again, on simulated GPUs
              interop the feature `cudarc`, with each version of cudarc, on simulated GPUs
              doc     examples in the documentation
              loom    models of `completion`, every interleaving within bounds
              shuttle `completion` as a whole, random schedules
              miri    tests of `completion` under miri, where a nightly has it
              tsan    its threads under the thread sanitizer, where a nightly has sources
              stress  random operations under faults, shutdowns, and their controls
       --no-models    tests, sim, interop and doc only
       --only         only this group; may be repeated
  sim [OPTION VALUE]... -- PROGRAM [ARGUMENT]...
           run a program with simulated GPUs and libcufile; `cuf` is the one of this workspace
       --devices   how many, 2 unless said
       --seed      chooses delays and the order across streams
       --faults    what goes wrong: the head of crates/sim-cuda has the grammar
       --without   a driver, or a libcufile, that lacks this function
       --cufile    the version of libcufile, 1.20 unless said
       --cufile-faults   what goes wrong there: the head of crates/sim-cufile has the grammar
       --cufile-path     how its bytes go: posix unless said, nvidia-fs, p2pdma. Programs that take
                         their settings from the environment expect that as well
  sanitize address|leak|thread [WORD]...
           the integration tests under a sanitizer of the nightly compiler, also on simulated
           GPUs; the words go to nextest, `--test NAME` among them chooses files
  stress [--ops N] [--seconds T] [--seed S] [--backend model|compat|pool|cufile|cufile-streams]
         [--device host|sim|cuda] [--faults all|none|LIST] [--shutdown-rounds N] [--broken NAME|all]
           random operations whose futures are dropped at any point; docs/reliability.md
  tidy     check the tree: sizes, unsafe inventory, links, licences
  ci       what CI runs: format, lints, documentation, tidy, tests
  help     this text";

/// A group of tests that can be chosen with `--only`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    Tests,
    Sim,
    Interop,
    Doc,
    Loom,
    Shuttle,
    Miri,
    Tsan,
    Stress,
}

impl Group {
    pub(crate) const ALL: [Self; 9] = [
        Self::Tests,
        Self::Sim,
        Self::Interop,
        Self::Doc,
        Self::Loom,
        Self::Shuttle,
        Self::Miri,
        Self::Tsan,
        Self::Stress,
    ];

    /// What `--no-models` leaves.
    const WITHOUT_MODELS: [Self; 4] = [Self::Tests, Self::Sim, Self::Interop, Self::Doc];

    fn parse(name: &str) -> Result<Self> {
        match name {
            "tests" => Ok(Self::Tests),
            "sim" => Ok(Self::Sim),
            "interop" => Ok(Self::Interop),
            "doc" => Ok(Self::Doc),
            "loom" => Ok(Self::Loom),
            "shuttle" => Ok(Self::Shuttle),
            "miri" => Ok(Self::Miri),
            "tsan" => Ok(Self::Tsan),
            "stress" => Ok(Self::Stress),
            other => Err(format!("no test group is called `{other}`")),
        }
    }
}

/// A program to run with simulated GPUs and a simulated libcufile.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Simulated {
    pub(crate) devices: Option<u32>,
    pub(crate) seed: Option<u64>,
    pub(crate) faults: Option<String>,
    pub(crate) without: Option<String>,
    pub(crate) cufile: Option<String>,
    pub(crate) cufile_faults: Option<String>,
    pub(crate) cufile_path: Option<String>,
    /// The program and its arguments, at least one word.
    pub(crate) words: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Test(Vec<Group>),
    Sim(Simulated),
    Sanitize(Sanitizer, Vec<String>),
    /// The words are the program's.
    Stress(Vec<String>),
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
        "sim" => return parse_sim(args).map(Command::Sim),
        "sanitize" => {
            let name = args
                .next()
                .ok_or("`sanitize` needs the name of a sanitizer")?;
            return Ok(Command::Sanitize(Sanitizer::parse(&name)?, args.collect()));
        }
        "stress" => return Ok(Command::Stress(args.collect())),
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
        (true, true) => Ok(Group::WITHOUT_MODELS.to_vec()),
        (false, true) => Ok(Group::ALL.to_vec()),
        (false, false) => Ok(chosen),
    }
}

fn path(value: String) -> Result<String> {
    const KNOWN: [&str; 3] = ["posix", "nvidia-fs", "p2pdma"];
    match KNOWN.contains(&value.as_str()) {
        true => Ok(value),
        false => Err(format!(
            "`{value}` is no path of cuFile's: {}",
            KNOWN.join(", ")
        )),
    }
}

fn parse_sim(mut args: impl Iterator<Item = String>) -> Result<Simulated> {
    let mut sim = Simulated::default();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--devices" => sim.devices = Some(number(&arg, &value()?)?),
            "--seed" => sim.seed = Some(number(&arg, &value()?)?),
            "--faults" => sim.faults = Some(value()?),
            "--without" => sim.without = Some(value()?),
            "--cufile" => sim.cufile = Some(value()?),
            "--cufile-faults" => sim.cufile_faults = Some(value()?),
            "--cufile-path" => sim.cufile_path = Some(path(value()?)?),
            "--" => sim.words.extend(args.by_ref()),
            other if other.starts_with('-') => {
                return Err(format!("`sim` does not know `{other}`"));
            }
            _ => {
                sim.words.push(arg);
                sim.words.extend(args.by_ref());
            }
        }
    }
    if sim.words.is_empty() {
        return Err("`sim` needs a program to run".into());
    }
    Ok(sim)
}

fn number<T: std::str::FromStr>(option: &str, text: &str) -> Result<T> {
    text.parse()
        .map_err(|_| format!("{option} takes a number, not `{text}`"))
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
            Ok(Command::Test(Group::WITHOUT_MODELS.to_vec()))
        );
        assert_eq!(
            parsed("test --only loom --only miri"),
            Ok(Command::Test(vec![Group::Loom, Group::Miri]))
        );
    }

    #[test]
    fn sim_leaves_the_words_of_the_program_alone() {
        let expected = || Simulated {
            devices: Some(3),
            seed: Some(7),
            words: vec!["cuf".into(), "--seed".into(), "--".into()],
            ..Simulated::default()
        };
        for line in [
            "sim --devices 3 --seed 7 -- cuf --seed --",
            "sim --devices 3 --seed 7 cuf --seed --",
        ] {
            assert_eq!(parsed(line), Ok(Command::Sim(expected())), "`{line}`");
        }
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
            "sim",
            "sim --",
            "sim --seed",
            "sim --devices many -- cuf",
            "sim --fast -- cuf",
            "sanitize",
            "sanitize memory",
        ] {
            assert!(parsed(line).is_err(), "`{line}` was accepted");
        }
    }
}
