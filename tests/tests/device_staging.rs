//! What is made of a slot's bytes on their way between a file and a device.
//!
//! Failure: a digest that is missing or of other bytes; a source that is kept until the disk is done
//! with it, or given back before its bytes are in the slots.
//! Mechanism: the host cannot read the memory, so a part's bytes are digested while its slot has
//! them, in file order, and a part that meets the end of the file may come before those in front of
//! it; a write needs its source until the device's copies have ended, whoever issued them.
//! Method: files that end at, before and behind the end of a part; a file system that holds writes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use tokio_cufile::{DigestKind, Engine, EngineBuilder, OpenOptions};
use tokio_cufile_tests::bench::block_on;
use tokio_cufile_tests::gpu;
use tokio_cufile_tests::life::{poll_once, until_idle};
use tokio_cufile_tests::rig::{Way, each_way};
use tokio_cufile_tests::slow_fs::Kind;
use tokio_cufile_tests::{Sim, SlowFs, pattern};

const BLOCK: usize = 4096;

fn engine() -> EngineBuilder {
    let builder = Engine::builder().num_threads(5).task_size(BLOCK);
    builder.bounce_buffer_size(BLOCK).budget(1 << 20)
}

#[test]
fn a_file_that_ends_inside_a_chunk_is_digested_up_to_there() {
    let Some(sim) = Sim::need() else {
        return;
    };
    for len in [2 * BLOCK, 2 * BLOCK - 1, 2 * BLOCK + 1, 5 * BLOCK] {
        each_way(sim, &engine(), len, |_, rig| {
            for chunk in [BLOCK / 2, BLOCK, 3 * BLOCK, 8 * BLOCK] {
                let read = rig.file.read_at(rig.buffer(8 * BLOCK), 0);
                let done = block_on(read.digest(DigestKind::Crc32c, chunk)).unwrap();
                assert_eq!(done.bytes, len);
                let expected: Vec<_> = rig
                    .content
                    .chunks(chunk)
                    .map(|bytes| DigestKind::Crc32c.of(bytes))
                    .collect();
                let found = done.digests().expect("the read succeeded");
                assert_eq!(found.values, expected, "chunks of {chunk}");
            }
            rig.end();
        });
    }
}

#[test]
fn a_devices_source_comes_back_when_it_is_copied_whoever_copies() {
    let Some(sim) = Sim::need() else {
        return;
    };
    let Some(fs) = SlowFs::mount(BLOCK) else {
        return;
    };
    for way in Way::ALL {
        eprintln!("{way:?}");
        let (device, content) = (sim.lease(), pattern::bytes(way as u64, BLOCK));
        let engine = way.of(engine()).build_blocking().unwrap();
        let open = OpenOptions::new().read(true).write(true);
        let file = block_on(open.open(&engine, fs.path())).unwrap();
        let source = block_on(gpu::buffer(&engine, device.ordinal, &content));
        fs.hold(Kind::Write);
        let (staged, mut written) = file.write_at(source, 0).staged();
        let source = block_on(staged).unwrap();
        assert!(poll_once(&mut written).is_pending());
        // Changed while the write is held: it has its bytes in the slot.
        drop(block_on(source.copy_from_host(&engine, 0, vec![0; BLOCK])).unwrap());
        drop(fs.next_held());
        fs.pass(Kind::Write);
        assert_eq!(block_on(written).unwrap().bytes, BLOCK);
        assert_eq!(fs.content(), content);
        until_idle(&engine);
        block_on(engine.shutdown());
        drop((engine, file));
        device.assert_all_gone();
    }
}
