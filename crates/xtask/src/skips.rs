//! Skipped tests: what was skipped, and whether it may be on this machine.
//!
//! A test that cannot run appends `test<TAB>id<TAB>text` to the file named by [`LOG_VARIABLE`].
//! `ci/expected-skips.toml` says which ids are expected where. Anything else fails the run, since
//! a skip that nobody expects is a test that nobody runs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use toml::{Table, Value};

use crate::{Result, place};

/// The variable that tells tests where to note their skips.
pub(crate) const LOG_VARIABLE: &str = "TOKIO_CUFILE_SKIP_LOG";

/// What tests note that need simulated devices, where there are none.
const NEEDS_SIMULATOR: &str = "needs-simulator";

/// Takes out the tests that did not run because they need simulated devices, and says how many,
/// where they ran on such devices in another step: there, they fail instead of skipping.
pub(crate) fn split_elsewhere(all: BTreeSet<Skip>, simulated: bool) -> (usize, BTreeSet<Skip>) {
    let (elsewhere, rest): (BTreeSet<Skip>, BTreeSet<Skip>) = all
        .into_iter()
        .partition(|skip| simulated && skip.id == NEEDS_SIMULATOR);
    (elsewhere.len(), rest)
}

/// One test that did not run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Skip {
    pub(crate) test: String,
    pub(crate) id: String,
    pub(crate) text: String,
}

/// One rule of the committed list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    id: String,
    when: String,
}

pub(crate) fn log_path() -> PathBuf {
    place::target().join("xtask").join("skips.log")
}

/// Starts an empty log.
pub(crate) fn start_log() -> Result<()> {
    let path = log_path();
    let folder = path.parent().expect("the log lies in a folder");
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(&path, ""))
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// The skips that tests have noted, each test and id once.
pub(crate) fn read_log() -> Result<BTreeSet<Skip>> {
    let path = log_path();
    match fs::read_to_string(&path) {
        Ok(text) => parse_log(&text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

fn parse_log(text: &str) -> Result<BTreeSet<Skip>> {
    let parse = |line: &str| {
        let mut fields = line.splitn(3, '\t').map(str::to_owned);
        let (Some(test), Some(id), Some(text)) = (fields.next(), fields.next(), fields.next())
        else {
            return Err(format!("skip log: `{line}` is not test, id and text"));
        };
        Ok(Skip { test, id, text })
    };
    text.lines().map(parse).collect()
}

pub(crate) fn read_rules(root: &Path) -> Result<Vec<Rule>> {
    let path = root.join("ci/expected-skips.toml");
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    parse_rules(&text).map_err(|error| format!("{}: {error}", path.display()))
}

fn parse_rules(text: &str) -> Result<Vec<Rule>> {
    let table: Table = text.parse().map_err(|error| format!("{error}"))?;
    if let Some(key) = table.keys().find(|key| *key != "skip") {
        return Err(format!("`{key}` is not known, only [[skip]]"));
    }
    let rules = table.get("skip").and_then(Value::as_array);
    rules.map_or_else(|| Ok(Vec::new()), |rules| rules.iter().map(rule).collect())
}

fn rule(value: &Value) -> Result<Rule> {
    let field = |name: &str| match value.get(name).and_then(Value::as_str) {
        Some(text) if !text.trim().is_empty() => Ok(text.to_owned()),
        _ => Err(format!("a [[skip]] lacks `{name}`: {value:?}")),
    };
    field("why")?;
    Ok(Rule {
        id: field("id")?,
        when: field("when")?,
    })
}

/// Whether `condition` holds: facts joined by `and`, each with `not` before it if wanted.
fn holds(condition: &str, facts: &dyn Fn(&str) -> Option<bool>) -> Result<bool> {
    let mut all = true;
    for term in condition.split(" and ") {
        let term = term.trim();
        let (fact, wanted) = match term.strip_prefix("not ") {
            Some(fact) => (fact.trim(), false),
            None => (term, true),
        };
        let is = facts(fact).ok_or_else(|| format!("`{fact}` in `{condition}` is no fact"))?;
        all &= is == wanted;
    }
    Ok(all)
}

/// Says of every skip that is not expected here why it is not.
pub(crate) fn unexpected<'a>(
    skips: impl IntoIterator<Item = &'a Skip>,
    rules: &[Rule],
    facts: &dyn Fn(&str) -> Option<bool>,
) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for skip in skips {
        let rules: Vec<&Rule> = rules.iter().filter(|rule| rule.id == skip.id).collect();
        let mut expected = false;
        for rule in &rules {
            expected |= holds(&rule.when, facts)?;
        }
        if expected {
            continue;
        }
        let why = match rules.as_slice() {
            [] => "no rule of ci/expected-skips.toml has this id".to_owned(),
            rules => {
                let conditions: Vec<&str> = rules.iter().map(|rule| rule.when.as_str()).collect();
                format!("expected only when {}", conditions.join(", or "))
            }
        };
        complaints.push(format!("{}: {}: {why}", skip.test, skip.id));
    }
    Ok(complaints)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = "
        [[skip]]
        id = 'needs-root'
        when = 'not root'
        why = 'mounting'
        [[skip]]
        id = 'needs-both'
        when = 'root and not fuse'
        why = 'an example'
    ";

    fn skip(id: &str) -> Skip {
        Skip {
            test: "faults::disk_full".into(),
            id: id.into(),
            text: "not root".into(),
        }
    }

    fn complaints(id: &str, true_facts: &[&str]) -> Vec<String> {
        let rules = parse_rules(RULES).unwrap();
        let facts = |fact: &str| {
            let known = ["root", "fuse"].contains(&fact);
            known.then(|| true_facts.contains(&fact))
        };
        unexpected([&skip(id)], &rules, &facts).unwrap()
    }

    #[test]
    fn an_expected_skip_passes() {
        assert_eq!(complaints("needs-root", &[]), Vec::<String>::new());
        assert_eq!(complaints("needs-both", &["root"]), Vec::<String>::new());
    }

    #[test]
    fn a_skip_whose_condition_does_not_hold_fails() {
        let found = complaints("needs-root", &["root"]);
        assert_eq!(
            found,
            ["faults::disk_full: needs-root: expected only when not root"]
        );
        assert_eq!(complaints("needs-both", &[]).len(), 1);
        assert_eq!(complaints("needs-both", &["root", "fuse"]).len(), 1);
    }

    #[test]
    fn a_skip_with_an_unknown_id_fails() {
        let found = complaints("needs-luck", &[]);
        assert!(found[0].contains("no rule"), "{found:?}");
    }

    #[test]
    fn what_ran_on_simulated_devices_was_not_skipped() {
        let noted = || BTreeSet::from([skip("needs-simulator"), skip("needs-root")]);
        let (elsewhere, rest) = split_elsewhere(noted(), true);
        assert_eq!((elsewhere, rest), (1, BTreeSet::from([skip("needs-root")])));
        let (elsewhere, rest) = split_elsewhere(noted(), false);
        assert_eq!((elsewhere, rest), (0, noted()));
    }

    #[test]
    fn a_condition_on_an_unknown_fact_is_an_error() {
        assert!(holds("not rot", &|_| None).is_err());
    }

    #[test]
    fn a_rule_without_a_reason_is_refused() {
        assert!(parse_rules("[[skip]]\nid = 'a'\nwhen = 'root'").is_err());
        assert!(parse_rules("[[skip]]\nid = 'a'\nwhen = 'root'\nwhy = ''").is_err());
        assert!(parse_rules("[[skips]]\nid = 'a'").is_err());
    }

    #[test]
    fn the_log_is_read_and_a_repeated_skip_counts_once() {
        let log = "a::b\tneeds-root\tnot root\na::b\tneeds-root\tnot root\nc\tx\ttext\twith tab\n";
        let skips = parse_log(log).unwrap();
        assert_eq!(skips.len(), 2);
        assert!(skips.iter().any(|skip| skip.text == "text\twith tab"));
        assert!(parse_log("a line that is no skip\n").is_err());
    }

    #[test]
    fn the_committed_list_names_known_facts_only() {
        let rules = read_rules(&place::root()).unwrap();
        assert!(!rules.is_empty());
        for rule in rules {
            holds(&rule.when, &crate::report::facts_of(true)).unwrap();
        }
    }
}
