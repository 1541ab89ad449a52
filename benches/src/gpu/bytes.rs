//! The bytes of device memory: made from a seed, read back and compared.

use measure::data;
use tokio_cufile::{DeviceBuffer, Engine};

use crate::Result;

/// What is copied at once.
const CHUNK: usize = 64 << 20;

/// Random bytes into all of a device's buffer.
pub(super) async fn fill(
    engine: &Engine,
    mut buffer: DeviceBuffer,
    seed: u64,
) -> tokio_cufile::Result<DeviceBuffer> {
    for start in (0..buffer.len()).step_by(CHUNK) {
        let mut bytes = vec![0; CHUNK.min(buffer.len() - start)];
        data::fill(seed, start as u64, &mut bytes);
        buffer = buffer.copy_from_host(engine, start, bytes).await?;
    }
    Ok(buffer)
}

/// Gives all of the buffer to `each`, with where each piece begins, and fills it with bytes that are
/// not those of `seed`. After an error the buffer is gone.
pub(super) async fn check_and_wipe(
    engine: &Engine,
    mut buffer: DeviceBuffer,
    seed: u64,
    mut each: impl FnMut(usize, &[u8]) -> Result<()>,
) -> Result<DeviceBuffer> {
    for start in (0..buffer.len()).step_by(CHUNK) {
        let end = buffer.len().min(start + CHUNK);
        let (back, bytes) = buffer.copy_to_host(engine, start..end).await?;
        buffer = back;
        each(start, &bytes)?;
    }
    Ok(fill(engine, buffer, !seed).await?)
}

/// Whether bytes read back from `start` on are those of the file at `start`.
pub(super) fn are(seed: u64, start: usize, bytes: &[u8]) -> Result<()> {
    let difference = data::first_difference(seed, start as u64, bytes);
    difference.map_or(Ok(()), |at| {
        Err(format!("byte {at} in device memory is not the file's").into())
    })
}

/// Whether each block is the file's at the offset that it was read from. Pieces that are read back
/// hold whole blocks.
pub(super) fn are_blocks(
    seed: u64,
    block: usize,
    offsets: &[u64],
    start: usize,
    bytes: &[u8],
) -> Result<()> {
    let blocks = bytes.chunks(block).zip(&offsets[start / block..]);
    for (index, (bytes, offset)) in blocks.enumerate() {
        if data::first_difference(seed, *offset, bytes).is_some() {
            let place = start + index * block;
            return Err(format!("the block at {place} is not the file's at {offset}").into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_of_a_block_is_found_and_its_offset_told() {
        const BLOCK: usize = 16;
        let offsets = [32, 0, 48];
        let mut bytes = vec![0; BLOCK * offsets.len()];
        for (block, offset) in bytes.chunks_mut(BLOCK).zip(offsets) {
            data::fill(7, offset, block);
        }
        assert!(are_blocks(7, BLOCK, &offsets, 0, &bytes).is_ok());
        // What is read back may begin anywhere.
        assert!(are_blocks(7, BLOCK, &offsets, BLOCK, &bytes[BLOCK..]).is_ok());
        bytes[2 * BLOCK + 5] ^= 1;
        let error = are_blocks(7, BLOCK, &offsets, BLOCK, &bytes[BLOCK..]).unwrap_err();
        assert_eq!(error.to_string(), "the block at 32 is not the file's at 48");
    }
}
