//! What libcufile is given beside our own calls: its file and the environment.
//!
//! The library reads both by itself. They are read here as well, to tell where a setting came from.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use jsonc_parser::{JsonValue, ParseOptions, parse_to_value};
use rustix::fs::OFlags;

/// The file that is read where the environment names no other.
const FILE: &str = "/etc/cufile.json";

/// The variable that names another.
const FILE_VARIABLE: &str = "CUFILE_ENV_PATH_JSON";

/// The shipped file has some 4 KiB.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Keys of the file, and the variables that win over them.
const VARIABLES: [(&str, &str); 10] = [
    ("logging.level", "CUFILE_LOGGING_LEVEL"),
    ("logging.path", "CUFILE_LOGFILE_PATH"),
    ("properties.allow_compat_mode", "CUFILE_ALLOW_COMPAT_MODE"),
    ("properties.force_compat_mode", "CUFILE_FORCE_COMPAT_MODE"),
    ("properties.use_pci_p2pdma", "CUFILE_USE_PCIP2PDMA"),
    (
        "properties.max_device_cache_size_kb",
        "CUFILE_MAX_DEVICE_CACHE_SIZE",
    ),
    (
        "properties.per_buffer_cache_size_kb",
        "CUFILE_PER_BUFFER_CACHE_SIZE",
    ),
    (
        "miscellaneous.skip_topology_detection",
        "CUFILE_SKIP_TOPOLOGY_DETECTION",
    ),
    (
        "miscellaneous.stream_memops_bypass",
        "CUFILE_STREAM_MEMOPS_BYPASS",
    ),
    ("profile.cufile_stats", "CUFILE_STATS_LEVEL"),
];

/// Where a setting of libcufile came from.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CuFileSource {
    /// This engine set it, or another engine of the process.
    Engine,
    /// A variable of the environment.
    Environment(&'static str),
    /// libcufile's file.
    File(PathBuf),
    /// Nobody said anything.
    Default,
}

/// What the library finds.
#[derive(Clone, Debug, Default)]
pub(super) struct Given {
    /// The file, where there is one that can be read.
    pub(super) file: Option<PathBuf>,
    /// What is wrong with it.
    pub(super) problem: Option<String>,
    /// What it says, by section and key with a dot between.
    settings: BTreeMap<String, String>,
    /// What the environment says, by the same keys.
    environment: BTreeMap<&'static str, (&'static str, String)>,
}

impl Given {
    /// As this process has it now. Reads a file.
    pub(super) fn read() -> Self {
        #[expect(
            clippy::disallowed_methods,
            reason = "the library reads them; this tells what it finds"
        )]
        Self::from_lookup(|name| std::env::var_os(name))
    }

    fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Self {
        let path = PathBuf::from(lookup(FILE_VARIABLE).unwrap_or_else(|| FILE.into()));
        let environment = VARIABLES
            .into_iter()
            .filter_map(|(key, name)| Some((key, (name, lookup(name)?))))
            .map(|(key, (name, value))| (key, (name, value.to_string_lossy().into_owned())));
        let mut given = Self {
            environment: environment.collect(),
            ..Self::default()
        };
        let shown = path.display();
        match text_of(&path).map(|text| settings_in(&text)) {
            Ok(Ok(settings)) => {
                given.settings = settings;
                given.file = Some(path);
            }
            Ok(Err(reason)) => given.problem = Some(format!("{shown}: {reason}")),
            // The library ignores that too, also where the environment names the file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => given.problem = Some(format!("{shown}: {error}")),
        }
        given
    }

    /// What a file says, and nothing else.
    #[cfg(test)]
    pub(super) fn of_file(path: &Path) -> Self {
        Self::from_lookup(|name| (name == FILE_VARIABLE).then(|| path.into()))
    }

    /// What is said of a key, and by what.
    pub(super) fn get(&self, key: &str) -> Option<(CuFileSource, &str)> {
        if let Some((name, value)) = self.environment.get(key) {
            return Some((CuFileSource::Environment(name), value));
        }
        let value = self.settings.get(key)?;
        let file = self.file.clone()?;
        Some((CuFileSource::File(file), value))
    }

    /// Whether somebody asks for P2PDMA: for all storage or, from 1.16 on, for a file system or a
    /// kind of device.
    pub(super) fn wants_p2pdma(&self) -> bool {
        const KEY: &str = "use_pci_p2pdma";
        let asked = self.get("properties.use_pci_p2pdma");
        let for_some = self.settings.iter();
        let mut for_some = for_some.filter(|(key, _)| key.ends_with(KEY));
        asked.is_some_and(|(_, value)| is_on(value)) || for_some.any(|(_, value)| is_on(value))
    }

    /// Whether somebody says where the log goes.
    pub(super) fn names_a_log(&self) -> bool {
        ["logging.path", "logging.dir"]
            .iter()
            .any(|key| self.get(key).is_some_and(|(_, value)| !value.is_empty()))
    }
}

/// Whether a value of the file or the environment means yes.
pub(super) fn is_on(value: &str) -> bool {
    ["true", "1", "yes"]
        .iter()
        .any(|yes| value.eq_ignore_ascii_case(yes))
}

fn text_of(path: &Path) -> io::Result<String> {
    // Not to wait for who writes into a pipe.
    let file = File::options()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path)?;
    let about = file.metadata()?;
    if !about.is_file() {
        // What is read of a pipe the library finds no more.
        return Err(io::Error::other(
            "it is not a regular file, and is not looked at",
        ));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        let reason = format!("it has more than {FILE_BYTES_MAX} bytes, and is not looked at");
        return Err(io::Error::other(reason));
    }
    // A comment may be in any encoding.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The values of a `cufile.json`, which is JSON with comments.
fn settings_in(text: &str) -> Result<BTreeMap<String, String>, String> {
    let options = ParseOptions {
        allow_comments: true,
        allow_loose_object_property_names: false,
        allow_trailing_commas: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    };
    let mut settings = BTreeMap::new();
    match parse_to_value(text, &options).map_err(|error| error.to_string())? {
        Some(value @ JsonValue::Object(_)) => flatten(String::new(), value, &mut settings),
        _ => return Err("it is no object".to_owned()),
    }
    Ok(settings)
}

/// The parser bounds how deep values lie.
fn flatten(key: String, value: JsonValue<'_>, settings: &mut BTreeMap<String, String>) {
    let text = match value {
        JsonValue::Object(object) => {
            for (name, value) in object {
                let key = match key.is_empty() {
                    true => name.to_string(),
                    false => format!("{key}.{name}"),
                };
                flatten(key, value, settings);
            }
            return;
        }
        JsonValue::Array(values) => {
            let values = values.into_iter().map(|value| {
                let mut one = BTreeMap::new();
                flatten(String::new(), value, &mut one);
                one.into_values().next().unwrap_or_default()
            });
            format!("[{}]", values.collect::<Vec<_>>().join(", "))
        }
        JsonValue::String(text) => text.into_owned(),
        JsonValue::Number(number) => number.to_owned(),
        JsonValue::Boolean(value) => value.to_string(),
        JsonValue::Null => "null".to_owned(),
    };
    settings.insert(key, text);
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    fn given(file: &Path, variables: &[(&str, &str)]) -> Given {
        Given::from_lookup(|name| match name {
            FILE_VARIABLE => Some(file.into()),
            name => {
                let found = variables.iter().find(|(variable, _)| *variable == name);
                found.map(|(_, value)| (*value).into())
            }
        })
    }

    const TEXT: &str = r#"{
        // NOTE : Application can override custom configuration via export CUFILE_ENV_PATH_JSON=<filepath>
        "logging": { /* "dir": "/home/<xxxx>", */ "level": "ERROR" },
        "properties": {
            "max_direct_io_size_kb" : 16384,
            "use_pci_p2pdma": true,
            "posix_pool_slab_size_kb" : [ 4, 1024, 16384 ]
        },
        "fs": { "lustre": { "posix_gds_min_kb" : 0 } },
        "denylist": { "drivers": [] }
    }"#;

    #[test]
    fn a_file_with_comments_is_understood_and_the_environment_wins_over_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cufile.json");
        std::fs::write(&file, TEXT).unwrap();
        let from_file = CuFileSource::File(file.clone());
        let level = "CUFILE_LOGGING_LEVEL";
        let given = given(&file, &[(level, "TRACE")]);
        assert_eq!(given.problem, None);
        for (key, value) in [
            ("properties.max_direct_io_size_kb", "16384"),
            ("properties.posix_pool_slab_size_kb", "[4, 1024, 16384]"),
            ("fs.lustre.posix_gds_min_kb", "0"),
            ("denylist.drivers", "[]"),
        ] {
            assert_eq!(given.get(key), Some((from_file.clone(), value)), "{key}");
        }
        let from_environment = CuFileSource::Environment(level);
        assert_eq!(
            given.get("logging.level"),
            Some((from_environment, "TRACE"))
        );
        assert_eq!(given.get("logging.dir"), None, "it is in a comment");
        assert!(given.wants_p2pdma() && !given.names_a_log());
    }

    #[test]
    fn a_file_that_is_not_there_is_ignored_and_one_that_is_no_json_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cufile.json");
        let absent = given(&file, &[("CUFILE_LOGFILE_PATH", "/tmp/log")]);
        assert_eq!((&absent.file, &absent.problem), (&None, &None));
        assert!(absent.names_a_log());
        for text in ["", "[1]", r#"{"logging": {"#] {
            std::fs::write(&file, text).unwrap();
            let broken = given(&file, &[]);
            assert_eq!(broken.file, None);
            assert!(broken.problem.unwrap().contains("cufile.json"), "{text}");
        }
    }

    #[test]
    fn what_is_no_regular_file_is_not_waited_for_and_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).unwrap();
        for path in [folder.path(), &pipe, Path::new("/dev/zero")] {
            let found = given(path, &[]);
            let problem = found.problem.unwrap();
            assert!(problem.contains("not a regular file"), "{problem}");
            assert_eq!(found.file, None);
        }
    }

    #[test]
    fn odd_names_and_odd_content_are_read_or_told() {
        let folder = tempfile::tempdir().unwrap();
        let name = OsStr::from_bytes(b"\xff.json");
        let file = folder.path().join(name);
        std::fs::write(
            &file,
            b"{ // \xe4\xf6\n \"logging\": {\"level\": \"// no\"}}",
        )
        .unwrap();
        let found = given(&file, &[]);
        let value = found.get("logging.level").map(|(_, value)| value);
        assert_eq!((&found.problem, value), (&None, Some("// no")));
        let depth = 100_000;
        let long = usize::try_from(FILE_BYTES_MAX).unwrap();
        for (text, told) in [
            (r#"{"a":"#.repeat(depth) + "1" + &"}".repeat(depth), "depth"),
            (" ".repeat(long) + "{}", "more than"),
            (r#"{"a": 1,}"#.to_owned(), "comma"),
            ("{\"a\": \0}".to_owned(), "Unexpected"),
        ] {
            std::fs::write(&file, &text).unwrap();
            let problem = given(&file, &[]).problem.unwrap();
            assert!(problem.contains(told), "{problem}");
        }
    }
}
