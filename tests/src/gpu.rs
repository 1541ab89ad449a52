//! Devices of this machine, real or simulated, and memory on them.

use std::sync::OnceLock;

use tokio_cufile::{DeviceBuffer, Engine};

use crate::bench::block_on;
use crate::sim;

/// How many devices there are; 0 where there is no CUDA. Asked once.
///
/// # Panics
///
/// When no engine can be built, or simulated devices were asked for and are not there.
pub fn count() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| {
        // On a thread of its own: the caller may be inside a runtime.
        let ask = || {
            let engine = Engine::builder().build_blocking().expect("an engine");
            block_on(engine.devices()).map_or(0, |devices| devices.len())
        };
        let found = std::thread::spawn(ask).join().expect("it does not panic");
        assert!(
            found > 0 || !sim::is_asked_for(),
            "no simulated device is there"
        );
        found
    })
}

/// A buffer on a device with that content.
///
/// # Panics
///
/// When it cannot be had.
pub async fn buffer(engine: &Engine, device: u32, content: &[u8]) -> DeviceBuffer {
    let buffer = DeviceBuffer::new(engine, device, content.len()).await;
    let buffer = buffer.expect("device memory");
    let filled = buffer.copy_from_host(engine, 0, content.to_vec()).await;
    filled.expect("the device takes it")
}

/// All that is in a buffer.
///
/// # Panics
///
/// When the device does not give it.
pub async fn content(engine: &Engine, buffer: DeviceBuffer) -> Vec<u8> {
    let all = 0..buffer.len();
    let copied = buffer.copy_to_host(engine, all).await;
    copied.expect("the device gives it").1
}
