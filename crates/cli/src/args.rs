//! What was typed. What it means for the file at hand is settled in `resolved`.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tokio_cufile::PathClass;

use crate::{duration, size};

/// Read and write files through tokio-cufile, and say which path every byte took.
#[derive(Debug, Parser)]
#[command(
    name = "cuf",
    version,
    after_help = "SIZE takes 4096, 64KiB, 1GiB; DURATION takes 500ms, 2s, 1m.\n\
                  Times and rates count from the first request to the last completion; with several windows,\n\
                  while a request is in flight. CPU seconds are the process's without making and hashing bytes.\n\
                  Exit codes: 0 done; 1 the operation failed; 2 wrong usage; 130 interrupted while writing."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Read a file, or a range of it, into memory
    Read(ReadArgs),
    /// Write a file from another file or from random bytes; durable on return
    Write(WriteArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ReadArgs {
    /// The file to read
    pub(crate) file: PathBuf,
    /// Where to begin, in bytes from the start of the file
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = size::parse)]
    pub(crate) offset: u64,
    /// How much to read [default: to the end of the file]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) length: Option<u64>,
    /// Print the SHA-256 of the bytes as they lie in the destination memory
    #[arg(long)]
    pub(crate) hash: bool,
    /// Evict this file's pages from the page cache before each read
    #[arg(long)]
    pub(crate) drop_cache: bool,
    /// Read N times; report the medians, and with --json every run
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) repeat: Option<u32>,
    #[command(flatten)]
    pub(crate) transfer: TransferArgs,
}

#[derive(Debug, Args)]
#[group(id = "source", required = true, multiple = false, args = ["from", "size"])]
pub(crate) struct WriteArgs {
    /// The file to write: created, or its content replaced
    pub(crate) file: PathBuf,
    /// Copy this file
    #[arg(long, value_name = "FILE")]
    pub(crate) from: Option<PathBuf>,
    /// Write this many random bytes (xoshiro256++)
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) size: Option<u64>,
    /// The seed of the random bytes [default: a new one, printed]
    #[arg(long, value_name = "N", conflicts_with = "from")]
    pub(crate) seed: Option<u64>,
    #[command(flatten)]
    pub(crate) transfer: TransferArgs,
}

/// What both directions take.
#[derive(Debug, Args)]
pub(crate) struct TransferArgs {
    /// The memory to read into or write from: host, or a CUDA device by its ordinal, cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "host")]
    pub(crate) device: Device,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
    /// The compat backend: when it is the better one, always, or never
    #[arg(long, value_name = "MODE")]
    pub(crate) compat_mode: Option<Compat>,
    /// Bytes in one part of a split request
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) task_size: Option<u64>,
    /// The engine of the compat backend
    #[arg(long, value_name = "ENGINE")]
    pub(crate) io: Option<Io>,
    /// Around the page cache where the file allows, always, or through it
    #[arg(long, value_name = "MODE")]
    pub(crate) cache: Option<Cache>,
    /// Fail rather than take another path: gds, direct-io or the name of a path
    #[arg(long, value_name = "PATH")]
    pub(crate) require: Option<PathClass>,
    /// Give up when the bytes have not moved after this time
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) deadline: Option<Duration>,
    /// Memory that the bytes pass through [default: the whole range if it fits half the free
    /// memory, else 1GiB; on a device the range, at most 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) window: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Compat {
    Auto,
    On,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Io {
    Auto,
    Uring,
    Pool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Cache {
    Auto,
    Direct,
    Cached,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    Host,
    Cuda(u32),
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "host" {
            return Ok(Self::Host);
        }
        text.strip_prefix("cuda:")
            .filter(|ordinal| ordinal.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|ordinal| ordinal.parse().ok())
            .map(Self::Cuda)
            .ok_or_else(|| "use host or cuda:N".into())
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_device_is_host_or_a_cuda_ordinal() {
        assert_eq!("host".parse(), Ok(Device::Host));
        assert_eq!("cuda:7".parse(), Ok(Device::Cuda(7)));
        for text in [
            "",
            "gpu",
            "cuda",
            "cuda:",
            "cuda:x",
            "cuda:+1",
            "cuda:99999999999",
        ] {
            assert!(text.parse::<Device>().is_err(), "{text:?}");
        }
    }
}
