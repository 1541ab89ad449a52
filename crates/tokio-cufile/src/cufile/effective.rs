//! Which settings of libcufile are in force, and where each came from.

use std::path::PathBuf;

use nvidia_dl::cufile::{BoolParameter, Library, SizeParameter, StringParameter};

use super::given::{CuFileSource, Given, is_on};

/// One setting of libcufile.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CuFileSetting {
    /// Its key in `cufile.json`, with the section in front.
    pub key: &'static str,
    /// What is in force, as the library says it.
    pub value: String,
    /// Where it came from.
    pub source: CuFileSource,
}

/// The process's libcufile, as it is open.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CuFileInfo {
    /// The file that it was loaded from.
    pub library: PathBuf,
    /// Its version, such as `1.20`; `None` before 1.8.
    pub version: Option<String>,
    /// The version of nvidia-fs, where there is one.
    pub nvidia_fs: Option<String>,
    /// Why GPUDirect Storage is not to be expected; `None` where it is.
    pub not_direct: Option<String>,
    /// Why the path of a request cannot be told afterwards; `None` where it can.
    pub not_told: Option<String>,
    /// Why no operation can be put into a stream; `None` where it can.
    pub not_streamed: Option<String>,
    /// The `cufile.json` in force.
    pub config_file: Option<PathBuf>,
    /// What does not fit together, and what to mind.
    pub notes: Vec<String>,
    /// What is in force, from 1.14 on: before, the library does not tell.
    pub settings: Vec<CuFileSetting>,
}

/// A parameter that an engine has set.
pub(super) type Set = (&'static str, String);

/// What is in force of everything that the library tells.
pub(super) fn settings(library: &Library, given: &Given, ours: &[Set]) -> Vec<CuFileSetting> {
    let sizes = SizeParameter::ALL.iter().filter_map(|&parameter| {
        let value = library.size_parameter(parameter).ok()?;
        let value = match library.stats_level() {
            // As a parameter it is what the file says, whatever was set since (measured).
            Ok(level) if parameter == SizeParameter::PROFILE_STATS => level.0.to_string(),
            _ => value.to_string(),
        };
        Some((parameter.key()?, value))
    });
    let bools = BoolParameter::ALL.iter().filter_map(|&parameter| {
        let value = library.bool_parameter(parameter).ok()?;
        Some((parameter.key()?, value.to_string()))
    });
    let texts = StringParameter::ALL.iter().filter_map(|&parameter| {
        let value = library.string_parameter(parameter).ok()?;
        Some((parameter.key()?, value))
    });
    let all = sizes.chain(bools).chain(texts);
    all.map(|(key, value)| CuFileSetting {
        source: source_of(key, given, ours),
        key,
        value,
    })
    .collect()
}

fn source_of(key: &str, given: &Given, ours: &[Set]) -> CuFileSource {
    if ours.iter().any(|(set, _)| *set == key) {
        return CuFileSource::Engine;
    }
    given
        .get(key)
        .map_or(CuFileSource::Default, |(source, _)| source)
}

/// Settings that were asked for and are not in force: the library ignores some variables, and knows
/// fewer keys than people write.
pub(super) fn contradictions(given: &Given, settings: &[CuFileSetting]) -> Vec<String> {
    let mut notes: Vec<String> = given.problem.iter().cloned().collect();
    for setting in settings {
        let Some((source, asked)) = given.get(setting.key) else {
            continue;
        };
        let is_said = setting.source == source;
        let is_same = match setting.value.as_str() {
            "true" | "false" => is_on(asked) == is_on(&setting.value),
            value => asked.eq_ignore_ascii_case(value),
        };
        if is_said && !is_same {
            let (key, value) = (setting.key, &setting.value);
            notes.push(format!("{key} was asked to be {asked}, and is {value}"));
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(key: &'static str, value: &str, source: CuFileSource) -> CuFileSetting {
        CuFileSetting {
            key,
            value: value.to_owned(),
            source,
        }
    }

    #[test]
    fn what_was_asked_for_and_is_not_in_force_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cufile.json");
        let text = r#"{"properties": {"allow_compat_mode": false, "use_poll_mode": TRUE}}"#;
        let text = text.replace("TRUE", "true");
        std::fs::write(&file, text).unwrap();
        let given = Given::of_file(&file);
        let source = CuFileSource::File(file);
        let settings = [
            setting("properties.allow_compat_mode", "true", source.clone()),
            setting("properties.use_poll_mode", "true", source),
            setting("properties.prefer_iouring", "false", CuFileSource::Default),
        ];
        let expected = "properties.allow_compat_mode was asked to be false, and is true";
        assert_eq!(contradictions(&given, &settings), [expected]);
    }
}
