//! Settings from the environment: read once, by [`Config::from_env`], and nowhere else.

use std::ffi::OsString;
use std::path::PathBuf;

use super::{CacheMode, CompatMode, Config, CuFileCalls, CuFileConfig, CuFileStats, IoEngine};
use crate::error::{Error, ErrorKind, Operation, Result};

impl Config {
    /// The defaults, changed by these variables. The project's own name wins over KvikIO's.
    ///
    /// | variable | alias | value |
    /// |---|---|---|
    /// | `TOKIO_CUFILE_COMPAT_MODE` | `KVIKIO_COMPAT_MODE` | `AUTO`; `ON`, `TRUE`, `YES`, `1`; `OFF`, `FALSE`, `NO`, `0`; any case |
    /// | `TOKIO_CUFILE_NUM_THREADS` | `KVIKIO_NTHREADS`, `KVIKIO_NUM_THREADS` | a count |
    /// | `TOKIO_CUFILE_TASK_SIZE` | `KVIKIO_TASK_SIZE` | bytes |
    /// | `TOKIO_CUFILE_BOUNCE_BUFFER_SIZE` | `KVIKIO_BOUNCE_BUFFER_SIZE` | bytes |
    /// | `TOKIO_CUFILE_GDS_THRESHOLD` | `KVIKIO_GDS_THRESHOLD` | bytes |
    /// | `TOKIO_CUFILE_LIBCUFILE` | | the absolute path of the library |
    /// | `TOKIO_CUFILE_PROC_DIR` | | the absolute path of the process file system |
    /// | `TOKIO_CUFILE_CALLS` | | `SYNC`, `STREAM`; any case |
    /// | `TOKIO_CUFILE_STATS` | | `OFF`, `ON`, `ON_WITH_SHUTDOWN`; any case |
    /// | `TOKIO_CUFILE_BUDGET` | | bytes |
    /// | `TOKIO_CUFILE_QUEUE_DEPTH` | | a count |
    /// | `TOKIO_CUFILE_IO` | | `AUTO`, `URING`, `POOL`; any case |
    /// | `TOKIO_CUFILE_CACHE` | | `AUTO`, `DIRECT`, `CACHED`; any case |
    ///
    /// # Errors
    ///
    /// `InvalidInput`, naming the variable whose value cannot be understood.
    pub fn from_env() -> Result<Self> {
        // What is not text is nothing that any of them may be but a path, and is refused as such.
        #[expect(clippy::disallowed_methods, reason = "this is the one place")]
        Self::from_lookup(|name| std::env::var_os(name))
    }

    fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let mut config = Self::default();
        let read = Variables(lookup);
        let threads = [
            "TOKIO_CUFILE_NUM_THREADS",
            "KVIKIO_NTHREADS",
            "KVIKIO_NUM_THREADS",
        ];
        read.count(&threads, &mut config.num_threads)?;
        let task_size = ["TOKIO_CUFILE_TASK_SIZE", "KVIKIO_TASK_SIZE"];
        read.count(&task_size, &mut config.task_size)?;
        let bounce = [
            "TOKIO_CUFILE_BOUNCE_BUFFER_SIZE",
            "KVIKIO_BOUNCE_BUFFER_SIZE",
        ];
        read.count(&bounce, &mut config.bounce_buffer_size)?;
        config.cufile = read.cufile()?;
        read.count(&["TOKIO_CUFILE_QUEUE_DEPTH"], &mut config.queue_depth)?;
        // KvikIO has no budget: a size that was meant for it brings one that holds two parts.
        let part_max = config.task_size.max(config.bounce_buffer_size);
        config.budget = config.budget.max(part_max.saturating_mul(2));
        read.count(&["TOKIO_CUFILE_BUDGET"], &mut config.budget)?;

        let compat_mode = ["TOKIO_CUFILE_COMPAT_MODE", "KVIKIO_COMPAT_MODE"];
        let modes = |text: &str| match text {
            "AUTO" => Some(CompatMode::Auto),
            "ON" | "TRUE" | "YES" | "1" => Some(CompatMode::On),
            "OFF" | "FALSE" | "NO" | "0" => Some(CompatMode::Off),
            _ => None,
        };
        read.word(
            &compat_mode,
            "AUTO, ON or OFF",
            &mut config.compat_mode,
            modes,
        )?;
        let engines = |text: &str| match text {
            "AUTO" => Some(IoEngine::Auto),
            "URING" => Some(IoEngine::Uring),
            "POOL" => Some(IoEngine::Pool),
            _ => None,
        };
        read.word(
            &["TOKIO_CUFILE_IO"],
            "AUTO, URING or POOL",
            &mut config.io,
            engines,
        )?;
        let caches = |text: &str| match text {
            "AUTO" => Some(CacheMode::Auto),
            "DIRECT" => Some(CacheMode::Direct),
            "CACHED" => Some(CacheMode::Cached),
            _ => None,
        };
        let cache = ["TOKIO_CUFILE_CACHE"];
        read.word(&cache, "AUTO, DIRECT or CACHED", &mut config.cache, caches)?;
        Ok(config)
    }
}

/// What the variables say.
struct Variables<L>(L);

impl<L: Fn(&str) -> Option<OsString>> Variables<L> {
    /// The first of `names` that is set, and its value.
    fn first(&self, names: &[&'static str]) -> Option<(&'static str, String)> {
        let text = |value: OsString| value.to_string_lossy().into_owned();
        names
            .iter()
            .find_map(|&name| (self.0)(name).map(|value| (name, text(value))))
    }

    fn cufile(&self) -> Result<CuFileConfig> {
        let mut cufile = CuFileConfig::default();
        let threshold = ["TOKIO_CUFILE_GDS_THRESHOLD", "KVIKIO_GDS_THRESHOLD"];
        self.count(&threshold, &mut cufile.gds_threshold)?;
        cufile.library = self.path("TOKIO_CUFILE_LIBCUFILE")?;
        if let Some(path) = self.path("TOKIO_CUFILE_PROC_DIR")? {
            cufile.proc_dir = path;
        }
        let calls = |text: &str| match text {
            "SYNC" => Some(CuFileCalls::Sync),
            "STREAM" => Some(CuFileCalls::Stream),
            _ => None,
        };
        let names = ["TOKIO_CUFILE_CALLS"];
        self.word(&names, "SYNC or STREAM", &mut cufile.calls, calls)?;
        let stats = |text: &str| match text {
            "OFF" => Some(CuFileStats::Off),
            "ON" => Some(CuFileStats::On),
            "ON_WITH_SHUTDOWN" => Some(CuFileStats::OnWithShutdown),
            _ => None,
        };
        let expected = "OFF, ON or ON_WITH_SHUTDOWN";
        self.word(&["TOKIO_CUFILE_STATS"], expected, &mut cufile.stats, stats)?;
        Ok(cufile)
    }

    fn path(&self, name: &'static str) -> Result<Option<PathBuf>> {
        match (self.0)(name).map(PathBuf::from) {
            Some(path) if !path.is_absolute() => {
                Err(wrong(name, &path.to_string_lossy(), "an absolute path"))
            }
            path => Ok(path),
        }
    }

    fn count(&self, names: &[&'static str], field: &mut usize) -> Result<()> {
        if let Some((name, value)) = self.first(names) {
            let number = value.trim().parse();
            *field = number.map_err(|_| wrong(name, &value, "a whole number"))?;
        }
        Ok(())
    }

    fn word<T>(
        &self,
        names: &[&'static str],
        expected: &str,
        field: &mut T,
        meaning: impl Fn(&str) -> Option<T>,
    ) -> Result<()> {
        if let Some((name, value)) = self.first(names) {
            let word = value.trim().to_ascii_uppercase();
            *field = meaning(&word).ok_or_else(|| wrong(name, &value, expected))?;
        }
        Ok(())
    }
}

fn wrong(name: &str, value: &str, expected: &str) -> Error {
    Error::new(
        ErrorKind::InvalidInput,
        format!("{name} is '{value}', not {expected}"),
    )
    .with_operation(Operation::Build)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    use super::*;

    fn from(pairs: &[(&str, &str)]) -> Result<Config> {
        Config::from_lookup(|name| {
            let found = pairs.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).into())
        })
    }

    #[test]
    fn an_empty_environment_gives_the_defaults() {
        assert_eq!(from(&[]).unwrap(), Config::default());
    }

    #[test]
    fn kvikio_names_are_understood_and_the_own_name_wins() {
        let config = from(&[("KVIKIO_NTHREADS", "3"), ("KVIKIO_COMPAT_MODE", "yes")]).unwrap();
        assert_eq!(
            (config.num_threads, config.compat_mode),
            (3, CompatMode::On)
        );
        let both = [
            ("KVIKIO_TASK_SIZE", "1"),
            ("TOKIO_CUFILE_TASK_SIZE", "8192"),
        ];
        assert_eq!(from(&both).unwrap().task_size, 8192);
    }

    #[test]
    fn every_kvikio_name_stands_for_a_setting_and_gives_way_to_the_own_one() {
        type Setting = fn(&Config) -> usize;
        let table: [(&str, &str, Setting); 5] = [
            ("KVIKIO_NTHREADS", "TOKIO_CUFILE_NUM_THREADS", |config| {
                config.num_threads
            }),
            ("KVIKIO_NUM_THREADS", "TOKIO_CUFILE_NUM_THREADS", |config| {
                config.num_threads
            }),
            ("KVIKIO_TASK_SIZE", "TOKIO_CUFILE_TASK_SIZE", |config| {
                config.task_size
            }),
            (
                "KVIKIO_BOUNCE_BUFFER_SIZE",
                "TOKIO_CUFILE_BOUNCE_BUFFER_SIZE",
                |config| config.bounce_buffer_size,
            ),
            (
                "KVIKIO_GDS_THRESHOLD",
                "TOKIO_CUFILE_GDS_THRESHOLD",
                |config| config.cufile.gds_threshold,
            ),
        ];
        for (theirs, ours, setting) in table {
            let of = |pairs: &[(&str, &str)]| setting(&from(pairs).unwrap());
            assert_eq!(of(&[(theirs, "24576")]), 24576, "{theirs}");
            assert_eq!(of(&[(theirs, "24576"), (ours, "8192")]), 8192, "{ours}");
        }
    }

    #[test]
    fn a_path_need_not_be_text() {
        let path = OsStr::from_bytes(b"/opt/\xff/it");
        let names = ["TOKIO_CUFILE_LIBCUFILE", "TOKIO_CUFILE_PROC_DIR"];
        let lookup = |name: &str| names.contains(&name).then(|| path.into());
        let config = Config::from_lookup(lookup).unwrap();
        assert_eq!(config.cufile.library.as_deref(), Some(Path::new(path)));
        assert_eq!(config.cufile.proc_dir, Path::new(path));
    }

    #[test]
    fn a_large_part_brings_a_budget_that_holds_it() {
        let config = from(&[("KVIKIO_TASK_SIZE", "1073741824")]).unwrap();
        assert!(config.check().is_ok(), "{config:?}");
    }

    #[test]
    fn the_projects_own_settings_have_variables_too() {
        let config = from(&[
            ("TOKIO_CUFILE_IO", "pool"),
            ("TOKIO_CUFILE_CACHE", "Direct"),
            ("TOKIO_CUFILE_QUEUE_DEPTH", "7"),
            ("TOKIO_CUFILE_BUDGET", "16777216"),
            ("TOKIO_CUFILE_LIBCUFILE", "/opt/libcufile.so.0"),
            ("TOKIO_CUFILE_CALLS", "Stream"),
            ("TOKIO_CUFILE_STATS", "on"),
            ("TOKIO_CUFILE_GDS_THRESHOLD", "1048576"),
        ])
        .unwrap();
        let cufile = CuFileConfig {
            library: Some("/opt/libcufile.so.0".into()),
            calls: CuFileCalls::Stream,
            stats: CuFileStats::On,
            gds_threshold: 1 << 20,
            ..CuFileConfig::default()
        };
        assert_eq!(config.cufile, cufile);
        assert_eq!(
            (config.io, config.cache),
            (IoEngine::Pool, CacheMode::Direct)
        );
        assert_eq!((config.queue_depth, config.budget), (7, 16 << 20));
    }

    #[test]
    fn a_bad_value_names_its_variable() {
        for (name, value) in [
            ("TOKIO_CUFILE_IO", "ring"),
            ("TOKIO_CUFILE_CACHE", "\u{fffd}"),
            ("KVIKIO_NTHREADS", "many"),
            ("TOKIO_CUFILE_COMPAT_MODE", "2"),
            ("TOKIO_CUFILE_LIBCUFILE", "libcufile.so"),
            ("TOKIO_CUFILE_PROC_DIR", "proc"),
            ("TOKIO_CUFILE_CALLS", "batch"),
            ("TOKIO_CUFILE_STATS", "3"),
            ("KVIKIO_GDS_THRESHOLD", "1k"),
        ] {
            let error = from(&[(name, value)]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}
