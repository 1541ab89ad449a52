//! placeholder
use crate::Result;
use crate::args::Args;
use tokio_cufile::DeviceInfo;

pub(super) fn run(_args: &Args, _device: &DeviceInfo) -> Result<()> {
    Err("soon".into())
}
