//! A program that leaves its `main` with reads in flight; the tests about process exit start it.
//!
//! `leaver FILE COUNT auto|pool|uring return|exit|panic [device [sync|stream]]`: starts COUNT reads of
//! FILE, says `started`, waits for a line and leaves in that way. With `device`, they are into memory of
//! device 0; with a word more they go by calls of that kind of the simulated libcufile, the program says
//! `started` only when one of them was made slow, and `left` when every handler of the end has run. The
//! rest of the settings is that of the environment.
#![allow(unsafe_code, reason = "no kept crate offers atexit")]

use std::env;
use std::io::{self, BufRead, Write};

use tokio_cufile::{
    AsyncCuFile, CompatMode, CuFileCalls, DeviceBuffer, Engine, EngineBuilder, HostBuffer, IoEngine,
};
use tokio_cufile_tests::{bench, cufile, life};

/// Registered before all others, it runs after them.
extern "C" fn say_left() {
    println!("left");
}

fn by_cufile(builder: EngineBuilder, calls: &str) -> EngineBuilder {
    // SAFETY: the function is there to the end.
    let refused = unsafe { libc::atexit(say_left) };
    assert_eq!(refused, 0, "there is room for a handler");
    let mut config = bench::simulated_cufile();
    config.calls = match calls {
        "stream" => CuFileCalls::Stream,
        _ => CuFileCalls::Sync,
    };
    builder.compat_mode(CompatMode::Off).cufile(config)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [path, count, io, how, rest @ ..] = arguments.as_slice() else {
        return Err("usage: see the head of the source".into());
    };
    let count: usize = count.parse()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()?;
    let io = match io.as_str() {
        "pool" => IoEngine::Pool,
        "uring" => IoEngine::Uring,
        _ => IoEngine::Auto,
    };
    let builder = Engine::from_env()?.num_threads(80).io(io);
    let builder = match rest {
        [_, calls] => by_cufile(builder, calls),
        _ => builder,
    };
    let engine = builder.build_blocking()?;
    let file = runtime.block_on(AsyncCuFile::open(&engine, path))?;
    let len = count * 4096;
    let ranges = (0..count).map(|index| index * 4096..(index + 1) * 4096);
    let mut buffers = (HostBuffer::new(&engine, len)?, None);
    if rest.first().is_some_and(|memory| memory == "device") {
        let made = DeviceBuffer::new(&engine, 0, len);
        let buffer = buffers.1.insert(runtime.block_on(made)?);
        for range in ranges {
            runtime.spawn(file.read_at(buffer.part(range)?, 0).start());
        }
    } else {
        for range in ranges {
            runtime.spawn(file.read_at(buffers.0.part(range)?, 0).start());
        }
    }
    if rest.len() == 2 {
        life::until(|| cufile::sim().report().faults_fired > 0);
    }
    println!("started");
    io::stdout().flush()?;
    io::stdin().lock().read_line(&mut String::new())?;
    match how.as_str() {
        "exit" => std::process::exit(0),
        "panic" => panic!("as asked"),
        _ => Ok(()),
    }
}
