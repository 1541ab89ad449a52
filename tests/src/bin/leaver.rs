//! A program that leaves its `main` with reads in flight; the tests about process exit start it.
//!
//! `leaver FILE COUNT auto|pool|uring return|exit|panic [device]`: starts COUNT reads of FILE, says
//! `started`, waits for a line and leaves in that way. With `device`, they are into memory of device 0.
//! The rest of the settings is that of the environment.

use std::env;
use std::io::{self, BufRead, Write};

use tokio_cufile::{AsyncCuFile, DeviceBuffer, Engine, HostBuffer, IoEngine};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [path, count, io, how, rest @ ..] = arguments.as_slice() else {
        return Err("usage: leaver FILE COUNT auto|pool|uring return|exit|panic [device]".into());
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
    let engine = Engine::from_env()?.num_threads(80).io(io).build_blocking()?;
    let file = runtime.block_on(AsyncCuFile::open(&engine, path))?;
    let len = count * 4096;
    let ranges = (0..count).map(|index| index * 4096..(index + 1) * 4096);
    let mut buffers = (HostBuffer::new(&engine, len)?, None);
    if rest == ["device"] {
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
    println!("started");
    io::stdout().flush()?;
    io::stdin().lock().read_line(&mut String::new())?;
    match how.as_str() {
        "exit" => std::process::exit(0),
        "panic" => panic!("as asked"),
        _ => Ok(()),
    }
}
