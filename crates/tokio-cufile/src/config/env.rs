//! Settings from the environment: read once, by [`Config::from_env`], and nowhere else.

use super::{CompatMode, Config};
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
    ///
    /// # Errors
    ///
    /// `InvalidInput`, naming the variable whose value cannot be understood.
    pub fn from_env() -> Result<Self> {
        #[expect(clippy::disallowed_methods, reason = "this is the one place")]
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let mut config = Self::default();
        let first = |names: &[&'static str]| {
            names
                .iter()
                .find_map(|&name| lookup(name).map(|value| (name, value)))
        };
        let count = |names: &[&'static str], field: &mut usize| -> Result<()> {
            if let Some((name, value)) = first(names) {
                *field = value
                    .trim()
                    .parse()
                    .map_err(|_| wrong(name, &value, "a whole number"))?;
            }
            Ok(())
        };
        count(
            &[
                "TOKIO_CUFILE_NUM_THREADS",
                "KVIKIO_NTHREADS",
                "KVIKIO_NUM_THREADS",
            ],
            &mut config.num_threads,
        )?;
        count(
            &["TOKIO_CUFILE_TASK_SIZE", "KVIKIO_TASK_SIZE"],
            &mut config.task_size,
        )?;
        count(
            &[
                "TOKIO_CUFILE_BOUNCE_BUFFER_SIZE",
                "KVIKIO_BOUNCE_BUFFER_SIZE",
            ],
            &mut config.bounce_buffer_size,
        )?;
        if let Some((name, value)) = first(&["TOKIO_CUFILE_COMPAT_MODE", "KVIKIO_COMPAT_MODE"]) {
            config.compat_mode = match value.trim().to_ascii_uppercase().as_str() {
                "AUTO" => CompatMode::Auto,
                "ON" | "TRUE" | "YES" | "1" => CompatMode::On,
                "OFF" | "FALSE" | "NO" | "0" => CompatMode::Off,
                _ => return Err(wrong(name, &value, "AUTO, ON or OFF")),
            };
        }
        // KvikIO has no budget: a size that was meant for it brings one that holds two parts.
        let part_max = config.task_size.max(config.bounce_buffer_size);
        config.budget = config.budget.max(part_max.saturating_mul(2));
        Ok(config)
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
    use super::*;

    fn from(pairs: &[(&str, &str)]) -> Result<Config> {
        Config::from_lookup(|name| {
            let found = pairs.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
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
    fn a_large_part_brings_a_budget_that_holds_it() {
        let config = from(&[("KVIKIO_TASK_SIZE", "1073741824")]).unwrap();
        assert!(config.check().is_ok(), "{config:?}");
    }

    #[test]
    fn a_bad_value_names_its_variable() {
        for (name, value) in [
            ("KVIKIO_NTHREADS", "many"),
            ("TOKIO_CUFILE_COMPAT_MODE", "2"),
        ] {
            let error = from(&[(name, value)]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}
