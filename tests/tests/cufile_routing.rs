//! Which operations go by cuFile, where there is a choice.
//!
//! Failure: bytes that go the slower way, or a way that nobody asked for and nothing tells.
//! Mechanism: what is expected of a machine, a file, a length and a kind of memory decides.
//! Method: a simulated machine with nvidia-fs; the simulator counts calls, and receipts name paths.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use tokio_cufile::{CompatMode, CuFileConfig, DataPath, FileRange, OpenOptions, PathBytes, Ranges};
use tokio_cufile_tests::bench::{self, block_on};
use tokio_cufile_tests::cufile::{self, enter_each};
use tokio_cufile_tests::{Bed, World, pattern};

const KIB: usize = 1 << 10;
const LEN: usize = 256 * KIB;

fn automatic(directory: &Path, change: impl FnOnce(&mut CuFileConfig)) -> Bed {
    let mut config = cufile::with_nvidia_fs(directory);
    change(&mut config);
    Bed::new(directory, |builder| {
        builder.compat_mode(CompatMode::Auto).cufile(config)
    })
}

fn by_cufile(paths: PathBytes) -> u64 {
    paths.get(DataPath::CufileUnverified)
}

#[test]
fn device_memory_goes_by_cufile_from_the_threshold_on() {
    let Some(here) = World::new().by("nvidia-fs").enter() else {
        return;
    };
    let bed = automatic(&here, |_| ());
    let content = pattern::bytes(1, LEN);
    let file = bed.file("file", &content);
    let route = file.route();
    assert_eq!(
        route.resolved,
        "cufile for device memory from 16384 bytes on"
    );
    assert!(route.reason.contains("libcufile 1.20"), "{route}");
    for (len, is_for_cufile) in [
        (1, false),
        (16 * KIB - 1, false),
        (16 * KIB, true),
        (LEN, true),
    ] {
        let before = bed.calls("cuFileRead");
        let done = block_on(file.read_exact_at(bed.buffer(&vec![0; len]), 0)).unwrap();
        let bytes = if is_for_cufile { len as u64 } else { 0 };
        assert_eq!(by_cufile(done.receipt.paths), bytes, "{len}");
        assert_eq!(done.receipt.paths.total(), len as u64);
        assert_eq!(bed.calls("cuFileRead") > before, is_for_cufile, "{len}");
        pattern::assert_same(&bed.content(done.buf), &content[..len]);

        let before = bed.calls("cuFileWrite");
        let source = bed.buffer(&content[..len]);
        let done = block_on(file.write_all_at(source, 0)).unwrap();
        assert_eq!(bed.calls("cuFileWrite") > before, is_for_cufile, "{len}");
        let whole_pages = (len / 4096 * 4096) as u64;
        let bytes = if is_for_cufile { whole_pages } else { 0 };
        assert_eq!(by_cufile(done.receipt.paths), bytes, "{len}");
    }
    pattern::assert_same(&fs::read(file.path()).unwrap(), &content);
    drop(file);
    bed.end();
}

#[test]
fn host_memory_goes_by_compat() {
    let Some(here) = World::new().by("nvidia-fs").enter() else {
        return;
    };
    let bed = automatic(&here, |_| ());
    let content = pattern::bytes(1, LEN);
    let file = bed.file("file", &content);
    let done = block_on(file.read_exact_at(vec![0; LEN], 0)).unwrap();
    assert_eq!(by_cufile(done.receipt.paths), 0);
    pattern::assert_same(&done.buf, &content);
    let done = block_on(file.write_all_at(done.buf, 4096)).unwrap();
    assert_eq!(by_cufile(done.receipt.paths), 0);
    assert_eq!((bed.calls("cuFileRead"), bed.calls("cuFileWrite")), (0, 0));
    drop(file);
    bed.end();
}

#[test]
fn a_file_system_has_a_threshold_of_its_own() {
    let Some(here) = World::new().by("nvidia-fs").enter() else {
        return;
    };
    // Whichever of them the folder is in.
    let known = fs::read_to_string("/proc/filesystems").unwrap();
    let names = known.lines().filter_map(|line| line.split('\t').nth(1));
    let names: Vec<String> = names.map(str::to_owned).collect();
    for (of_all, of_each, bytes) in [(0, 64 * KIB, 64 * KIB), (64 * KIB, 4096, 4096)] {
        let bed = automatic(&here, |config| {
            config.gds_threshold = of_all;
            let of = names.iter().map(|name| (name.clone(), of_each));
            config.gds_threshold_of = of.collect();
        });
        let file = bed.file("file", &pattern::bytes(1, LEN));
        let resolved = &file.route().resolved;
        assert!(resolved.contains(&bytes.to_string()), "{resolved}");
        for (len, calls) in [(bytes - 1, 0), (bytes, 1)] {
            block_on(file.read_exact_at(bed.buffer(&vec![0; len]), 0)).unwrap();
            assert_eq!(bed.calls("cuFileRead"), calls, "{len}");
        }
        drop(file);
        bed.end();
    }
}

#[test]
fn small_ranges_of_one_read_take_it_all_away_from_cufile() {
    let Some(here) = World::new().by("nvidia-fs").enter() else {
        return;
    };
    let bed = automatic(&here, |_| ());
    let content = pattern::bytes(1, LEN);
    let file = bed.file("file", &content);
    for (len, calls) in [(64 * KIB, 2), (4 * KIB, 0)] {
        let ranges = [0, 128 * KIB].map(|at| FileRange {
            file_offset: at as u64,
            len,
            buf_offset: at,
        });
        let buffer = bed.buffer(&vec![0; LEN]);
        let before = bed.calls("cuFileRead");
        let ranges = Ranges::from(ranges.to_vec());
        let done = block_on(file.read_ranges(buffer, ranges)).unwrap();
        assert_eq!(bed.calls("cuFileRead") - before, calls, "{len}");
        let found = bed.content(done.buf);
        for at in [0, 128 * KIB] {
            pattern::assert_same(&found[at..at + len], &content[at..at + len]);
        }
        assert!(found[len..128 * KIB].iter().all(|&byte| byte == 0), "{len}");
    }
    drop(file);
    bed.end();
}

#[test]
fn a_file_that_says_on_or_off_is_no_question_of_bytes() {
    let Some(here) = World::new().by("nvidia-fs").enter() else {
        return;
    };
    let bed = automatic(&here, |_| ());
    drop(bed.file("file", &pattern::bytes(1, LEN)));
    for (compat_mode, calls) in [(CompatMode::On, 0), (CompatMode::Off, 1)] {
        let options = OpenOptions::new().read(true).compat_mode(compat_mode);
        let file = block_on(options.open(&bed.engine, bed.path("file"))).unwrap();
        let before = bed.calls("cuFileRead");
        block_on(file.read_exact_at(bed.buffer(&[0; 512]), 0)).unwrap();
        assert_eq!(bed.calls("cuFileRead") - before, calls);
        block_on(file.read_exact_at(vec![0; LEN], 0)).unwrap();
        assert_eq!(bed.calls("cuFileRead") - before, 2 * calls);
    }
    bed.end();
}

#[test]
fn a_library_that_is_forced_into_its_compatibility_mode_is_not_chosen() {
    let world = World::new().by("nvidia-fs");
    let world = world.with("CUFILE_FORCE_COMPAT_MODE", "true");
    let Some(here) = world.enter() else { return };
    let bed = automatic(&here, |_| ());
    let file = bed.file("file", &pattern::bytes(1, LEN));
    let route = file.route();
    assert!(route.reason.contains("forced into its own"), "{route}");
    block_on(file.read_exact_at(bed.buffer(&vec![0; LEN]), 0)).unwrap();
    assert_eq!(bed.calls("cuFileRead"), 0);
    drop(file);
    bed.end();
}

#[test]
fn where_p2pdma_is_asked_for_the_library_is_asked_whether_it_is_there() {
    let worlds = ["1.16", "1.20"].map(|version| World::new().version(version));
    let worlds = worlds.map(|world| world.with("CUFILE_USE_PCIP2PDMA", "true"));
    let [first, second] = worlds;
    let there =
        [first.clone(), second.clone()].map(|world| world.by("p2pdma").with("IS_THERE", "1"));
    let [third, fourth] = there;
    let Some(here) = enter_each(&[first, second, third, fourth]) else {
        return;
    };
    // Nothing of nvidia-fs.
    let bed = automatic(&here, |config| {
        config.proc_dir = bench::simulated_cufile().proc_dir
    });
    let file = bed.file("file", &pattern::bytes(1, LEN));
    block_on(file.read_exact_at(bed.buffer(&vec![0; LEN]), 0)).unwrap();
    assert_eq!(bed.calls("cuFileDriverOpen"), 1, "it is asked");
    #[expect(clippy::disallowed_methods, reason = "the parent says which it is")]
    let is_there = std::env::var_os("IS_THERE").is_some();
    assert_eq!(bed.calls("cuFileRead") > 0, is_there);
    let route = file.route();
    let told = route.reason.contains("neither nvidia-fs nor P2PDMA");
    assert_eq!(told, !is_there, "{route}");
    drop(file);
    bed.end();
}
