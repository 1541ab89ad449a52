//! Writes with checksums, and has the source back before the disk is done: the next step may change
//! it while the last one is still on its way.
//!
//! `cargo run --example staged_write -- FILE`

use tokio_cufile::{AsyncCuFile, DigestKind, Engine, HostBuffer};

const LEN: usize = 8 << 20;
const CHUNK: usize = 1 << 20;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os()
        .nth(1)
        .ok_or("usage: staged_write FILE")?;
    let engine = Engine::builder().build().await?;
    let file = AsyncCuFile::create(&engine, &path).await?;
    let mut weights = HostBuffer::new(&engine, LEN)?;
    weights.as_mut_slice()?.fill(1);

    let write = file
        .write_all_at(weights, 0)
        .digest(DigestKind::Crc32c, CHUNK);
    let (staged, written) = write.staged();
    let mut weights = staged.await?;
    // What is written does not change any more, whatever becomes of the source.
    weights.as_mut_slice()?.fill(2);

    let done = written.await?;
    let digests = done.digests().ok_or("digests were asked for")?.clone();
    file.sync_all().await?;
    println!(
        "{} chunks, the first: {}",
        digests.values.len(),
        digests.values[0]
    );

    let file = AsyncCuFile::open(&engine, &path).await?;
    let read = file
        .read_exact_at(weights, 0)
        .digest(DigestKind::Crc32c, CHUNK);
    assert_eq!(read.await?.digests(), Some(&digests));
    println!("read back the same");
    Ok(())
}
