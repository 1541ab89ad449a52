//! What the simulators share: randomness from a seed, waiting, and the part of the fault scripts
//! that says when a fault fires.
//!
//! Each simulator is a library of its own in the process, so each has its own bell.
#![forbid(unsafe_code)]

pub mod monitor;
mod rng;
mod rules;
mod when;

pub use rng::Rng;
pub use rules::{Era, RULES_MAX, Rules, Timed, parse};
pub use when::{Meter, Timing, number};

/// The functions of a C interface as an enum, by which scripts and counts name them.
#[macro_export]
macro_rules! entries {
    ($($name:ident),* $(,)?) => {
        /// One function of the C interface.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(non_camel_case_types, reason = "the names are those of the C interface")]
        pub(crate) enum Entry { $($name),* }

        impl Entry {
            pub(crate) const ALL: &[Self] = &[$(Self::$name),*];

            pub(crate) fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),* }
            }

            /// Its place in tables of counts.
            pub(crate) fn index(self) -> usize {
                // An enum without values of its own counts up from 0.
                self as usize
            }

            pub(crate) fn named(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|entry| entry.name() == name)
            }
        }
    };
}
